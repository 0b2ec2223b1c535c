"""Prints each phase and how long it took, to find out why a run is slow."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.text import Text

# Seconds of silence after which a log file gets a progress line. On a terminal, the last line is updated each TICK.
PROGRESS_INTERVAL = 15.0
TICK = 1.0


class Pace:
    """How far a build is, of the whole, and how long the rest takes at the pace so far: revised at every look."""

    def __init__(self, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._unit, self._clock, self._first = unit, clock, (clock(), -1)

    def __call__(self, count: int, total: int) -> str:
        now, (began, first) = self._clock(), self._first
        if first < 0:  # what a cache has comes at once
            self._first = (now, count)
        done, text = count - max(first, 0), f"{count:,} of {total:,} {self._unit}"
        if first < 0 or now - began < PROGRESS_INTERVAL or done <= 0 or count >= total:
            return text
        left = (now - began) * (total - count) / done
        return f"{text}, about {left / 60:.0f} min left" if left >= 90 else f"{text}, about {left:.0f} s left"


class Phases:
    """The phases of one command, which may overlap. Lines are printed whole, one at a time.

    While any phase runs, one status line lists all that do.
    """

    def __init__(self, quiet_below: float = 0.3, console: Console | None = None) -> None:
        self.quiet_below = quiet_below
        self._lock, self._entry = threading.Lock(), threading.Lock()
        self._console = console or Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._began = self._said = time.monotonic()
        self._running: dict[str, str] = {}
        """Name of a running phase -> its progress."""
        self._idle = threading.Event()

    def say(self, line: str) -> None:
        with self._lock:
            self._said = time.monotonic()
            self._console.print(line, markup=False)

    @contextmanager
    def phase(self, name: str) -> Iterator[Callable[[str], None]]:
        """Time the body. Yields a function that takes the progress as text."""
        began = time.time()
        self._enter(name)
        try:
            yield lambda text: self._note(name, text)
        except BaseException as error:
            self._leave(name)
            # Print the error at once: a concurrent phase may take minutes to end.
            self.say(f"  ✗ {name} ({time.time() - began:.1f} s): {error or type(error).__name__}")
            raise
        self._leave(name)
        if (took := time.time() - began) >= self.quiet_below:
            self.say(f"  ✓ {name} ({took:.1f} s)")

    def _enter(self, name: str) -> None:
        with self._entry:
            first = not self._running
            with self._lock:
                self._running[name] = ""
            if first:
                self._idle.clear()
                self._teller = threading.Thread(target=self._tell, daemon=True)
                self._teller.start()

    def _note(self, name: str, text: str) -> None:
        with self._lock:
            if name in self._running:  # a late report may come after the phase has ended
                self._running[name] = text

    def _leave(self, name: str) -> None:
        with self._entry:
            with self._lock:
                del self._running[name]
            if not self._running:
                self._idle.set()
                self._teller.join()  # the status line is gone before anyone else prints

    def _tell(self) -> None:
        """Show the running phases until none is left. The first TICK stays silent."""
        if self._idle.wait(TICK):
            return
        if not self._console.is_terminal:
            while not self._idle.wait(TICK):
                if time.monotonic() - self._said >= PROGRESS_INTERVAL:
                    self.say(f"  … {self._now()}")
            return
        with Status(self._now(), console=self._console, refresh_per_second=4) as status:
            while not self._idle.wait(TICK):
                status.update(Text(self._now(), no_wrap=True, overflow="ellipsis"))

    def _now(self) -> str:
        with self._lock:
            running = [f"{name}: {text}" if text else name for name, text in self._running.items()]
        return f"{time.monotonic() - self._began:.0f} s: {', '.join(running)}"
