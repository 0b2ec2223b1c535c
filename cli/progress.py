"""The progress line of a training, from the trainer's log lines: on a terminal it is redrawn, in a log file it is
appended."""

from __future__ import annotations

import shlex
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: Seconds between two lines where nothing can be redrawn.
PLAIN_SECONDS = 10.0


class Board:
    """Shows what `JobWatch` observes."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self.validation_loss: float | None = None
        self._waiting = ""
        self._printed = 0.0
        self._progress: Progress | None = None
        if self.console.is_terminal:
            self._progress = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeElapsedColumn(),
                console=self.console,
            )
            self._task = self._progress.add_task("waiting", total=None, numbers="")

    def __enter__(self) -> Board:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def waiting(self, message: str) -> None:
        if message == self._waiting:
            return
        self._waiting = message
        if self._progress:
            self._progress.update(self._task, numbers=message)
        else:
            self.console.print(message, highlight=False)

    def line(self, pod: str, line: str) -> None:
        fields = parse_logfmt(line)
        if "validation_loss" in fields and "event" not in fields:
            self.validation_loss = float(fields["validation_loss"])
        if "event" in fields and fields["event"] != "done":
            self._say(pod, line)
        elif "loss" in fields:
            self._step(fields)
        elif "error" in line.lower() or "warning" in line.lower():
            self._say(pod, line)

    def _step(self, fields: dict[str, str]) -> None:
        step, steps = int(fields["step"]), int(fields["steps"])
        numbers = f"loss {float(fields['loss']):.3f}"
        if self.validation_loss is not None:
            numbers += f"  validation {self.validation_loss:.3f}"
        numbers += (
            f"  {float(fields['tokens_per_second']):,.0f} tokens/s  {time_to_go(float(fields['eta_seconds']))} to go"
        )
        if self._progress:
            self._progress.update(self._task, description="training", completed=step, total=steps, numbers=numbers)
        elif step == steps or time.monotonic() - self._printed > PLAIN_SECONDS:
            self._printed = time.monotonic()
            self.console.print(f"step {step}/{steps}  {numbers}", highlight=False)

    def _say(self, pod: str, line: str) -> None:
        self.console.print(f"{pod}: {line}", style="dim", markup=False, highlight=False)


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
