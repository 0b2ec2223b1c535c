"""The volume server as a real process on loopback, and connections that count bytes and break on request."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cli.progress import Bar
from cli.reach import SERVER, relay
from cli.transfer import Volume


class Seen(Bar):
    """A progress bar that only counts."""

    def __init__(self) -> None:
        self.files, self.done = 0, 0
        self.size: int | None = None
        self.lock = threading.Lock()

    def total(self, files: int, size: int | None) -> None:
        self.files, self.size = files, size

    def file(self, name: str) -> None:
        pass

    def advance(self, size: int) -> None:
        with self.lock:
            self.done += size


class Wire:
    """Connections to a server through cli.reach.relay, with counts of bytes and connections."""

    def __init__(self, port: int, break_after: int | None = None):
        self.port, self.break_after = port, break_after
        self.sent = self.received = self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=relay, args=(self.listener, self._there, lambda error: None), daemon=True).start()

    @property
    def volume(self) -> Volume:
        return Volume(lambda: socket.create_connection(self.listener.getsockname()))

    def _there(self) -> socket.socket:
        self.connections += 1
        return _Counted(self, socket.create_connection(("127.0.0.1", self.port)))  # type: ignore[return-value]


class _Counted:
    """A socket that adds its bytes to its Wire's counts, and breaks after `break_after` of them."""

    def __init__(self, wire: Wire, inner: socket.socket):
        self.wire, self.inner, self.passed = wire, inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def recv(self, size: int) -> bytes:
        part = self.inner.recv(size)
        self.wire.received += len(part)
        return self._pass(part)

    def sendall(self, part: bytes) -> None:
        self.wire.sent += len(part)
        self.inner.sendall(self._pass(part))

    def _pass(self, part: bytes) -> bytes:
        self.passed += len(part)
        if self.wire.break_after is not None and self.passed > self.wire.break_after:
            raise ConnectionResetError("broken by the test")
        return part


@contextmanager
def server(
    *folders: Path, before: str = "", program: str | None = None, **environment: str
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start the volume server as its pod does; yield its port and process. `before`: code that it runs first."""
    first = "from __future__ import annotations\n"
    text = (program or SERVER.read_text("utf-8")).replace(first, first + before)
    command = [sys.executable, "-c", text, "0", *map(str, folders)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment or None)
    try:
        assert process.stdout
        yield int(process.stdout.readline().split()[1]), process
    finally:
        process.kill()
        process.wait()


def noise(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(size).randbytes(size))
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
