"""What a command waits for and how much has come, redrawn on a terminal and told in a log; durations in words."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.filesize import decimal
from rich.status import Status
from rich.text import Text

from trainer.plain import counted, plain

#: Seconds between two lines without a terminal to redraw.
PLAIN_SECONDS = 15.0


def time_to_go(seconds: float) -> str:
    """h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age(seconds: float) -> str:
    """How long ago, in its largest unit: 12 s, 5 min, 3 h, 2 d."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


class Bar:
    """Shows what is waited for, then files, bytes, speed and time to go; without a terminal every PLAIN_SECONDS."""

    def __init__(self, console: Console | None = None):
        # Beside the answer on stdout, which may be JSON.
        self.console = console or Console(stderr=True)
        self._what, self._done, self._before, self._total = "connecting", 0, 0, 0
        self._begun = self._printed = time.monotonic()
        self._status = Status(self._text(), console=self.console)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.pause()
        if kind is None and self._done:
            self.console.print(
                f"{decimal(self._done)} in {time_to_go(time.monotonic() - self._begun)}", highlight=False
            )

    def pause(self) -> None:
        """Leave the terminal to others."""
        self._status.stop()

    def waiting(self, reason: str) -> None:
        self._what = plain(reason)
        self._tell()

    def expect(self, files: int, size: int) -> None:
        """So many files and bytes are to come, beside those that came before."""
        if not self._total:
            self._begun = time.monotonic()
        self._what, self._before, self._total = counted(files, "file"), self._done, self._done + size
        self._tell()

    def reached(self, size: int) -> None:
        """So many of the bytes have come."""
        self._done = min(self._before + size, self._total)
        self._tell()

    def _tell(self) -> None:
        now, text = time.monotonic(), self._text()
        self._status.update(text)
        if not self.console.is_terminal and now - self._printed >= PLAIN_SECONDS:
            self._printed = now
            self.console.print(Text(f"… {text}"), soft_wrap=True)

    def _text(self) -> Text:
        took = time.monotonic() - self._begun
        told = self._what
        if self._total:
            told += f": {decimal(self._done)} of {decimal(self._total)}"
        if self._done and took:
            speed = self._done / took
            told += f", {decimal(int(speed))}/s, {time_to_go((self._total - self._done) / speed)} to go"
        return Text(f"{told} ({took:.0f} s)")
