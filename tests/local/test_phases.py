"""Phase times are kept, shown in order and replaced by the next `up`; running phases show their progress."""

from __future__ import annotations

import io
import re
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from faults.fault import until
from local import phases
from local.phases import Pace, Phases, Timing


def names(path: Path) -> list[str]:
    return [timing.name for timing in phases.load(path)]


def test_phases_are_kept_and_a_later_command_adds_its_own(tmp_path: Path) -> None:
    path = tmp_path / "state" / "timings.json"
    first = Phases(path)
    began = time.monotonic()
    with first.phase("build"):
        time.sleep(0.05)
    took = time.monotonic() - began
    first.save()
    phases.add(path, Timing("pulumi up", time.time(), 3.0))
    phases.add(path, Timing("pulumi up", time.time(), 4.0))
    assert names(path) == ["build", "pulumi up"]
    assert 0.05 <= phases.load(path)[0].seconds <= took + 0.01  # it is rounded
    assert phases.load(path)[1].seconds == 4.0
    second = Phases(path)
    with second.phase("node"):
        pass
    second.save()
    assert names(path) == ["node"]


def test_a_failed_phase_says_why_at_once_and_is_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = Phases(tmp_path / "timings.json")
    with pytest.raises(ValueError, match="no disk"), command.phase("build"):
        raise ValueError("no disk")
    assert "✗ build" in capsys.readouterr().err
    assert command.done == []


def test_the_table_leaves_out_what_had_nothing_to_do() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(
            phases.table([Timing("slow", 10.0, 5.0), Timing("nothing", 11.0, 0.0), Timing("late", 12.0, 1.0)])
        )
    text = capture.get()
    assert "nothing" not in text
    assert text.index("slow") < text.index("late")
    assert "2.0" in text  # late began two seconds after the first


def shown(
    monkeypatch: pytest.MonkeyPatch, path: Path, terminal: bool, interval: float, awaited: str | None = None
) -> str:
    """What a command of two phases prints, of which one reports progress; they run until `awaited` is shown, or for
    five ticks."""
    monkeypatch.setattr(phases, "TICK", 0.05)
    monkeypatch.setattr(phases, "PROGRESS_INTERVAL", interval)
    text = io.StringIO()
    command = Phases(path, quiet_below=0.0, console=Console(file=text, force_terminal=terminal, width=100))
    with command.phase("build one") as progress, command.phase("build two"):
        progress("7/9 packages")
        if awaited is None:
            threading.Event().wait(0.25)
        else:
            until(lambda: awaited in text.getvalue(), 60, awaited, pause=0.01)
    command.say("after")
    return text.getvalue()


def test_a_log_gets_one_line_for_all_that_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    began = time.monotonic()
    lines = shown(monkeypatch, tmp_path / "t.json", terminal=False, interval=0.1, awaited="…").splitlines()
    told = [line for line in lines if line.startswith("  … ")]
    assert 1 <= len(told) <= (time.monotonic() - began) / 0.1
    assert all(re.fullmatch(r"  … \d+ s: build one: 7/9 packages, build two", line) for line in told)
    assert [line.split(" (")[0] for line in lines[-3:]] == ["  ✓ build two", "  ✓ build one", "after"]


def test_a_terminal_has_a_line_that_moves_and_is_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = "build one: 7/9 packages, build two"
    text = shown(monkeypatch, tmp_path / "t.json", terminal=True, interval=15.0, awaited=line)
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
