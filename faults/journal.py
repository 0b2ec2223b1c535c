"""A run's steps, read from metrics.jsonl while it is written: when each was made, and how many were lost."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import threading
from pathlib import Path


class Journal:
    """Polls the file, because a resumed run truncates it to its checkpoint, and the lost steps are gone from it."""

    def __init__(self, run: Path) -> None:
        self._path = run / "metrics.jsonl"
        self._made: set[tuple[float, int]] = set()
        """Time and number of all steps."""
        self._kept: set[tuple[float, int]] = set()
        """Those that are in the file."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(5)

    @property
    def step(self) -> int:
        return max((step for _, step in self._kept), default=0)

    @property
    def lost(self) -> int:
        """Steps that a resume cut off, to be repeated."""
        return len(self._made - self._kept)

    def made_since(self, begin: float) -> int:
        """Count the steps made after that time, repeated ones included."""
        return sum(moment > begin for moment, _ in self._made)

    def longest_pause(self, fault: float) -> float:
        """Return the longest pause between two steps after a fault, in seconds."""
        times = sorted(moment for moment, _ in self._made)
        pauses = [after - max(before, fault) for before, after in itertools.pairwise(times) if after > fault]
        return max(pauses, default=0.0)

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self._look()
        self._look()

    def _look(self) -> None:
        found = set()
        with contextlib.suppress(OSError):
            found = {each for line in self._path.read_text("utf-8").splitlines() if (each := _step(line))}
        if found:  # the file is not there for a moment between the old one and the new one
            self._kept = found
            self._made = self._made | found


@functools.cache  # the file is read ten times a second
def _step(line: str) -> tuple[float, int] | None:
    """Time and number of the step of a line; None for other lines, and for the last one while it is half-written."""
    with contextlib.suppress(ValueError):
        entry = json.loads(line)
        return (entry["time"], entry["step"]) if "loss" in entry else None
    return None
