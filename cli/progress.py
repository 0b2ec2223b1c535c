"""Progress lines of a training and of a transfer: redrawn on a terminal, appended in a log file."""

from __future__ import annotations

import re
import shlex
import time
from collections import deque
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
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from trainer.plain import counted, plain
from trainer.record import KEPT, Record, of_line

#: Seconds between two lines without a terminal to redraw.
PLAIN_SECONDS = 15.0
#: Characters of a file name, which leave room for the figures.
NAME_WIDTH = 32
#: Characters of a line that is read: the trainer's lines have some hundreds, and a hostile one may be a gigabyte.
LONGEST = 16_384


#: Phases of a training that log nothing for a while.
STARTING = "the pods start Python and load the model"
COMPILING = "compiling the model; the first time takes a minute or more"
FIRST_STEPS = "the first evaluation and the first steps"

#: Events that the record tells, or that say nothing to a person.
RECORDED = ("checkpoint", "done", "new_round", "resume", "round", "workers_ended")

#: A library's own warning: Python's, or torch's from C++ ([W1128 ...) and from its logger (W1128 ...).
WARNING = re.compile(r"warn|^(\[rank\d+\]: ?)?\[?W\d{4} ", re.IGNORECASE)


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


class Board:
    """Shows the progress of a training from its log lines."""

    def __init__(self, console: Console | None = None, redraw: bool = True, raw: bool = False):
        """`raw`: events as the trainer logs them."""
        self.console, self._raw = console or Console(), raw
        self._told: deque[str] = deque(maxlen=2 * KEPT)
        """What events and incidents said: all pods say the same of a round, and a record repeats its incidents."""
        self._warnings = 0
        """Lines in which a library warns: torch alone writes dozens on a loaded machine."""
        self.record = Record()
        """The newest that was shown."""
        self.doing = STARTING
        self.shown = ""
        self._since = time.monotonic()
        """When the shown phase began."""
        self._printed = self._due = time.monotonic()
        self._parts: tuple[str, ...] = ()
        """Figures of the newest step."""
        self._progress: Progress | None = None
        if redraw and self.console.is_terminal:
            self._progress = Flow(
                TextColumn("[bold]{task.description}"), BarColumn(24), TimeElapsedColumn(), console=self.console
            )
            self._task = self._progress.add_task("waiting", total=None, parts=())

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()
        if self._warnings:
            self.print(f"{counted(self._warnings, 'warning')} of libraries; `trainyard logs` has the text", "dim")

    def look(self, waiting: str) -> None:
        """Show that it goes on; call it each second. `waiting`: why no pod runs; empty once one does."""
        now = time.monotonic()
        if waiting:
            self.doing, self._parts = STARTING, ()
        if (doing := plain(waiting or self.doing)) != self.shown:
            self.shown, self._since = doing, now
            if self._progress:
                self._progress.update(self._task, parts=(doing,))
            else:
                self.print(doing)
        elif self._progress and self._parts and now - self._since >= PLAIN_SECONDS:
            self._progress.update(self._task, parts=(*self._parts, f"({time_to_go(now - self._since)} ago)"))
        elif not self._progress and now - max(self._printed, self._since) >= PLAIN_SECONDS:
            self.print(f"… {doing} ({now - self._since:.0f} s)")

    def print(self, text: str, style: str | None = None) -> None:
        """Print one line, however long: a log is not wrapped."""
        self._printed = time.monotonic()
        self.console.print(
            plain(text)[:LONGEST], style=style, markup=False, highlight=False, soft_wrap=not self._progress
        )

    def line(self, pod: str, line: str) -> None:
        if (found := of_line(line)) is not None:
            self._show(found)
            return
        fields = parse_logfmt(line)
        if fields.get("event") in ("compile", "compiled"):
            self.doing = COMPILING if fields.get("compile") == "true" else FIRST_STEPS
        event = fields.pop("event", "")
        if event and self._raw:
            self._say(pod, line)
        elif event:
            said = ", ".join(f"{key} {value}" for key, value in fields.items())
            self.tell("" if event in RECORDED else f"{event.replace('_', ' ')}: {said}")
        elif not fields and WARNING.search(line) and not self._raw:
            self._warnings += 1
        elif not fields and ("error" in line.lower() or WARNING.search(line)):
            self._say(pod, line)

    def _show(self, found: Record) -> None:
        """Show what is new in a record."""
        if found.age() < self.record.age():
            return  # of a pod whose log is read late
        before, self.record, known = self.record, found, found.figures
        for each in found.incidents:
            self.tell(f"worker {each.worker}: {each.cause}" if each.worker else each.cause)
        if found.round != before.round:
            size = known.get("world_size", 0)
            begins = f"round {found.round} begins with {counted(size, 'process', 'processes')}"
            self.tell(f"{begins}, resuming from step {found.checkpoint}" if found.checkpoint else begins)
        elif found.checkpoint != before.checkpoint:
            self.tell(f"checkpoint of step {found.checkpoint} saved")
        new = (found.round, found.times.get("loss")) != (before.round, before.times.get("loss"))
        if new and known.keys() >= {"loss", "step", "steps", "tokens_per_second", "eta_seconds"}:
            self._step(known)

    def _step(self, known: dict[str, Any]) -> None:
        step, steps = known["step"], known["steps"]
        *parts, to_go = described(known)
        self.doing = self.shown = f"step {step}/{steps} is the newest"
        self._since = time.monotonic()
        if self._progress:
            self._parts = (to_go, *parts)
            self._progress.update(
                self._task, description=f"step {step}/{steps}", completed=step, total=steps, parts=self._parts
            )
        elif step == steps or self._since >= self._due:
            self.print(f"step {step}/{steps}  {'  '.join((*parts, to_go))}")
            self._due = self._since + PLAIN_SECONDS

    def tell(self, text: str) -> None:
        """Print an event, unless it was told already."""
        if text and text not in self._told:
            self._told.append(text)
            self.print(text, "dim")

    def _say(self, pod: str, line: str) -> None:
        self.print(f"{pod}: {line}", "dim")


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


def parse_logfmt(line: str) -> dict[str, str]:
    """The `key=value` pairs of a line; empty when it is not one of the trainer's."""
    if len(line) > LONGEST:
        return {}
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
        self._printed = time.monotonic()

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
        total = (self._progress.tasks[0].total or 0) + size
        self._progress.update(self._task, description=counted(files, "file"), total=total)

    def advance(self, size: int) -> None:
        self._progress.advance(self._task, size)
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
