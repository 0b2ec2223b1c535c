"""`trainyard ps`: the stacks of this machine, with what runs and what it costs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli import CommandError, ps
from cli.__main__ import main
from cli.target import STOPPED, Target
from cli.training_status import TrainingStatus
from infra.stackfiles import NODE_CONTEXT
from tests.local.test_leftovers import stack, stack_with

NOW = datetime.now(UTC)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stacks on the node, one that is only made, and what Pulumi's own backend lists."""
    for name in ("local", "local-sweep"):
        stack(tmp_path, name, *stack_with(NODE_CONTEXT))
    stack(tmp_path, "made")
    listed = [{"name": "gcp-c3", "resourceCount": 70}, {"name": "gcp-a100"}, {"name": "gcp-smoke", "resourceCount": 9}]
    monkeypatch.setattr("infra.state.BACKEND", tmp_path / ".local/state")
    monkeypatch.setattr(ps, "ask_pulumi", lambda *_: SimpleNamespace(returncode=0, stdout=json.dumps(listed)))
    monkeypatch.setattr(ps, "is_local", lambda name: name.startswith("local"))

    def targets_of(stack: str) -> list[Target]:
        if stack == "local-sweep":
            raise CommandError(STOPPED)
        if stack == "gcp-smoke":
            raise PermissionError(13, "Permission denied", "/etc/rancher/k3s/k3s.yaml")
        names = ("one", "two") if stack == "gcp-c3" else ("",)
        return [
            Target(NODE_CONTEXT if stack == "local" else "gke", "n", "train-1", None, {}, training=n) for n in names
        ]

    def all_of(targets: list[Target], *_: object) -> list[TrainingStatus]:
        now = datetime.now(UTC)
        started, ended = now - timedelta(hours=3), now - timedelta(minutes=5)
        running = TrainingStatus("train-1", "Running", "", started, None, 2, 2, training="one")
        complete = TrainingStatus(
            "train-1", "Complete", "run removed", started, ended, 2, training=targets[-1].training
        )
        return [complete] if len(targets) == 1 else [running, complete]

    monkeypatch.setattr(ps, "targets_of", targets_of)
    monkeypatch.setattr(ps, "all_of", all_of)


@pytest.mark.usefixtures("machine")
def test_every_stack_is_listed_with_what_runs_since_when_and_at_what_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    told = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert told == [
        ["stack", "where", "training", "state", "since", "USD an hour"],
        ["gcp-c3", "gke", "one", "Running", "3 h", "2.26"],
        ["two", "Complete", "5 min"],
        ["gcp-smoke", "unknown", "0.26 to 0.84"],
        ["local", "this machine", "train-1", "Complete", "5 min", "0"],
        ["local-sweep", "this machine", "node stopped", "0"],
        ["gcp-smoke: [Errno 13] Permission denied: '/etc/rancher/k3s/k3s.yaml'"],
        [f"local-sweep: {STOPPED}"],
    ]


@pytest.mark.usefixtures("machine")
def test_stacks_of_this_machine_do_not_hide_that_others_are_not_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ps, "ask_pulumi", lambda *_: SimpleNamespace(returncode=255, stdout=""))
    assert main(["ps"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("what stacks elsewhere have is not known: ")
    assert "local-sweep" in told


@pytest.mark.parametrize(
    ("code", "listed", "first"),
    [
        (0, "[]", "no stack has anything; `trainyard init NAME` writes"),
        (None, "", "what stacks elsewhere have is not known: Pulumi is missing or not logged in (`pulumi login`)\nno"),
    ],
)
def test_without_any_stack_it_says_what_to_do_and_whether_that_is_known(
    code: int | None,
    listed: str,
    first: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def answer(*_: str) -> SimpleNamespace:
        if code is None:
            raise FileNotFoundError(2, "", "pulumi")
        return SimpleNamespace(returncode=code, stdout=listed)

    monkeypatch.setattr("infra.state.BACKEND", tmp_path)
    monkeypatch.setattr(ps, "ask_pulumi", answer)
    assert main(["ps"]) == 0
    assert capsys.readouterr().out.startswith(first)
