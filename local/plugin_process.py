"""The process of a provider plugin: print the port for the engine, serve until the engine ends.

Every preview waits for this start, so it imports little: the protocol's stubs without the rest of the pulumi package,
which would double the time.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

# One thread for each resource that is awaited at the same time. The pool starts them as needed.
THREADS = 256
LARGEST_MESSAGE = 400 * 1024 * 1024  # bytes; the engine's own limit


def import_stubs_only() -> None:
    """Make `pulumi.runtime.proto` importable without running the package initialisers above it."""
    spec = importlib.util.find_spec("pulumi")
    if spec is None or spec.origin is None or "pulumi" in sys.modules:
        return
    folder = Path(spec.origin).parent
    for name, path in (("pulumi", folder), ("pulumi.runtime", folder / "runtime")):
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package


def _end_with_engine(engine_process: int) -> None:
    """Leave no plugin behind when the engine is killed."""
    while os.getppid() == engine_process:
        time.sleep(1)
    os._exit(1)


def listen(servicer: Any) -> tuple[Any, int]:
    """Start the gRPC server of a provider; return it and its port on 127.0.0.1."""
    import grpc
    from pulumi.runtime.proto import provider_pb2_grpc

    sizes = [("grpc.max_receive_message_length", LARGEST_MESSAGE), ("grpc.max_send_message_length", LARGEST_MESSAGE)]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=THREADS), options=sizes)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def serve(
    address: str | None, notice: str, make: Callable[[Any], Any], started: Callable[[], Any] | None = None
) -> None:
    """Serve until the engine ends this process.

    Args:
        address: the engine's address; None: messages go to stderr.
        notice: message that the plugin logs when it starts.
        make: makes the servicer, which has a method `cancel`, from the Engine.
        started: runs in the background once the engine has the port.
    """
    engine_process = os.getppid()
    from .plugin.engine import Engine

    engine = Engine(address)
    servicer = make(engine)
    server, port = listen(servicer)

    ended = threading.Event()
    # The engine ends a plugin with SIGINT, and kills it after five seconds. A user's Ctrl-C arrives as the call Cancel
    # instead, because the engine runs each plugin in a process group of its own.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    print(port, flush=True)
    engine.info("", notice)
    if started:
        threading.Thread(target=started, daemon=True).start()
    threading.Thread(target=_end_with_engine, args=(engine_process,), daemon=True).start()
    ended.wait()
    servicer.cancel()
    server.stop(grace=1).wait()
