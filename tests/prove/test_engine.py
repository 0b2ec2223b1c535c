"""The engine of steps: what it continues with, what it leaves out, and that it destroys whatever happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from prove.engine import Cannot, OverLimit, Result, State, Step, Subject, check_limit, load, play
from prove.report import Screen


class Fake(Subject):
    """A subject that lists the steps that were played."""

    def __init__(self, folder: Path, limit_usd: float = 5) -> None:
        self.state, self.limit_usd = load(folder / "state.json") or State("fake"), limit_usd
        self.played: list[str] = []
        self.path = folder / "state.json"

    def save(self) -> None:
        self.state.save(self.path)


class Silent(Screen):
    def __init__(self) -> None: ...

    def begin(self, step: Step) -> None: ...

    def end(self, step: Step, result: Result) -> None: ...


def step(name: str, does: Callable[[Fake], str] | None = None, **given: bool) -> Step:
    def act(subject: Fake) -> str:
        subject.played.append(name)
        return does(subject) if does else f"{name} seen"

    return Step(name, name, act, **given)


def fails(_: Fake) -> str:
    raise AssertionError("it did\nnot hold")


def bills(subject: Fake) -> str:
    """As `up` does: 60 USD an hour, billed for an hour already."""
    subject.state.usd_per_hour, subject.state.billed_from = 60, time.time() - 3600
    return "up"


def ends_the_bill(subject: Fake) -> str:
    subject.state.billed_to = time.time()
    return "destroyed"


CLOSING = (step("destroy", ends_the_bill, closing=True), step("cost", closing=True))


def verdicts(subject: Fake) -> dict[str, str]:
    return {name: result.verdict for name, result in subject.state.results.items()}


def test_each_step_leaves_verdict_time_and_evidence(tmp_path: Path) -> None:
    def slow(_: Fake) -> str:
        time.sleep(0.1)
        return "one seen"

    subject = Fake(tmp_path)
    assert play([step("one", slow), *CLOSING], subject, Silent())
    found = subject.state.results["one"]
    assert (found.verdict, found.evidence) == ("passed", "one seen")
    assert found.seconds >= 0.1
    assert found.begun.endswith("Z")


def test_what_cannot_be_done_here_is_no_pass_and_no_failure(tmp_path: Path) -> None:
    def cannot(_: Fake) -> str:
        raise Cannot("no accelerators")

    subject = Fake(tmp_path)
    assert play([step("gpu", cannot), step("after"), *CLOSING], subject, Silent())
    assert subject.state.results["gpu"] == Result(
        "cannot", "no accelerators", subject.state.results["gpu"].seconds, subject.state.results["gpu"].begun
    )
    assert subject.played[-3:] == ["after", "destroy", "cost"]


def test_a_failed_step_says_why_in_one_line_and_the_others_are_played(tmp_path: Path) -> None:
    subject = Fake(tmp_path)
    assert not play([step("one", fails), step("two"), *CLOSING], subject, Silent())
    assert subject.state.results["one"].evidence == "it did not hold"
    assert verdicts(subject) == {"one": "failed", "two": "passed", "destroy": "passed", "cost": "passed"}


def test_after_a_needed_step_that_failed_it_only_destroys(tmp_path: Path) -> None:
    subject = Fake(tmp_path)
    assert not play([step("up", fails, needed=True), step("two"), *CLOSING], subject, Silent())
    assert subject.played == ["up", "destroy", "cost"]
    assert subject.state.results["two"] == Result("not played", "up failed")


def test_a_step_of_ours_that_breaks_is_a_failure_and_destroys_too(tmp_path: Path) -> None:
    subject = Fake(tmp_path)
    assert not play([step("one", lambda _: {}["x"]), *CLOSING], subject, Silent())
    assert subject.played[-2:] == ["destroy", "cost"]
    assert "test_engine.py" in subject.state.notes["tracebacks"]["one"]


def test_interrupted_it_can_be_destroyed_and_knows_what_is_billed(tmp_path: Path) -> None:
    def interrupted(_: Fake) -> str:
        raise KeyboardInterrupt

    first = Fake(tmp_path, limit_usd=100)
    with pytest.raises(KeyboardInterrupt):
        play([step("up", bills), step("two", interrupted), *CLOSING], first, Silent())
    second = Fake(tmp_path, limit_usd=100)
    assert second.state.results["two"].evidence == "interrupted"
    assert second.state.spent() == pytest.approx(60, abs=1)
    play(CLOSING, second, Silent())
    assert second.played == ["destroy", "cost"]
    assert not second.state.is_up


def test_over_the_limit_it_destroys_and_plays_nothing_else(tmp_path: Path) -> None:
    subject = Fake(tmp_path, limit_usd=5)
    assert not play([step("up", bills), step("two"), step("three"), *CLOSING], subject, Silent())
    assert subject.played == ["up", "destroy", "cost"]
    assert "--limit-usd 5 is reached: up to 60.00 USD" in subject.state.ended_by
    assert verdicts(subject)["three"] == "not played"


def test_the_limit_ends_a_step_that_waits(tmp_path: Path) -> None:
    def waits(subject: Fake) -> str:
        bills(subject)
        check_limit(subject.state, subject.limit_usd)
        return "never"

    subject = Fake(tmp_path)
    play([step("up", waits), step("two"), *CLOSING], subject, Silent())
    assert verdicts(subject) == {"up": "failed", "two": "not played", "destroy": "passed", "cost": "passed"}
    with pytest.raises(OverLimit):
        check_limit(State("x", billed_from=time.time() - 3600, usd_per_hour=6), 5)


def test_what_is_gone_costs_no_more() -> None:
    assert State("x", billed_from=0, billed_to=1800, usd_per_hour=4).spent() == 2
    assert State("x").spent() == 0
