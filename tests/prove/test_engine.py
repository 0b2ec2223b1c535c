"""The engine of steps: what it continues with, what it leaves out, and that it destroys whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prove.engine import Cannot, OverLimit, Result, State, Step, load, play

SILENT: Any = SimpleNamespace(begin=lambda step: None, end=lambda step, result: None)


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State("fake", tmp_path / "state.json", limit_usd=5)


def step(name: str, does: Callable[[State], str] = lambda _: "seen", **given: bool) -> Step:
    return Step(name, name, does, **given)


def run(state: State, *steps: Step) -> tuple[bool, dict[str, str]]:
    """Play steps and the closing ones on the state itself; return whether all was well, and the verdicts."""
    good = play([*steps, *CLOSING], state, state, SILENT)
    return good, {name: result.verdict for name, result in state.results.items()}


def fails(_: State) -> str:
    raise AssertionError("it did\nnot hold")


def bills(state: State) -> str:
    """As `up` does: 60 USD an hour, billed for an hour already."""
    state.usd_per_hour, state.billed_from = 60, time.time() - 3600
    return "up"


def ends_the_bill(state: State) -> str:
    state.check_limit()  # which does not hold here
    state.billed_to = time.time()
    return "destroyed"


CLOSING = (step("destroy", ends_the_bill, closing=True), step("cost", closing=True))
CLOSED = {"destroy": "passed", "cost": "passed"}


def test_each_step_leaves_verdict_time_and_evidence(state: State) -> None:
    def slow(_: State) -> str:
        time.sleep(0.1)
        return "one seen"

    assert run(state, step("one", slow)) == (True, {"one": "passed", **CLOSED})
    found = state.results["one"]
    assert found.evidence == "one seen"
    assert found.seconds >= 0.1
    assert found.begun.endswith("Z")


def test_what_cannot_be_done_here_is_no_pass_and_no_failure(state: State) -> None:
    def cannot(_: State) -> str:
        raise Cannot("no accelerators")

    assert run(state, step("gpu", cannot), step("after")) == (True, {"gpu": "cannot", "after": "passed", **CLOSED})
    assert state.results["gpu"].evidence == "no accelerators"


def test_a_failed_step_says_why_in_one_line_and_the_others_are_played(state: State) -> None:
    assert run(state, step("one", fails), step("two")) == (False, {"one": "failed", "two": "passed", **CLOSED})
    assert state.results["one"].evidence == "it did not hold"


def test_after_a_needed_step_that_failed_it_only_destroys(state: State) -> None:
    verdicts = {"up": "failed", "two": "not played", **CLOSED}
    assert run(state, step("up", fails, needed=True), step("two")) == (False, verdicts)
    assert state.results["two"] == Result("not played", "up failed")


def test_a_step_of_ours_that_breaks_is_a_failure_and_destroys_too(state: State) -> None:
    assert run(state, step("one", lambda _: {}["x"])) == (False, {"one": "failed", **CLOSED})
    assert "test_engine.py" in state.notes["tracebacks"]["one"]


def test_interrupted_it_can_be_destroyed_and_knows_what_is_billed(state: State) -> None:
    def interrupted(_: State) -> str:
        raise KeyboardInterrupt

    state.limit_usd = 100
    with pytest.raises(KeyboardInterrupt):
        run(state, step("up", bills), step("two", interrupted))
    second = load(state.file)
    assert second is not None
    assert second.results["two"].evidence == "interrupted"
    assert second.spent() == pytest.approx(60, abs=1)
    run(second)
    assert not second.is_up


def test_over_the_limit_it_destroys_and_plays_nothing_else(state: State) -> None:
    verdicts = {"up": "passed", "two": "failed", "three": "not played", **CLOSED}
    assert run(state, step("up", bills), step("two"), step("three")) == (False, verdicts)
    assert "--limit-usd 5 is reached: up to 60.00 USD" in state.ended_by


def test_the_limit_ends_a_step_that_waits(state: State) -> None:
    def waits(state: State) -> str:
        bills(state)
        state.check_limit()
        return "never"

    verdicts = {"up": "failed", "two": "not played", **CLOSED}
    assert run(state, step("up", waits), step("two")) == (False, verdicts)
    with pytest.raises(OverLimit):
        State("x", Path(), billed_from=time.time() - 3600, usd_per_hour=6, limit_usd=5).check_limit()


def test_what_is_gone_costs_no_more() -> None:
    assert State("x", Path(), billed_from=0, billed_to=1800, usd_per_hour=4).spent() == 2
    assert State("x", Path()).spent() == 0
