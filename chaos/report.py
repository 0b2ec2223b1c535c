"""Plays rows and judges them."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.lab import Expected, Lab, find_etcd, make_dataset
from chaos.rows import Row

SAME_LOSS = 5e-3
"""fp32 sums over one, two or three workers drift apart this far; a lost or doubled step shows as more."""
HEADER = (
    "fault",
    "ended as expected",
    "steps lost",
    "s without a step",
    "new rounds",
    "exit codes",
    "loss - undisturbed",
)


@dataclass(frozen=True)
class Result:
    row: Row
    problem: str
    """Empty when all was as expected."""
    steps_lost: int = 0
    seconds: float = math.nan
    rounds: int = 0
    codes: tuple[int, ...] = ()
    difference: float = math.nan

    @property
    def slow(self) -> bool:
        """Whether it took longer than it may on a machine that does nothing else: told, but no test fails of it."""
        return self.seconds > self.row.seconds

    @property
    def cells(self) -> tuple[str, ...]:
        def number(value: float, pattern: str) -> str:
            return "-" if math.isnan(value) or math.isinf(value) else format(value, pattern)

        return (
            self.row.fault,
            self.problem or (f"yes, but slower than {self.row.seconds:.0f} s" if self.slow else "yes"),
            str(self.steps_lost),
            number(self.seconds, ".1f"),
            str(self.rounds),
            " ".join(map(str, self.codes)),
            number(self.difference, "+.5f"),
        )


class Matrix:
    """Rows over one data set, each held to the loss of an undisturbed run of the same settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dataset, self._etcd = make_dataset(folder / "dataset"), find_etcd()
        self._undisturbed: dict[int, float] = {}

    def play(self, row: Row) -> Result:
        with Lab(self._folder / row.name, self._dataset, self._etcd) as lab:
            problem, codes, done, undisturbed = "", list[int](), dict[str, Any](), math.nan
            try:
                codes = row.play(lab)
                done = lab.done() if row.done else {}
                undisturbed = self._reference(done["step"]) if row.done else math.nan
            except (Expected, LookupError) as error:
                problem = str(error).splitlines()[0]
            journal = lab.journal()
            for each in lab.journals.values():
                each.end()
            stalls = [journal.longest_pause(fault) for fault in lab.faults]
            seconds = max(stalls, default=math.nan) if math.isfinite(row.seconds) else math.nan
            rounds = max([pod.round for pod in lab.pods], default=0)
            difference = math.nan
            if not problem and row.done:
                difference = done["validation_loss"] - undisturbed
                if abs(difference) > SAME_LOSS:
                    problem = f"the loss is {difference:+.4f} off"
            if not problem and not set(codes) <= set(row.codes):
                problem = f"exit codes {codes}, expected {row.codes}"
            if not problem and journal.lost > row.steps_lost:
                problem = f"{journal.lost} steps lost, {row.steps_lost} allowed"
            return Result(row, problem, journal.lost, seconds, max(0, rounds - 1), tuple(codes), difference)

    def _reference(self, steps: int) -> float:
        if steps not in self._undisturbed:
            with Lab(self._folder / f"undisturbed-{steps}", self._dataset, self._etcd) as lab:
                lab.ended(lab.start(1, steps=steps), 600)
                self._undisturbed[steps] = lab.done()["validation_loss"]
        return self._undisturbed[steps]


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="trainyard-chaos-")
