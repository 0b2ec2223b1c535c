"""Bytes of a source, opened anywhere and decompressed on the way; every failure to read is one clear line."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import fsspec
import zstandard
from fsspec.implementations.local import LocalFileOpener

from trainer.data.sources import Source
from trainer.errors import UserError

CHUNK = 1 << 20


@contextmanager
def opened(source: Source) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The content, and the stored file under it, whose position tells how far reading is."""
    with reading(source), _stored(source.name) as stored:
        if source.compression == "gz":
            content: Any = gzip.GzipFile(fileobj=stored)
        elif source.compression == "bz2":
            content = bz2.BZ2File(stored)
        elif source.compression == "xz":
            content = lzma.LZMAFile(stored)  # noqa: SIM115 (closed with the stored file)
        elif source.compression == "zst":
            content = _Zstandard(stored)
        else:
            content = stored
        # Files of remote systems know no readlines(hint); local ones are buffered as they are.
        plain = issubclass(type(stored), LocalFileOpener) and not source.compression
        yield (content if plain else io.BufferedReader(content, CHUNK)), stored


def _stored(name: str) -> Any:
    return fsspec.open(name, "rb").open()  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def reading(source: Source) -> Iterator[None]:
    """Failures to read `source` as a UserError that names it."""
    damaged = (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
    try:
        yield
    except UserError:
        raise
    except damaged as error:
        raise UserError(
            f"--input {source.name}: is damaged or cut short ({_cause(error)}); fetch or make it again"
        ) from None
    except FileNotFoundError:
        raise UserError(f"--input {source.name}: is gone since the preparation began; put it back") from None
    except Exception as error:  # each file system and format has its own kinds
        if source.compression and isinstance(error, OSError) and error.errno is None:  # bz2 has no kind of its own
            raise UserError(f"--input {source.name}: is damaged or cut short ({_cause(error)})") from None
        raise UserError(
            f"--input {source.name}: reading failed ({_cause(error)}); run the same command again: "
            "it goes on where it stopped"
        ) from None


class _Zstandard(io.RawIOBase):
    """A .zst file of one frame or many. The library's own reader takes a file that was cut short for a whole one."""

    def __init__(self, stored: BinaryIO) -> None:
        self._stored = stored
        self._rest, self._ready = b"", b""
        self._frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready:
            data = self._rest or self._stored.read(CHUNK // 8)
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._ready = self._frame.decompress(data)
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        size = min(len(target), len(self._ready))
        target[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def align(file: BinaryIO, start: int) -> int:
    """Go to the first line that begins at `start` or later; its position."""
    if start == 0:
        return 0
    file.seek(start - 1)
    position = start - 1
    while True:
        part = file.readline(CHUNK)
        position += len(part)
        if not part or part.endswith(b"\n"):
            return position


def lines(file: BinaryIO, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Each line that begins in [start, end), whole, with its position."""
    position = align(file, start)
    while end is None or position < end:
        batch = file.readlines(CHUNK if end is None else min(CHUNK, end - position))
        if not batch:
            return
        for line in batch:
            yield position, line
            position += len(line)


def chunks(file: BinaryIO, start: int, end: int | None) -> Iterator[bytes]:
    """The same lines as one stream in bounded pieces, however long a line is."""
    position = align(file, start)
    last = b""
    while end is None or position < end:
        last = file.read(CHUNK if end is None else min(CHUNK, end - position))
        if not last:
            return
        position += len(last)
        yield last
    while last and not last.endswith(b"\n"):
        last = file.readline(CHUNK)
        if last:
            yield last


def line_number(source: Source, position: int) -> int:
    """The number, from 1, of the line at `position` of an uncompressed source."""
    number = 1
    with _stored(source.name) as file:
        while position > 0:
            part = cast(bytes, file.read(min(CHUNK, position)))
            if not part:
                break
            number += part.count(b"\n")
            position -= len(part)
    return number


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
