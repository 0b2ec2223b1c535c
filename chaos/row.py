"""One fault and how the training came out of it: what the laboratory's matrix and the rows of real pods share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

SAME_LOSS = 1e-4
"""fp32 sums over one, two or three workers drift 5e-6 apart (bench/results/chaos.md). Without the samples of step 100
of the laboratory's 240 the last validation loss was 6e-4 off (2026-11-23)."""
HEADER = ("fault", "ended as expected", "steps lost", "s without a step", "exit codes")
"""Of Result.cells."""
_Found = TypeVar("_Found")


class Expected(AssertionError):
    """What a row expected and did not see."""


def expect(met: bool, otherwise: str) -> None:
    if not met:
        raise Expected(otherwise)


def until(
    condition: Callable[[], _Found],
    seconds: float,
    what: str,
    told: Callable[[], object] = lambda: "",
    pause: float = 0.1,
) -> _Found:
    """What a condition returns once it holds; `told` adds to the error what there is instead, or raises its own."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        instead = told()
        if time.monotonic() > end:
            raise Expected(f"{what}: not within {seconds:.0f} s{f'; {instead}' if instead else ''}")
        time.sleep(pause)
    return found


@dataclass(frozen=True)
class Row:
    name: str
    fault: str
    play: Callable[..., Any]
    """Breaks something."""
    codes: tuple[int, ...] = (0,)
    """What the exit codes of the pods that were there at the end may be."""
    steps_lost: int = 0
    """How many steps may be made again."""
    seconds: float = 30
    """Without an optimizer step after the fault, at most, on a machine that does nothing else; inf where nothing is to
    recover."""
    done: bool = True
    """Whether the training ends, with the loss of an undisturbed one."""


@dataclass(frozen=True)
class Result:
    row: Row
    problem: str
    """Empty when all was as expected."""
    steps_lost: int = 0
    seconds: float = math.nan
    """The longest pause between two steps after the fault."""
    codes: tuple[int | None, ...] = ()
    rounds: int = 0
    difference: float = math.nan

    @property
    def slow(self) -> bool:
        """Whether it took longer than it may on a machine that does nothing else: told, but no test fails of it."""
        return self.seconds > self.row.seconds

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.row.fault,
            self.problem or (f"yes, but slower than {self.row.seconds:.0f} s" if self.slow else "yes"),
            str(self.steps_lost),
            number(self.seconds, ".1f"),
            " ".join("-" if code is None else str(code) for code in self.codes),
        )


def number(value: float, pattern: str) -> str:
    return format(value, pattern) if math.isfinite(value) else "-"


def judge(row: Row, lost: int, codes: list[int] | None = None, difference: float = 0.0) -> str:
    """What is wrong with the end of a training; empty: nothing."""
    if not abs(difference) <= SAME_LOSS:  # a loss that is no number is off, too
        return f"the loss is {difference:+.4f} off"
    if not set(codes or ()) <= set(row.codes):
        return f"exit codes {codes}, expected {row.codes}"
    return f"{lost} steps lost, {row.steps_lost} allowed" if lost > row.steps_lost else ""
