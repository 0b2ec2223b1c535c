"""The engine's log: lasting lines for warnings, fleeting ones beside the resource while it is awaited."""

from __future__ import annotations

import sys
import threading

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc


class Engine:
    """The engine that started the plugin; without an address, messages go to stderr."""

    def __init__(self, address: str | None) -> None:
        self._stub = None
        self._last: dict[str, str] = {}
        self._once: set[str] = set()
        self._lock = threading.Lock()
        if address:
            self._stub = engine_pb2_grpc.EngineStub(grpc.insecure_channel(address))

    def status(self, urn: str, message: str) -> None:
        """Show `message` beside the resource until the next one; the same message twice is sent once."""
        with self._lock:
            if self._last.get(urn) == message:
                return
            self._last[urn] = message
        self._log(urn, message, engine_pb2.INFO, ephemeral=True)

    def warn(self, urn: str, message: str, once: bool = False) -> None:
        """A lasting warning; with `once`, only the first time in this run."""
        with self._lock:
            if once and message in self._once:
                return
            self._once.add(message)
        self._log(urn, message, engine_pb2.WARNING, ephemeral=False)

    def info(self, urn: str, message: str) -> None:
        """A lasting line."""
        self._log(urn, message, engine_pb2.INFO, ephemeral=False)

    def _log(self, urn: str, message: str, severity: int, ephemeral: bool) -> None:
        if self._stub is None:
            if not ephemeral:
                print(message, file=sys.stderr, flush=True)
            return
        request = engine_pb2.LogRequest(severity=severity, message=message, urn=urn, ephemeral=ephemeral)  # type: ignore[arg-type]
        try:
            self._stub.Log(request, timeout=5)
        except grpc.RpcError:
            return  # a message that nobody hears must not fail the operation
