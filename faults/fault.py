"""A fault of the laboratory: what it breaks, what the training must show after it, and what it showed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

SAME_LOSS = 1e-4
"""fp32 sums over one, two or three workers differ by 5e-6 (bench/results/chaos.md). A training that skipped the samples
of step 100 of the laboratory's 240 ended with a validation loss that was 6e-4 off (2026-11-23)."""
PERIOD = 40
"""Steps between two checkpoints. A fault without notice may cost this many, and one or two in progress."""
COLUMNS = ("fault", "ended as expected", "steps lost", "s without a step", "new rounds", "loss - undisturbed")
_Found = TypeVar("_Found")


class Cannot(Exception):
    """What a fault needs is not there; the text says what."""


class Expected(AssertionError):
    """An expectation was not met."""


def expect(met: bool, otherwise: str) -> None:
    if not met:
        raise Expected(otherwise)


def until(
    condition: Callable[[], _Found],
    seconds: float,
    what: str,
    state: Callable[[], object] = lambda: "",
    pause: float = 0.1,
) -> _Found:
    """Wait until a condition holds; return its value. `state` adds the current state to the error, or raises its own.

    Raises:
        Expected: the condition does not hold within `seconds`.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        instead = state()
        if time.monotonic() > end:
            raise Expected(f"{what}: not within {seconds:.0f} s{f'; {instead}' if instead else ''}")
        time.sleep(pause)
    return found


@dataclass(frozen=True)
class Fault:
    name: str
    title: str
    play: Callable[[Any], list[int]]
    """Breaks the training of a Lab and waits for its end. Returns the exit codes of the pods that are left."""
    steps_lost: int
    """How many steps may be repeated."""
    seconds: float
    """The longest allowed time without an optimizer step after the fault, on an otherwise idle machine."""


def fault(title: str, steps_lost: int = PERIOD + 2, seconds: float = 30) -> Callable[[Callable[[Any], Any]], Fault]:
    """Make a Fault of the function that plays it."""
    return lambda play: Fault(play.__name__.replace("_", "-"), title, play, steps_lost, seconds)


@dataclass(frozen=True)
class Result:
    fault: Fault
    problem: str
    """Empty if all was as expected."""
    steps_lost: int = 0
    seconds: float = math.nan
    """The longest pause between two steps after the fault."""
    rounds: int = 0
    difference: float = math.nan

    @property
    def slow(self) -> bool:
        """Whether recovery took longer than allowed on an idle machine. It is reported, but fails no test."""
        return self.seconds > self.fault.seconds

    @property
    def cells(self) -> tuple[str, ...]:
        """Of COLUMNS."""
        return (
            self.fault.title,
            self.problem or (f"yes, but slower than {self.fault.seconds:.0f} s" if self.slow else "yes"),
            str(self.steps_lost),
            f"{self.seconds:.1f}",
            str(self.rounds),
            f"{self.difference:+.5f}",
        )


def judge(fault: Fault, lost: int, codes: list[int], difference: float) -> str:
    """Say what is wrong with the end of a training; empty: nothing."""
    if not abs(difference) <= SAME_LOSS:  # NaN is off, too
        return f"the loss is {difference:+.4f} off"
    if any(codes):
        return f"exit codes {codes}"
    return f"{lost} steps lost, {fault.steps_lost} allowed" if lost > fault.steps_lost else ""
