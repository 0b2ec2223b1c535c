"""A forgotten stack is named when its time is over, and no other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli import CommandError, ci
from cli.__main__ import main
from cli.ci import past_their_time
from tests.infra.recorded import changed

NOW = datetime(2026, 11, 21, 18, 0, tzinfo=UTC)


def listed(name: str, hours_ago: float, **more: Any) -> dict[str, Any]:
    """As `pulumi stack ls --json` has it."""
    updated = (NOW - timedelta(hours=hours_ago)).isoformat().replace("+00:00", "Z")
    return {"name": name, "lastUpdate": updated, "resourceCount": 58, **more}


@pytest.fixture
def ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    """gcp-c3 has 8 hours; no other stack has a limit."""
    limits = {"gcp-c3": {"ttlHours": 8}}
    monkeypatch.setattr("cli.target.stack_file_values", lambda name: changed(name, cluster=limits.get(name, {})))


def test_a_stack_past_its_time_is_named(ttl: None) -> None:
    assert past_their_time([listed("gcp-c3", 8.1), listed("gcp-a100", 500)], NOW) == ["gcp-c3"]
    assert past_their_time([listed("you/trainyard/gcp-c3", 8.1)], NOW) == ["gcp-c3"]


@pytest.mark.parametrize(
    "entry",
    [
        listed("gcp-c3", 7.9),
        listed("gcp-c3", 500, resourceCount=0),
        listed("gcp-c3", 500, updateInProgress=True),
        listed("somebody-elses", 500),
        {"name": "gcp-c3"},
    ],
)
def test_what_is_young_empty_busy_or_unknown_is_left_alone(ttl: None, entry: dict[str, Any]) -> None:
    assert past_their_time([entry], NOW) == []


def test_a_broken_stack_file_is_told_and_destroys_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.target.stack_file_values", lambda name: changed(name, cluster={"ttlHours": -1}))
    with pytest.raises(CommandError, match=r"cluster\.ttlHours"):
        past_their_time([listed("gcp-c3", 500)], NOW)


def test_the_command_prints_what_a_workflow_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ttl: None
) -> None:
    program = tmp_path / "pulumi"
    program.write_text('#!/bin/sh\necho \'[{"name": "gcp-c3", "lastUpdate": "2026-01-01T00:00:00Z"}]\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ci, "COMMAND", (str(program), *ci.COMMAND[1:]))
    assert main(["expired"]) == 0
    assert capsys.readouterr().out == 'stacks=["gcp-c3"]\n'
    program.write_text("#!/bin/sh\necho 'error: no backend' >&2; exit 255\n")
    assert main(["expired"]) == 2
    assert "error: no backend" in capsys.readouterr().err
    monkeypatch.setattr(ci, "COMMAND", ("no-such-pulumi",))
    assert main(["expired"]) == 2
    assert "pulumi is not on PATH" in capsys.readouterr().err


def test_an_audit_without_its_program_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert main(["audit"]) == 1
    assert capsys.readouterr().err == "error: pip-audit is not installed; make .venv/dev.stamp installs it\n"
