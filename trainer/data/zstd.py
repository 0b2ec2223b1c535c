"""Read .zst files: the library's own reader takes a truncated file for a whole one."""

import io
from typing import Any, BinaryIO

import zstandard

READ = 1 << 17
"""Stored bytes of one read."""
WINDOW = 256 << 20
"""Bytes of the largest zstd window that is read, held in memory by each process; zstd itself reads 128 MiB unasked."""


class Zstandard(io.RawIOBase):
    """Reads a .zst file of one or more frames."""

    def __init__(self, stored: BinaryIO, mode: str) -> None:
        self._stored = stored
        self._rest, self._ready = b"", b""
        self._frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready:
            data = self._rest or self._stored.read(READ)
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor(max_window_size=WINDOW).decompressobj()
            self._ready = self._frame.decompress(data)
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        size = min(len(target), len(self._ready))
        target[:size], self._ready = self._ready[:size], self._ready[size:]
        return size
