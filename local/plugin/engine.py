"""The engine's log: permanent lines for warnings, ephemeral ones beside a resource that is awaited."""

from __future__ import annotations

import contextlib
import sys

import grpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc


class Engine:
    """The engine that started the plugin; without an address, messages go to stderr."""

    def __init__(self, address: str | None) -> None:
        self._stub = engine_pb2_grpc.EngineStub(grpc.insecure_channel(address)) if address else None
        self._last: dict[str, str] = {}
        self._warned: set[str] = set()

    def status(self, urn: str, message: str) -> None:
        """Show `message` beside the resource until the next one."""
        if self._last.get(urn, "") != message:
            self._last[urn] = message
            self._log(urn, message, engine_pb2.INFO, ephemeral=True)

    def warn(self, urn: str, message: str) -> None:
        """Each warning is logged once."""
        if message not in self._warned:
            self._warned.add(message)
            self._log(urn, message, engine_pb2.WARNING)

    def info(self, urn: str, message: str) -> None:
        self._log(urn, message, engine_pb2.INFO)

    def _log(self, urn: str, message: str, severity: int, ephemeral: bool = False) -> None:
        if self._stub is None:
            if not ephemeral:
                print(message, file=sys.stderr, flush=True)
            return
        request = engine_pb2.LogRequest(severity=severity, message=message, urn=urn, ephemeral=ephemeral)  # type: ignore[arg-type]
        # A message that cannot be delivered must not fail the operation.
        with contextlib.suppress(grpc.RpcError):
            self._stub.Log(request, timeout=5)
