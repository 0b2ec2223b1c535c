"""Plays the steps in order, records each result in a file, and destroys at the end, whatever happened.

A step is a function of its subject that returns its evidence. It raises Cannot where the cluster lacks what it needs,
which is not a pass, and anything else where the claim does not hold.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from faults.fault import Cannot

Verdict = Literal["passed", "failed", "cannot", "not played"]


class OverLimit(Exception):
    """The run has reached its cost limit."""


@dataclass(frozen=True)
class Step:
    name: str
    title: str
    play: Callable[[Any], str]
    """Takes the subject, returns the evidence in one line."""
    needed: bool = False
    """The later steps depend on it."""
    closing: bool = False
    """Played whatever happened before it."""
    short: bool = False
    """Part of the short form."""


@dataclass
class Result:
    verdict: Verdict
    evidence: str = ""
    seconds: float = 0
    begun: str = ""


@dataclass
class State:
    """The state of a run; kept in a file, so that another process can destroy what it has made."""

    stack: str
    file: Path
    short: bool = False
    begun: str = ""
    billed_from: float | None = None
    """Unix time before the first resource was made."""
    billed_to: float | None = None
    """Unix time when the last one was gone."""
    usd_per_hour: float = 0
    """At full size: the upper bound that the limit is checked against."""
    limit_usd: float = math.inf
    limited: bool = True
    """Whether the limit holds: not while the run destroys."""
    ended_by: str = ""
    """Why not every step was played."""
    results: dict[str, Result] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    """Values that one step leaves for a later one."""

    def spent(self) -> float:
        """USD, at most."""
        if self.billed_from is None:
            return 0.0
        return ((self.billed_to or time.time()) - self.billed_from) / 3600 * self.usd_per_hour

    @property
    def is_up(self) -> bool:
        return self.billed_from is not None and self.billed_to is None

    def check_limit(self) -> None:
        """Raises OverLimit."""
        if self.limited and self.spent() > self.limit_usd:
            raise OverLimit(f"--limit-usd {self.limit_usd:g} is reached: up to {self.spent():.2f} USD are spent")

    def save(self) -> None:
        half = self.file.with_suffix(".half")
        half.write_text(json.dumps(asdict(self) | {"file": None}, indent=1), encoding="utf-8")
        half.replace(self.file)


def load(path: Path) -> State | None:
    """The state of a run that has left something; None: there is none."""
    try:
        told: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    results = {name: Result(**each) for name, each in told["results"].items()}
    return State(**told | {"results": results, "file": path})


def play(steps: Sequence[Step], state: State, subject: Any, screen: Any) -> bool:
    """Play the steps on a subject; True when nothing failed. `screen` (report.Screen) shows each.

    KeyboardInterrupt passes through: the state says how far the run came.
    """
    state.ended_by = ""
    for step in steps:
        if state.ended_by and not step.closing:
            state.results[step.name] = Result("not played", state.ended_by)
        else:
            _play(step, state, subject, screen)
        state.save()
    return not state.ended_by and all(result.verdict != "failed" for result in state.results.values())


def _play(step: Step, state: State, subject: Any, screen: Any) -> None:
    result, clock = Result("failed", "interrupted", begun=now()), time.monotonic()
    state.results[step.name], state.limited = result, not step.closing
    screen.begin(step)
    try:
        state.check_limit()
        state.save()
        result.evidence = _line(step.play(subject))
        result.verdict = "passed"
    except Cannot as reason:
        result.verdict, result.evidence = "cannot", _line(reason)
    except OverLimit as reason:
        result.evidence = state.ended_by = _line(reason)
    except Exception as error:  # whatever a cluster, cloud or library raises: the next steps still count
        known = isinstance(error, (AssertionError, LookupError, OSError))
        result.evidence = _line(error if known and str(error) else f"{type(error).__name__}: {error}")
        state.notes.setdefault("tracebacks", {})[step.name] = traceback.format_exc()
    finally:
        result.seconds = round(time.monotonic() - clock, 1)
        state.save()
    if result.verdict == "failed" and step.needed and not state.ended_by:
        state.ended_by = f"{step.name} failed"
    screen.end(step, result)


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _line(what: object) -> str:
    return " ".join(str(what).split())[:600]
