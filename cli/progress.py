"""Progress lines of a training and of a transfer: redrawn on a terminal, appended in a log file."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

#: Seconds between two lines without a terminal to redraw.
PLAIN_SECONDS = 15.0
#: Characters of a file name, which leave room for the figures.
NAME_WIDTH = 32


#: Phases of a training that log nothing for a while.
STARTING = "the pods start Python and load the model"
COMPILING = "compiling the model; the first time takes a minute or more"
FIRST_STEPS = "the first evaluation and the first steps"


class Board:
    """Shows the progress of a training from its log lines."""

    def __init__(self, console: Console | None = None, redraw: bool = True):
        self.console = console or Console()
        self.validation: str = ""
        self.doing = STARTING
        self.shown = ""
        self._since = time.monotonic()
        """When the shown phase began."""
        self._printed = self._due = time.monotonic()
        self._progress: Progress | None = None
        if redraw and self.console.is_terminal:
            self._progress = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}", markup=False),
                TimeElapsedColumn(),
                console=self.console,
            )
            self._task = self._progress.add_task("waiting", total=None, numbers="")

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def look(self, waiting: str) -> None:
        """Show that it goes on; call it each second. `waiting`: why no pod runs; empty once one does."""
        now = time.monotonic()
        if waiting:
            self.doing = STARTING
        if (doing := waiting or self.doing) != self.shown:
            self.shown, self._since = doing, now
            if self._progress:
                self._progress.update(self._task, numbers=doing)
            else:
                self.print(doing)
        elif not self._progress and now - max(self._printed, self._since) >= PLAIN_SECONDS:
            self.print(f"… {doing} ({now - self._since:.0f} s)")

    def print(self, text: str, style: str | None = None) -> None:
        """Print one line, however long: a log is not wrapped."""
        self._printed = time.monotonic()
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=not self._progress)

    def line(self, pod: str, line: str) -> None:
        fields = parse_logfmt(line)
        if fields.get("event") in ("compile", "compiled"):
            self.doing = COMPILING if fields.get("compile") == "true" else FIRST_STEPS
        if "validation_loss" in fields and "event" not in fields:
            self.validation = "  " + validation_text(fields)
        if "event" in fields and fields["event"] != "done":
            self._say(pod, line)
        elif "loss" in fields:
            self._step(fields)
        elif "error" in line.lower() or "warning" in line.lower():
            self._say(pod, line)

    def _step(self, fields: dict[str, str]) -> None:
        step, steps = int(fields["step"]), int(fields["steps"])
        numbers = f"loss {float(fields['loss']):.3f}{self.validation}"
        numbers += (
            f"  {float(fields['tokens_per_second']):,.0f} tokens/s  {time_to_go(float(fields['eta_seconds']))} to go"
        )
        self.doing = self.shown = f"step {step}/{steps} is the newest"
        self._since = time.monotonic()
        if self._progress:
            self._progress.update(self._task, description="training", completed=step, total=steps, numbers=numbers)
        elif step == steps or self._since >= self._due:
            self.print(f"step {step}/{steps}  {numbers}")
            self._due = self._since + PLAIN_SECONDS

    def _say(self, pod: str, line: str) -> None:
        self.print(f"{pod}: {line}", "dim")


def validation_text(figures: Mapping[str, Any]) -> str:
    text = f"validation {float(figures['validation_loss']):.3f}"
    text += f" ({float(figures['bits_per_byte']):.3f} bits/byte)" if figures.get("bits_per_byte") is not None else ""
    return text + (f" (F1 {float(figures['f1']):.1f})" if figures.get("f1") is not None else "")


def parse_logfmt(line: str) -> dict[str, str]:
    """The `key=value` pairs of a line; empty when it is not one of the trainer's."""
    try:
        words = shlex.split(line)
    except ValueError:
        return {}
    pairs = [word.partition("=") for word in words]
    if not pairs or not all(separator for _, separator, _ in pairs):
        return {}
    return {key: value for key, _, value in pairs}


def time_to_go(seconds: float) -> str:
    """h:mm:ss, or m:ss below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Bar:
    """Shows a transfer: files, bytes, speed, time to go; without a terminal, a line every PLAIN_SECONDS."""

    def __init__(self, console: Console | None = None):
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        texts = [TextColumn(column) if isinstance(column, str) else column for column in columns]
        self._progress = Progress(*texts, console=console)
        self._task = self._progress.add_task("connecting", total=None)
        self._printed = time.monotonic()

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
        self._tell()

    def total(self, files: int, size: int | None) -> None:
        self._progress.update(self._task, description=f"{files} files", total=size)

    def file(self, name: str) -> None:
        self._progress.update(self._task, description=_short(name))

    def advance(self, size: int) -> None:
        self._progress.advance(self._task, size)
        self._tell()

    def _tell(self) -> None:
        console, task = self._progress.console, self._progress.tasks[0]
        if console.is_terminal or time.monotonic() - self._printed < PLAIN_SECONDS:
            return
        self._printed = time.monotonic()
        of = f" of {task.total / 1e6:,.0f}" if task.total else ""
        size = f": {task.completed / 1e6:,.0f}{of} MB" if of or task.completed else ""
        console.print(f"… {task.description}{size} ({task.elapsed or 0:.0f} s)", highlight=False, soft_wrap=True)


def _short(text: str) -> str:
    """Cut to NAME_WIDTH; brackets would be rich's markup."""
    text = text.replace("[", "(").replace("]", ")")
    return text if len(text) <= NAME_WIDTH else f"…{text[1 - NAME_WIDTH :]}"
