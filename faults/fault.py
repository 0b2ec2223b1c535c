"""A fault: what it breaks, where it can be played, what the training must show, and what it showed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Place = Literal["processes", "node", "cloud"]
"""Network namespaces of this machine (lab.py), the local Kubernetes node (node.py), or any cluster that `trainyard
prove` brings up (cluster.py)."""
SAME_LOSS = 1e-4
"""fp32 sums over one, two or three workers differ by 5e-6 (bench/results/chaos.md). A training that skipped the samples
of step 100 of the laboratory's 240 ended with a validation loss that was 6e-4 off (2026-11-23)."""
PERIOD = 40
"""Steps between two checkpoints. A fault without notice may cost this many, and one or two in progress."""
HEADER = ("fault", "ended as expected", "steps lost", "s without a step", "exit codes")
"""The columns of Result.cells."""
_Found = TypeVar("_Found")


class Cannot(Exception):
    """The place lacks what a fault needs; the text says what."""


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
    play: Callable[[Any], Any]
    """Breaks the training of a place, and waits until it has recovered or ended. Returns the exit codes of the pods
    that are left at the end (processes) or that went (node), or a line of evidence (cloud)."""
    where: tuple[Place, ...]
    codes: tuple[int, ...] = (0,)
    """The allowed exit codes of the processes' pods that are left at the end."""
    steps_lost: int = 0
    """How many steps may be repeated."""
    seconds: float = 30
    """The longest allowed time without an optimizer step after the fault, on an otherwise idle machine; inf if nothing
    is to recover."""
    done: bool = True
    """Whether the training must end, with the loss of an undisturbed one."""


def fault(title: str, *where: Place, **must: Any) -> Callable[[Callable[[Any], Any]], Fault]:
    """Make a Fault of the function that plays it."""
    return lambda play: Fault(play.__name__.replace("_", "-"), title, play, where or ("processes",), **must)


@dataclass(frozen=True)
class Result:
    fault: Fault
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
        return self.seconds > self.fault.seconds

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.fault.title,
            self.problem or (f"yes, but slower than {self.fault.seconds:.0f} s" if self.slow else "yes"),
            str(self.steps_lost),
            number(self.seconds, ".1f"),
            " ".join("-" if code is None else str(code) for code in self.codes),
        )


def number(value: float, pattern: str) -> str:
    return format(value, pattern) if math.isfinite(value) else "-"


def judge(fault: Fault, lost: int, codes: list[int] | None = None, difference: float = 0.0) -> str:
    """Say what is wrong with the end of a training; empty: nothing."""
    if not abs(difference) <= SAME_LOSS:  # NaN is off, too
        return f"the loss is {difference:+.4f} off"
    if not set(codes or ()) <= set(fault.codes):
        return f"exit codes {codes}, expected {fault.codes}"
    return f"{lost} steps lost, {fault.steps_lost} allowed" if lost > fault.steps_lost else ""
