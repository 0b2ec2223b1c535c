"""Commands for workflows: expired stacks."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cli import CommandError, ci
from cli.__main__ import main
from cli.ci import past_their_time
from tests.infra.recorded import changed

#: No stack has a recorded `up`, unless a test gives it one.
NEVER: dict[str, str] = {}
NOW = datetime(2026, 11, 21, 18, 0, tzinfo=UTC)


def listed(name: str, hours_ago: float, **more: Any) -> dict[str, Any]:
    """An entry of `pulumi stack ls --json`."""
    updated = (NOW - timedelta(hours=hours_ago)).isoformat().replace("+00:00", "Z")
    return {"name": name, "lastUpdate": updated, "resourceCount": 58, **more}


#: A stack that came up on 1 January 2026. Since then 100 destroys have failed: the first page of its history.
PULUMI = f"""#!{sys.executable}
import json, sys
from datetime import datetime, UTC
if "ls" in sys.argv:
    told = [{{"name": "gcp-c3", "lastUpdate": datetime.now(UTC).isoformat()}}]
elif "--page" in sys.argv and sys.argv[sys.argv.index("--page") + 1] == "1":
    told = [{{"kind": "destroy", "startTime": datetime.now(UTC).isoformat()}}] * 100
else:
    told = [{{"kind": "update", "startTime": "2026-01-01T00:00:00.000Z"}}]
print(json.dumps(told))
"""


@pytest.fixture
def ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    """gcp-c3 has 8 hours; no other stack has a limit."""
    limits = {"gcp-c3": {"ttlHours": 8}}
    monkeypatch.setattr("cli.target.stack_file_values", lambda name: changed(name, cluster=limits.get(name, {})))


def test_a_stack_past_its_time_is_named(ttl: None) -> None:
    assert past_their_time([listed("gcp-c3", 8.1), listed("gcp-a100", 500)], NOW, NEVER.get) == ["gcp-c3"]
    assert past_their_time([listed("you/trainyard/gcp-c3", 8.1)], NOW, NEVER.get) == ["gcp-c3"]


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
    assert past_their_time([entry], NOW, NEVER.get) == []


def test_a_destroy_that_failed_gives_no_new_time(ttl: None) -> None:
    """`pulumi stack ls` counts a failed destroy as an update of the state."""
    ups = {"gcp-c3": listed("gcp-c3", 8.1)["lastUpdate"]}
    assert past_their_time([listed("gcp-c3", 0.5)], NOW, ups.get) == ["gcp-c3"]


def test_a_proof_that_died_is_named_whatever_its_stack_says(ttl: None) -> None:
    """Except a proof on a cluster that it does not create."""
    entries = [listed(name, 6.1) for name in ("prove-gcp-a100", "prove-gcp-c3", "prove-nothing", "prove-local")]
    assert past_their_time(entries, NOW, NEVER.get) == ["prove-gcp-a100", "prove-gcp-c3"]
    assert past_their_time([listed("prove-gcp-a100", 5.9)], NOW, NEVER.get) == []


def test_a_broken_stack_file_is_told_and_destroys_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.target.stack_file_values", lambda name: changed(name, cluster={"ttlHours": -1}))
    with pytest.raises(CommandError, match=r"cluster\.ttlHours"):
        past_their_time([listed("gcp-c3", 500)], NOW, NEVER.get)


def test_the_command_prints_what_a_workflow_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ttl: None
) -> None:
    program = tmp_path / "pulumi"
    program.write_text(PULUMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ci, "COMMAND", (str(program), *ci.COMMAND[1:]))
    assert main(["dev", "expired"]) == 0
    assert capsys.readouterr().out == 'stacks=["gcp-c3"]\n'
    program.write_text("#!/bin/sh\necho 'error: no backend' >&2; exit 255\n")
    assert main(["dev", "expired"]) == 2
    assert "error: no backend" in capsys.readouterr().err
    monkeypatch.setattr(ci, "COMMAND", ("no-such-pulumi",))
    assert main(["dev", "expired"]) == 2
    assert "pulumi is not on PATH" in capsys.readouterr().err
