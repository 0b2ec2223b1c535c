"""Progress lines, redrawn on a terminal and appended in a log file, and how figures and durations are told."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from rich import filesize
from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    Task,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from trainer.plain import counted, plain

#: Seconds between two lines without a terminal to redraw.
PLAIN_SECONDS = 15.0
#: Characters of a file name, which leave room for the figures.
NAME_WIDTH = 32


class Bytes(BarColumn):
    """A bar, once it is known that there are bytes to come."""

    def render(self, task: Task) -> Any:
        return super().render(task) if task.total else Text()


class Flow(Progress):
    """A progress line whose parts go on in the next line where the terminal is narrow: none is cut or left out.

    Further parts are in the task's field `parts`.
    """

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            cells = [column if isinstance(column, str) else column(task) for column in self.columns]
            cells += [Text(part) for part in task.fields.get("parts", ())]
            yield Columns([cell for cell in cells if not isinstance(cell, Text) or cell], padding=(0, 2))


def described(known: Mapping[str, Any]) -> list[str]:
    """Loss, validation, speed and time to go of a record's figures, those that are known."""
    validation = f"validation {known['validation_loss']:.3f}" if "validation_loss" in known else ""
    validation += f" ({known['bits_per_byte']:.3f} bits/byte)" if validation and "bits_per_byte" in known else ""
    validation += f" (F1 {known['f1']:.1f})" if validation and "f1" in known else ""
    parts = [
        f"loss {known['loss']:.3f}" if "loss" in known else "",
        validation,
        f"{known['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in known else "",
        f"{time_to_go(known['eta_seconds'])} to go" if "eta_seconds" in known else "",
    ]
    return list(filter(None, parts))


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
    """Shows a transfer: files, bytes, speed, time to go; without a terminal, a line every PLAIN_SECONDS."""

    def __init__(self, console: Console | None = None):
        description = TextColumn("{task.description}", markup=False)
        columns = (description, Bytes(24), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        # Beside the answer on stdout, which may be JSON.
        self._progress = Flow(*columns, console=console or Console(stderr=True))
        self._task = self._progress.add_task("connecting", total=None)
        self._printed, self._before = time.monotonic(), 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            total = self._progress.tasks[0].completed
            self._progress.update(self._task, description="done", total=total, completed=total)
            self._progress.live.transient = not total  # no file came or went
        self._progress.stop()

    def pause(self) -> None:
        """Leave the terminal to others."""
        self._progress.live.transient = True
        self._progress.stop()

    def waiting(self, reason: str) -> None:
        self._progress.update(self._task, description=_short(reason))
        self._tell()

    def expect(self, files: int, size: int) -> None:
        """So many files and bytes are to come, beside those that came before."""
        self._before = self._progress.tasks[0].completed
        self._progress.update(self._task, description=counted(files, "file"), total=self._before + size)

    def reached(self, size: int) -> None:
        """So many of the bytes have come."""
        total = self._progress.tasks[0].total or 0.0
        self._progress.update(self._task, completed=min(self._before + size, total))
        self._tell()

    def _tell(self) -> None:
        console, task = self._progress.console, self._progress.tasks[0]
        if console.is_terminal or time.monotonic() - self._printed < PLAIN_SECONDS:
            return
        self._printed = time.monotonic()
        of = f" of {filesize.decimal(int(task.total))}" if task.total else ""
        size = f": {filesize.decimal(int(task.completed))}{of}" if of or task.completed else ""
        console.print(
            f"… {task.description}{size} ({task.elapsed or 0:.0f} s)", markup=False, highlight=False, soft_wrap=True
        )


def _short(text: str) -> str:
    """Cut to NAME_WIDTH."""
    text = plain(text)
    return text if len(text) <= NAME_WIDTH else f"…{text[1 - NAME_WIDTH :]}"
