"""Transfer files between this machine and the shared volume, in pieces: resumed by checksum, several at once.

The other end is cli/volume_server.py; the caller connects to it (cli/reach.py, or a socket in a test). A broken
connection is made again. An interrupted command continues where it stopped: checksums tell which pieces have arrived.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlencode

from cli import CommandError
from cli.progress import Bar
from cli.volume_server import HASHED_AT_ONCE, PIECE, RefusedError, finish, hashes, partial, write_piece

CONNECTIONS = 4
"""Pieces in flight: a single connection would wait a round trip for each piece."""
PATIENCE_SECONDS = 60.0
"""Seconds of failed connections before the error is reported."""
ANSWER_SECONDS = 120.0
"""Seconds of silence before the server is asked again."""
DAMAGED = 422
"""HTTP status for a piece with a wrong checksum, which is sent again."""


class TransferError(CommandError):
    """One line for the terminal, and the HTTP status if the server refused."""

    def __init__(self, text: str, status: int | None = None):
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Pair:
    """A file here and its place on the volume."""

    local: Path
    remote: str
    size: int


class Volume:
    """A client of the server on the shared volume. `connect` is retried when it raises OSError."""

    def __init__(self, connect: Callable[[], socket.socket]):
        self._connect, self._local = connect, threading.local()

    def ask(self, method: str, call: str, body: bytes = b"", **query: Any) -> bytes:
        """Make a request, again over a new connection when one breaks. Raises TransferError."""
        path = f"/{call}?{urlencode(query)}"
        end, silent = time.monotonic() + PATIENCE_SECONDS, 0
        while True:
            try:
                connection = self._connection()
                connection.request(method, path, body)
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.drop()
                if isinstance(error, TimeoutError) and silent < 2:  # the network was down: try a new connection
                    silent, end = silent + 1, time.monotonic() + PATIENCE_SECONDS
                if time.monotonic() > end:
                    raise _lost(error) from None
                time.sleep(0.5)
                continue
            if response.status == 200:
                return content
            if response.status != DAMAGED or time.monotonic() > end:
                raise TransferError(_error(content), response.status)

    def lines(self, call: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the lines of a long answer as they come. Raises TransferError; OSError when the connection breaks."""
        connection = self._connection()
        connection.request("POST", f"/{call}?{urlencode(query)}")
        response = connection.getresponse()
        if response.status != 200:
            raise TransferError(_error(response.read()), response.status)
        for line in response:
            yield json.loads(line)
        self.drop()

    def files(self, path: str) -> dict[str, int]:
        """Relative path -> size of every file under `path`; empty when there is none.

        Raises TransferError for a name that leads out of the folder: somebody who may change pods could answer in the
        server's place, and the files are written to this machine.
        """
        try:
            found = json.loads(self.ask("GET", "files", path=path))["files"]
        except TransferError as error:
            if error.status != 404:
                raise
            return {}
        for name in (PurePosixPath(entry["path"]) for entry in found):
            if name.is_absolute() or ".." in name.parts:
                raise TransferError(
                    f"{path}: the volume names '{name}', which leads out of the folder; nothing is fetched"
                )
        return {entry["path"]: entry["size"] for entry in found}

    def hashes(self, path: str, size: int, is_partial: bool = False) -> list[str]:
        """Checksums of the stored pieces of the first `size` bytes."""
        found: list[str] = []
        extra: dict[str, Any] = {"partial": 1} if is_partial else {}
        while len(found) * PIECE < size:
            answer = self.ask("GET", "hashes", path=path, start=len(found) * PIECE, size=size, **extra)
            more = json.loads(answer)["hashes"]
            found += more
            if len(more) < HASHED_AT_ONCE:
                break
        return found

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None or connection.sock is None:
            connection = http.client.HTTPConnection("volume", timeout=ANSWER_SECONDS)
            connection.sock = self._connect()
            connection.sock.settimeout(ANSWER_SECONDS)
            self._local.connection = connection
        return connection

    def drop(self) -> None:
        """Drop this thread's connection; the next request makes a new one."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None


def put(volume: Volume, pairs: list[Pair], folder: str, bar: Bar) -> bool:
    """Send files of this machine to the volume, under `folder`. Raises TransferError.

    Returns whether it changed what was under `folder`: a file, or what is in a folder that had files.
    """
    there = volume.files(folder)
    sizes = {f"{folder}/{name}".rstrip("/"): size for name, size in there.items()}
    sent: list[str] = []

    def send(pair: Pair, start: int, whole: bool) -> None:
        piece = _read(pair, start)
        checksum = hashlib.sha256(piece).hexdigest()
        extra: dict[str, Any] = {"size": pair.size} if whole else {}
        volume.ask("PUT", "bytes", piece, path=pair.remote, start=start, sha256=checksum, **extra)
        bar.advance(len(piece))

    def one(pair: Pair, pool: ThreadPoolExecutor | None) -> None:
        bar.file(pair.local.name)
        if sizes.get(pair.remote) == pair.size and volume.hashes(pair.remote, pair.size) == _own(pair):
            bar.advance(pair.size)
            return
        sent.append(pair.remote)
        if pair.size <= PIECE or pool is None:
            send(pair, 0, whole=True)
            return
        there = volume.hashes(pair.remote, pair.size, is_partial=True)
        _in_pieces(pair, there, _own(pair) if there else [], lambda start: send(pair, start, False), pool, bar)
        volume.ask("POST", "finish", path=pair.remote, size=pair.size)

    _all(pairs, one, bar)
    return bool(sent and sizes)


def get(volume: Volume, pairs: list[Pair], bar: Bar) -> None:
    """Fetch files of the volume to this machine; a growing one gets the listed size. Raises TransferError."""

    def one(pair: Pair, pool: ThreadPoolExecutor | None) -> None:
        bar.file(pair.local.name)
        wanted = volume.hashes(pair.remote, pair.size)

        def receive(start: int) -> None:
            piece = _fetch(volume, pair, start, wanted[start // PIECE])
            write_piece(pair.local, start, piece)
            bar.advance(len(piece))

        if pair.local.is_file() and pair.local.stat().st_size == pair.size and _own(pair) == wanted:
            bar.advance(pair.size)
            return
        pair.local.parent.mkdir(parents=True, exist_ok=True)
        size = pair.size
        if pool is None:
            piece = _whole(volume, pair, wanted)
            size = len(piece)
            write_piece(pair.local, 0, piece)
            bar.advance(pair.size)
        else:
            there = partial(pair.local)
            found = hashes(there, pair.size) if there.exists() else []
            _in_pieces(pair, found, wanted, receive, pool, bar)
        try:
            finish(pair.local, size)
        except RefusedError as error:
            raise TransferError(str(error)) from None

    _all(pairs, one, bar)


def copy(volume: Volume, source: str, folder: str, bar: Bar, name: str = "") -> str:
    """Let the server copy what an address names into a folder of the volume. Raises TransferError.

    Returns the path of the file or folder there. `name`: the subfolder to make when the address is not a file.
    """
    inside = folder
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        seen: dict[str, int] = {}
        try:
            for step in volume.lines("copy", path=folder, source=source, name=name):
                end = time.monotonic() + PATIENCE_SECONDS
                if "error" in step:
                    raise TransferError(step["error"])
                if "complete" in step:
                    return inside
                if "files" in step:
                    inside = step["inside"]
                    bar.total(step["files"], step["bytes"] or None)
                    continue
                bar.file(step["name"])
                bar.advance(step["done"] - seen.get(step["name"], 0))
                seen[step["name"]] = step["done"]
            error: Exception = ConnectionError("the server stopped in the middle")
        except (OSError, http.client.HTTPException) as broken:
            error = broken
        volume.drop()
        if time.monotonic() > end:
            raise _lost(error) from None
        # Take back what was counted: the server starts over and reports it again.
        bar.advance(-sum(seen.values()))
        time.sleep(0.5)


def _in_pieces(
    pair: Pair,
    there: list[str],
    wanted: list[str],
    move: Callable[[int], None],
    pool: ThreadPoolExecutor,
    bar: Bar,
) -> None:
    """Move the missing pieces."""
    missing = []
    for number, start in enumerate(range(0, pair.size, PIECE)):
        if number < len(there) and number < len(wanted) and there[number] == wanted[number]:
            bar.advance(min(PIECE, pair.size - start))
        else:
            missing.append(start)
    for _ in pool.map(move, missing):
        pass


def _all(pairs: list[Pair], one: Callable[[Pair, ThreadPoolExecutor | None], None], bar: Bar) -> None:
    """Transfer small files several at once, large ones one by one with several pieces at once."""
    bar.total(len(pairs), sum(pair.size for pair in pairs))
    with _pool() as pool:
        for _ in pool.map(lambda pair: one(pair, None), [pair for pair in pairs if pair.size <= PIECE]):
            pass
        for pair in pairs:
            if pair.size > PIECE:
                one(pair, pool)


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """A thread pool that drops its queued work at the first error or Ctrl-C."""
    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _own(pair: Pair) -> list[str]:
    return hashes(pair.local, pair.size)


def _read(pair: Pair, start: int) -> bytes:
    with open(pair.local, "rb") as file:
        file.seek(start)
        piece = file.read(min(PIECE, pair.size - start))
        if os.fstat(file.fileno()).st_size != pair.size:
            raise TransferError(f"{pair.local}: changed while it was sent; run the same command again")
    return piece


def _fetch(volume: Volume, pair: Pair, start: int, checksum: str) -> bytes:
    """Fetch a piece with this checksum; retry a mismatch once, after which the file must have changed."""
    for _ in range(2):
        piece = volume.ask("GET", "bytes", path=pair.remote, start=start, end=min(start + PIECE, pair.size))
        if hashlib.sha256(piece).hexdigest() == checksum:
            return piece
    raise TransferError(f"{pair.remote}: changed while it was fetched; run the same command again")


def _whole(volume: Volume, pair: Pair, wanted: list[str]) -> bytes:
    """Fetch a small file, as `wanted` or as it is now: status.json has another size each time."""
    for _ in range(5):
        piece = volume.ask("GET", "bytes", path=pair.remote, start=0, end=PIECE)
        found = [hashlib.sha256(piece).hexdigest()] if piece else []
        if found == wanted or found == volume.hashes(pair.remote, len(piece)):
            return piece
    raise TransferError(f"{pair.remote}: changed while it was fetched; run the same command again")


def _error(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the volume's server answered {content[:200].decode('utf-8', 'replace')}"


def _lost(error: Exception) -> TransferError:
    return TransferError(
        f"the connection to the volume is lost ({type(error).__name__}: {error}); run the same command again: "
        "it continues where it stopped"
    )
