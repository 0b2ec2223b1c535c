"""A fault and its result, shared by the laboratory's matrix and the rows on real pods."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

SAME_LOSS = 1e-4
"""fp32 sums over one, two or three workers differ by 5e-6 (bench/results/chaos.md). A training that skipped the samples
of step 100 of the laboratory's 240 ended with a validation loss that was 6e-4 off (2026-11-23)."""
HEADER = ("fault", "ended as expected", "steps lost", "s without a step", "exit codes")
"""The columns of Result.cells."""
_Found = TypeVar("_Found")


class Expected(AssertionError):
    """A row's expectation was not met."""


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
    """Wait until a condition holds; return its value. `told` adds the current state to the error, or raises its own.

    Raises:
        Expected: the condition does not hold within `seconds`.
    """
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
    """Breaks the training."""
    codes: tuple[int, ...] = (0,)
    """The allowed exit codes of the pods that are left at the end."""
    steps_lost: int = 0
    """How many steps may be repeated."""
    seconds: float = 30
    """The longest allowed time without an optimizer step after the fault, on an otherwise idle machine; inf if nothing
    is to recover."""
    done: bool = True
    """Whether the training must end, with the loss of an undisturbed one."""


@dataclass(frozen=True)
class Result:
    row: Row
    problem: str
    """Empty if all was as expected."""
    steps_lost: int = 0
    seconds: float = math.nan
    """The longest pause between two steps after the fault."""
    codes: tuple[int | None, ...] = ()
    rounds: int = 0
    difference: float = math.nan

    @property
    def slow(self) -> bool:
        """Whether recovery took longer than allowed on an idle machine. It is reported, but fails no test."""
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
    """Say what is wrong with the end of a training; empty: nothing."""
    if not abs(difference) <= SAME_LOSS:  # NaN is off, too
        return f"the loss is {difference:+.4f} off"
    if not set(codes or ()) <= set(row.codes):
        return f"exit codes {codes}, expected {row.codes}"
    return f"{lost} steps lost, {row.steps_lost} allowed" if lost > row.steps_lost else ""
