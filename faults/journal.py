"""A run's steps, read from metrics.jsonl while it is written: when each was made, and how many were lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from pathlib import Path


class Journal:
    """Polls the file, because a resumed run truncates it to its checkpoint, and the lost steps are gone from it."""

    def __init__(self, run: Path) -> None:
        self._path = run / "metrics.jsonl"
        self._steps: list[tuple[float, int]] = []
        self._current: list[tuple[float, int]] = []
        self.lost = 0
        """Steps that a resume cut off, to be repeated."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(5)

    @property
    def step(self) -> int:
        return self._current[-1][1] if self._current else 0

    def made_since(self, begin: float) -> int:
        """Count the steps made after that time, repeated ones included."""
        return sum(moment > begin for moment, _ in self._steps)

    def longest_pause(self, fault: float) -> float:
        """Return the longest pause between two steps after a fault, in seconds."""
        times = sorted(moment for moment, _ in self._steps)
        pauses = [after - max(before, fault) for before, after in itertools.pairwise(times) if after > fault]
        return max(pauses, default=0.0)

    def _watch(self) -> None:
        while not self._ended.is_set():
            self._look()
            time.sleep(0.1)
        self._look()

    def _look(self) -> None:
        found: list[tuple[float, int]] = []
        with contextlib.suppress(OSError):
            for line in self._path.read_text("utf-8").splitlines():
                with contextlib.suppress(ValueError):  # the last line may be half-written
                    entry = json.loads(line)
                    if "loss" in entry:
                        found.append((entry["time"], entry["step"]))
        if not found and self._current:
            return  # read between the removal of the old file and the new one
        known = set(self._steps)
        self._steps += [entry for entry in found if entry not in known]
        gone = set(self._current) - set(found)
        self.lost += len(gone)
        self._current = found
