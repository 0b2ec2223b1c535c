"""Says what is being done and how long it took, and keeps the times, so that "it is slow" has a place to start from."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

# A build prints how far it is this often, in seconds: seldom enough for a log file, often enough for a person.
PROGRESS_INTERVAL = 15.0
# Phases shorter than this, in seconds, found nothing to do and are left out of the table.
SHOWN = 0.1


@dataclass(frozen=True)
class Timing:
    """One phase: when it began (seconds since the epoch) and how long it took (seconds)."""

    name: str
    began: float
    seconds: float


class Phases:
    """The phases of one command, which may overlap; lines are printed whole, one at a time."""

    def __init__(self, timings: Path, quiet_below: float = 0.3) -> None:
        self.timings = timings
        self.quiet_below = quiet_below
        self.done: list[Timing] = []
        self._lock = threading.Lock()
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    def say(self, line: str) -> None:
        with self._lock:
            self._console.print(line, markup=False)

    @contextmanager
    def phase(self, name: str) -> Iterator[Callable[[str], None]]:
        """Times its body. What it yields prints a line of progress, at most one every PROGRESS_INTERVAL."""
        began, last = time.time(), time.monotonic()

        def progress(text: str) -> None:
            nonlocal last
            if time.monotonic() - last >= PROGRESS_INTERVAL:
                last = time.monotonic()
                self.say(f"  … {name}: {text} ({time.time() - began:.0f} s)")

        try:
            yield progress
        except BaseException as error:
            # Said at once: another phase that runs beside this one may take minutes to end.
            self.say(f"  ✗ {name} ({time.time() - began:.1f} s): {error or type(error).__name__}")
            raise
        timing = Timing(name, began, round(time.time() - began, 2))
        with self._lock:
            self.done.append(timing)
        if timing.seconds >= self.quiet_below:
            self.say(f"  ✓ {name} ({timing.seconds:.1f} s)")

    def save(self) -> None:
        """Begins the timings file anew: a table of phases of different days would say nothing."""
        write(self.timings, self.done)


def add(path: Path, timing: Timing) -> None:
    """Adds a phase that ran after those in the file, or again."""
    write(path, [*(old for old in load(path) if old.name != timing.name), timing])


def load(path: Path) -> list[Timing]:
    """The phases of a timings file; nothing when there is none or it was cut short."""
    try:
        return [Timing(**entry) for entry in json.loads(path.read_text())["phases"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def write(path: Path, phases: list[Timing]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(phases, key=lambda timing: timing.began)
    path.write_text(json.dumps({"phases": [asdict(timing) for timing in ordered]}, indent=1) + "\n")


def table(phases: list[Timing]) -> Table:
    """The phases in the order they began, with the moment they began, because some overlap."""
    first = min((timing.began for timing in phases), default=0.0)
    result = Table(title="Phases (they overlap)", title_justify="left")
    result.add_column("phase")
    result.add_column("began at, s", justify="right")
    result.add_column("took, s", justify="right")
    for timing in sorted(phases, key=lambda timing: timing.began):
        if timing.seconds < SHOWN:
            continue
        result.add_row(timing.name, f"{timing.began - first:.1f}", f"{timing.seconds:.1f}")
    return result
