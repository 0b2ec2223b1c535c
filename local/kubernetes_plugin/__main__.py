"""Start the plugin: print the port for the engine, serve until the engine ends.

Start-up is on the critical path of every preview, so imports are few: the protocol's stubs without the rest of the
pulumi package (which would double the time), and the kubernetes client in the background.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
import time
import types
from concurrent import futures
from pathlib import Path

# One thread for each resource that is awaited at the same time; they are started as needed.
THREADS = 256
LARGEST_MESSAGE = 400 * 1024 * 1024  # bytes; the engine's own limit
NOTICE = (
    "stand-in for pulumi-resource-kubernetes (trainyard local/kubernetes_plugin), used where the real plugin cannot be "
    "downloaded"
)


def _import_stubs_only() -> None:
    """Make `pulumi.runtime.proto` importable without running the package initialisers above it."""
    spec = importlib.util.find_spec("pulumi")
    if spec is None or spec.origin is None or "pulumi" in sys.modules:
        return
    folder = Path(spec.origin).parent
    for name, path in (("pulumi", folder), ("pulumi.runtime", folder / "runtime")):
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package


def _version() -> str:
    """The version of the Python SDK beside us: the engine warns when a plugin's version is below the program's."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pulumi-kubernetes")
    except PackageNotFoundError:
        return "4.0.0"


def _end_with_engine(engine_process: int) -> None:
    """Leave no plugin behind when the engine is killed."""
    while os.getppid() == engine_process:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Serve until the engine ends us."""
    if len(sys.argv) > 1 and sys.argv[1] in ("-h", "--help"):
        print(f"{NOTICE}\nusage: python -m local.kubernetes_plugin [ENGINE_ADDRESS]; Pulumi starts it")
        return
    engine_process = os.getppid()
    _import_stubs_only()
    import grpc
    from pulumi.runtime.proto import provider_pb2_grpc

    from .client import import_kubernetes
    from .engine import Engine
    from .server import Server

    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    engine = Engine(arguments[0] if arguments else None)
    servicer = Server(engine, _version())
    sizes = [("grpc.max_receive_message_length", LARGEST_MESSAGE), ("grpc.max_send_message_length", LARGEST_MESSAGE)]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=THREADS), options=sizes)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    ended = threading.Event()
    # The engine says goodbye with SIGINT and kills after five seconds. A person's Ctrl-C comes as the call Cancel
    # instead: the engine runs its plugins in process groups of their own.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    print(port, flush=True)
    engine.info("", NOTICE)
    threading.Thread(target=import_kubernetes, daemon=True).start()
    threading.Thread(target=_end_with_engine, args=(engine_process,), daemon=True).start()
    ended.wait()
    servicer.cancel()
    server.stop(grace=1).wait()


if __name__ == "__main__":
    main()
