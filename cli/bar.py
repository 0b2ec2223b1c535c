"""The bar of a transfer: files, bytes, speed, time to go."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

NAME_WIDTH = 32


class Bar:
    """What cli/transfer.py reports to. Without a terminal it is one line at the end."""

    def __init__(self, console: Console | None = None):
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        texts = [TextColumn(column) if isinstance(column, str) else column for column in columns]
        self._progress = Progress(*texts, console=console)
        self._task = self._progress.add_task("connecting", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            total = self._progress.tasks[0].completed
            self._progress.update(self._task, description="done", total=total, completed=total)
        self._progress.stop()

    def waiting(self, reason: str) -> None:
        self._progress.update(self._task, description=_short(reason))

    def total(self, files: int, size: int | None) -> None:
        self._progress.update(self._task, description=f"{files} files", total=size)

    def file(self, name: str) -> None:
        self._progress.update(self._task, description=_short(name))

    def advance(self, size: int) -> None:
        self._progress.advance(self._task, size)


def _short(text: str) -> str:
    """At the length that leaves room for the figures; brackets would be rich's markup."""
    text = text.replace("[", "(").replace("]", ")")
    return text if len(text) <= NAME_WIDTH else f"…{text[1 - NAME_WIDTH :]}"
