"""What a fault expects of a training, and how it waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

SAME_LOSS = 1e-4
"""fp32 sums over one, two or three workers differ by 5e-6 (bench/results/chaos.md). A training that skipped the samples
of step 100 of the laboratory's 240 ended with a validation loss that was 6e-4 off (2026-11-23)."""
PERIOD = 40
"""Steps between two checkpoints. A fault without notice may cost this many, and one or two in progress."""
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
        expect(time.monotonic() <= end, f"{what}: not within {seconds:.0f} s{f'; {instead}' if instead else ''}")
        time.sleep(pause)
    return found
