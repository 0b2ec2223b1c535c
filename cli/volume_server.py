"""The server in the pod that `trainyard upload` and `trainyard fetch` use: files in pieces, over HTTP on the loopback.

The client sends this file along as the container's program, so both ends always have the same version, whatever image
the stack has. It needs only Python (and, for addresses, the trainer of its image). It listens on 127.0.0.1
alone: only those who may forward a port into the pod can use it.

    GET  /files?path=P                              {"files": [{"path": relative to P, "size": bytes}, ...]}
    GET  /hashes?path=P&start=A&size=S&partial=1    {"hashes": [sha256 of each piece from A on, of the first S bytes]}
    GET  /bytes?path=P&start=A&end=B                those bytes
    PUT  /bytes?path=P&start=A&sha256=H[&size=S]    writes a piece beside P; with size, that was all: P appears
    POST /finish?path=P&size=S                      P appears, whole and on the disk
    POST /copy?source=URL&path=P&name=N             the file at URL into P, a folder into P/N; one JSON line a step

No half-written file ever appears under its name: pieces go to a hidden file beside it, which gets an fsync and is
renamed. After an interruption, the checksums of its pieces tell what has arrived.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

PIECE = 4 << 20
"""Bytes of a piece: what an interruption costs, and what one request carries."""
HASHED_AT_ONCE = 64
"""Pieces whose checksums fit one answer: a quarter of a gigabyte, so that no answer takes minutes."""
IDLE_SECONDS = 3600
"""Seconds without a request after which the server ends, and with it its pod. A client is silent for minutes while it
hashes a large file of its own."""
COPIED = ".copied"
"""A note in a copied folder: the version of each file. Its hidden name keeps it out of data sets."""


class RefusedError(Exception):
    """A request that fails, with HTTP status and one line."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status


def partial(path: Path, version: str = "") -> Path:
    """The hidden file that holds the pieces of `path` until it is complete."""
    return path.with_name(f".{path.name}.{version}part")


def hashes(path: Path, size: int, start: int = 0) -> list[str]:
    """sha256 of each piece of a file's first `size` bytes, from byte `start` on, as far as the file goes."""
    found = []
    with open(path, "rb") as file:
        file.seek(start)
        while start < size and (piece := file.read(min(PIECE, size - start))):
            found.append(hashlib.sha256(piece).hexdigest())
            start += len(piece)
    return found


def write_piece(path: Path, start: int, piece: bytes) -> None:
    """Write a piece of `path` at its offset. Pieces may come in any order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(partial(path), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        view = memoryview(piece)
        while view:
            written = os.pwrite(descriptor, view, start)
            start, view = start + written, view[written:]
    finally:
        os.close(descriptor)


def finish(path: Path, size: int, whole: Path | None = None) -> None:
    """Sync the file to the disk and rename it into place. Raises RefusedError when pieces are missing."""
    whole = whole or partial(path)
    if not whole.exists() and path.is_file() and path.stat().st_size == size:
        return  # a repeated request: the first answer was lost
    descriptor = os.open(whole, os.O_RDWR)
    try:
        there = os.fstat(descriptor).st_size
        if there < size:
            raise RefusedError(409, f"{path}: has {there} of {size} bytes")
        os.ftruncate(descriptor, size)  # drops the rest of an earlier, longer version
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(whole, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def files(path: Path) -> list[dict[str, Any]]:
    """The files under a folder, or the one file, by name; hidden ones are incomplete files or notes."""
    if path.is_file():
        return [{"path": "", "size": path.stat().st_size}]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                found.append({"path": str(file.relative_to(path)), "size": file.stat().st_size})
    return found


def copy(source: str, folder: Path, own: str = "") -> Iterator[dict[str, Any]]:
    """Copy what `source` names into `folder`, or a folder into its subfolder `own`; yield progress after each piece.

    A file that is there in the source's current version stays; an interrupted one continues where it stopped.
    """
    system, root, found = _found(source)
    wanted = sorted((_below(info["name"], root), info) for info in found if not info["name"].endswith("/"))
    if not wanted:
        raise RefusedError(404, f"{source}: holds no file")
    one = len(wanted) == 1 and wanted[0][1]["name"] == root
    folder = folder if one else folder / own
    folder.mkdir(parents=True, exist_ok=True)
    try:
        known = json.loads((folder / COPIED).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        known = {}
    inside = str(folder / wanted[0][0] if one else folder)
    yield {"files": len(wanted), "bytes": sum(info.get("size") or 0 for _, info in wanted), "inside": inside}
    for name, info in wanted:
        target, version = folder / name, _version(info)
        if known.get(name) == version and target.is_file():
            yield {"name": name, "done": target.stat().st_size, "found": True}
            continue
        try:
            for done in _stream(system, info, target, version):
                yield {"name": name, "done": done}
        except Exception as error:  # each storage has exceptions of its own
            if isinstance(error, RefusedError) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise RefusedError(502, f"{source}: {name}: reading failed ({_line(error)}); run it again") from None
        known[name] = version
        note = folder / f"{COPIED}.part"
        note.write_text(json.dumps(known, indent=1, sort_keys=True), "utf-8")
        os.replace(note, folder / COPIED)


def _found(source: str) -> tuple[Any, str, list[dict[str, Any]]]:
    """File system, path and files of a source, with the pod's credentials, else anonymously. Raises RefusedError."""
    from trainer.config.addresses import reach

    def listed(system: Any, root: str) -> tuple[Any, str, list[dict[str, Any]]]:
        system.invalidate_cache()  # it would remember the last request's listing
        info = system.info(root)
        return system, root, [info] if info["type"] == "file" else list(system.find(root, detail=True).values())

    try:
        return reach(source, listed)
    except FileNotFoundError:
        told = "does not exist, or this cluster may not read it; check the name and the access"
        raise RefusedError(404, f"{source}: {told}") from None
    except Exception as error:  # each storage has exceptions of its own
        raise RefusedError(502, f"{source}: cannot be read ({_line(error)}); check the name and the access") from None


def _below(name: str, root: str) -> str:
    """The path of a found file inside the target folder."""
    inside = name[len(root) :].strip("/") if name.startswith(root) else ""
    below = inside or Path(urlsplit(name).path).name
    if ".." in Path(below).parts:
        raise RefusedError(400, f"{name}: leads out of the folder")
    return below


def _version(info: dict[str, Any]) -> str:
    """A value that changes with the content: from the storage's checksum or version, size and time of change."""
    keys = ("ETag", "etag", "md5Hash", "crc32c", "generation", "LastModified", "mtime", "size")
    return hashlib.sha256(repr([str(info.get(key)) for key in keys]).encode()).hexdigest()[:12]


def _stream(system: Any, info: dict[str, Any], target: Path, version: str) -> Iterator[int]:
    """Copy a file; yield the bytes so far after each piece. Whole pieces of the same version are kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    whole = partial(target, f"{version}.")
    with system.open(info["name"], "rb", block_size=PIECE) as stored, open(whole, "ab") as written:
        start = written.tell() // PIECE * PIECE
        if start:
            try:
                stored.seek(start)
            except (OSError, ValueError):  # the server does not support ranges
                start = 0
        written.truncate(start)
        while piece := stored.read(PIECE):
            written.write(piece)
            start += len(piece)
            yield start
    if info.get("size") not in (None, start):
        raise RefusedError(502, f"{info['name']}: gave {start} of {info['size']} bytes; run it again")
    finish(target, start, whole)
    yield start


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


class Handler(BaseHTTPRequestHandler):
    """One connection; the server's `folders` are what may be read and written."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a small answer waits 40 ms for the ACK of its own header
    server: Server

    def do_GET(self) -> None:
        self._answer()

    do_PUT = do_POST = do_GET

    def _answer(self) -> None:
        self.server.asked()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            call = getattr(self, f"{self.command.lower()}_{parts.path.strip('/')}", None)
            if call is None:
                raise RefusedError(404, f"{self.command} {parts.path}: not known here")
            call(self.server.allowed(query["path"]), query, body)
        except RefusedError as error:
            self._reply({"error": str(error)}, error.status)
        except (KeyError, ValueError) as error:
            self._reply({"error": f"{self.path}: {_line(error)}"}, 400)
        except ConnectionError:
            self.close_connection = True
        except OSError as error:
            status = 404 if isinstance(error, FileNotFoundError) else 507
            self._reply({"error": f"{error.filename or query.get('path')}: {error.strerror or error}"}, status)

    def get_files(self, path: Path, query: dict[str, str], body: bytes) -> None:
        self._reply({"files": files(path)})

    def get_hashes(self, path: Path, query: dict[str, str], body: bytes) -> None:
        if query.get("partial"):
            path = partial(path)
            if not path.exists():
                self._reply({"hashes": []})
                return
        start = int(query["start"])
        self._reply({"hashes": hashes(path, min(int(query["size"]), start + HASHED_AT_ONCE * PIECE), start)})

    def get_bytes(self, path: Path, query: dict[str, str], body: bytes) -> None:
        start, end = int(query["start"]), int(query["end"])
        with open(path, "rb") as file:
            file.seek(start)
            self._send(200, file.read(min(end - start, PIECE)), "application/octet-stream")

    def put_bytes(self, path: Path, query: dict[str, str], body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != query["sha256"]:
            raise RefusedError(422, f"{path}: a piece arrived damaged")
        write_piece(path, int(query["start"]), body)
        if "size" in query:
            finish(path, int(query["size"]))
        self._reply({})

    def post_finish(self, path: Path, query: dict[str, str], body: bytes) -> None:
        finish(path, int(query["size"]))
        self._reply({})

    def post_copy(self, path: Path, query: dict[str, str], body: bytes) -> None:
        """Send each step as a line when it is done; an error is the last line."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            # A client that lost its connection asks again before the first answer may have noticed.
            with self.server.copying:
                for step in copy(query["source"], path, query.get("name", "")):
                    self.server.asked()
                    self.wfile.write(json.dumps(step).encode() + b"\n")
            last: dict[str, Any] = {"complete": True}
        except (RefusedError, OSError) as error:
            if isinstance(error, ConnectionError):
                return
            last = {"error": str(error)}
        self.wfile.write(json.dumps(last).encode() + b"\n")

    def _reply(self, answer: dict[str, Any], status: int = 200) -> None:
        self._send(status, json.dumps(answer).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """No log: a line for each piece would fill it."""


class Server(ThreadingHTTPServer):
    """Serves the given folders until it has been idle for a while."""

    daemon_threads = True

    def __init__(self, port: int, folders: list[Path], idle_seconds: float = IDLE_SECONDS):
        super().__init__(("127.0.0.1", port), Handler)
        self.folders = [folder.resolve() for folder in folders]
        self.last, self.idle_seconds = time.monotonic(), idle_seconds
        self.copying = threading.Lock()
        threading.Thread(target=self._end_when_idle, daemon=True).start()

    def asked(self) -> None:
        self.last = time.monotonic()

    def allowed(self, path: str) -> Path:
        """Resolve links; the path must be inside one of the folders. Raises RefusedError."""
        real = Path(os.path.realpath(path))
        if not any(real == folder or folder in real.parents for folder in self.folders):
            raise RefusedError(403, f"{path}: outside of {', '.join(map(str, self.folders))}")
        return real

    def _end_when_idle(self) -> None:
        while time.monotonic() - self.last < self.idle_seconds:
            time.sleep(min(1.0, self.idle_seconds / 4))
        self.shutdown()


def main(arguments: list[str]) -> int:
    """Run with PORT FOLDER...; port 0 takes any free port and prints it on the first line."""
    server = Server(int(arguments[0]), [Path(folder) for folder in arguments[1:]])
    print(f"serving {server.server_port}", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
