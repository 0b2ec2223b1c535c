"""The times of a command are kept, shown in order, and begin anew with the next `up`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from rich.console import Console

from local import phases
from local.phases import Phases, Timing


def names(path: Path) -> list[str]:
    return [timing.name for timing in phases.load(path)]


def test_phases_are_kept_and_a_later_command_adds_its_own(tmp_path: Path) -> None:
    path = tmp_path / "state" / "timings.json"
    first = Phases(path)
    with first.phase("build"):
        time.sleep(0.05)
    first.save()
    phases.add(path, Timing("pulumi up", time.time(), 3.0))
    phases.add(path, Timing("pulumi up", time.time(), 4.0))
    assert names(path) == ["build", "pulumi up"]
    assert phases.load(path)[0].seconds == pytest.approx(0.05, abs=0.05)
    assert phases.load(path)[1].seconds == 4.0
    second = Phases(path)
    with second.phase("node"):
        pass
    second.save()
    assert names(path) == ["node"]


def test_a_file_that_was_cut_short_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "timings.json"
    path.write_text('{"phases": [{"na')
    assert phases.load(path) == []


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
