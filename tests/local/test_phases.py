"""Phases say how long they took; running ones show their progress."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from faults.fault import until
from local import phases
from local.phases import Pace, Phases


def test_a_failed_phase_says_why_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    command = Phases()
    with pytest.raises(ValueError, match="no disk"), command.phase("build"):
        raise ValueError("no disk")
    assert "✗ build" in capsys.readouterr().err


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool, interval: float, awaited: str) -> str:
    """What a command of two phases prints, of which one reports progress; they run until `awaited` is shown."""
    monkeypatch.setattr(phases, "TICK", 0.05)
    monkeypatch.setattr(phases, "PROGRESS_INTERVAL", interval)
    text = io.StringIO()
    command = Phases(quiet_below=0.0, console=Console(file=text, force_terminal=terminal, width=100))
    with command.phase("build one") as progress, command.phase("build two"):
        progress("7/9 packages")
        until(lambda: awaited in text.getvalue(), 60, awaited, pause=0.01)
    command.say("after")
    return text.getvalue()


def test_a_log_gets_one_line_for_all_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    lines = shown(monkeypatch, terminal=False, interval=0.1, awaited="…").splitlines()
    told = [line for line in lines if line.startswith("  … ")]
    assert 1 <= len(told) <= (time.monotonic() - began) / 0.1
    assert all(re.fullmatch(r"  … \d+ s: build one: 7/9 packages, build two", line) for line in told)
    assert [line.split(" (")[0] for line in lines[-3:]] == ["  ✓ build two", "  ✓ build one", "after"]


def test_a_terminal_has_a_line_that_moves_and_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "build one: 7/9 packages, build two"
    text = shown(monkeypatch, terminal=True, interval=15.0, awaited=line)
    assert text.rindex("7/9 packages") < text.index("after")
    # Erased: what is printed next begins on a line of its own.
    assert text.rindex("\x1b[2K") > text.rindex("7/9 packages")


def test_a_build_tells_what_is_left_of_the_whole_and_revises_how_long_it_takes() -> None:
    times = iter([0.0, 0.0, 10.0, 100.0, 400.0, 1000.0, 1010.0])
    pace = Pace("packages", lambda: next(times))
    assert pace(600, 2600) == "600 of 2,600 packages", "what the cache has says nothing of the pace"
    assert pace(610, 2600) == "610 of 2,600 packages"
    told = [pace(count, 2600).partition(" packages")[2] for count in (1600, 2000, 2500, 2600)]
    assert told == [", about 2 min left", ", about 3 min left", ", about 53 s left", ""]
