"""The engine of steps: what it continues with, what it leaves out, and that it destroys whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prove.engine import Cannot, OverLimit, State, Step, load, play

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


def raises(error: BaseException) -> Callable[[State], str]:
    def play(_: State) -> str:
        raise error

    return play


FAILS = raises(AssertionError("it did\nnot hold"))


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


@pytest.mark.parametrize(
    ("does", "needed", "good", "verdicts", "evidence"),
    [
        (lambda _: "one\nseen", False, True, ("passed", "passed"), "one seen"),
        (raises(Cannot("no accelerators")), True, True, ("cannot", "passed"), "no accelerators"),
        (FAILS, False, False, ("failed", "passed"), "it did not hold"),
        (FAILS, True, False, ("failed", "not played"), "it did not hold"),
        (raises(ZeroDivisionError("ours")), False, False, ("failed", "passed"), "ZeroDivisionError: ours"),
    ],
)
def test_each_step_leaves_verdict_and_evidence_and_the_last_ones_are_always_played(
    does: Callable[[State], str], needed: bool, good: bool, verdicts: tuple[str, str], evidence: str, state: State
) -> None:
    played = run(state, step("one", does, needed=needed), step("two"))
    assert played == (good, dict(zip(("one", "two"), verdicts, strict=True)) | CLOSED)
    assert state.results["one"].evidence == evidence
    assert state.results["one"].begun.endswith("Z")
    assert ("test_engine.py" in str(state.notes)) == (verdicts[0] == "failed")


def test_interrupted_it_can_be_destroyed_and_knows_what_is_billed(state: State) -> None:
    state.limit_usd = 100
    with pytest.raises(KeyboardInterrupt):
        run(state, step("up", bills), step("two", raises(KeyboardInterrupt())))
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
