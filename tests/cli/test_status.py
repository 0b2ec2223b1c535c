"""`trainyard status` and `logs`, from API objects that a real cluster returned (shortened)."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli import CommandError
from cli.cluster import INDEX, moment
from cli.logs import choose
from cli.state import state
from cli.status import screen, status_file
from cli.target import Target

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
TARGET = Target("trainyard-local", "trainyard", "train-small-1", None, {})


def job(conditions: list[dict[str, Any]] | None = None, **status: Any) -> dict[str, Any]:
    told = {"startTime": "2026-11-21T12:00:00Z", "active": 2, "failed": 1, **status, "conditions": conditions or []}
    return {"metadata": {"name": "train-small-1"}, "spec": {"parallelism": 3}, "status": told}


def pod(
    index: int, phase: str = "Running", ended: dict[str, Any] | None = None, name: str = "", **status: Any
) -> dict[str, Any]:
    state = {"terminated": ended} if ended else {"running": {"startedAt": "2026-11-21T12:20:00Z"}}
    if phase == "Pending":
        state = {"waiting": {"reason": "ContainerCreating"}}
    return {
        "metadata": {
            "name": name or f"train-small-1-{index}-abcde",
            "labels": {INDEX: str(index)},
            "creationTimestamp": "2026-11-21T12:19:00Z",
        },
        "spec": {"nodeName": f"node-{index}"},
        "status": {
            "phase": phase,
            "startTime": "2026-11-21T12:19:30Z",
            "containerStatuses": [{"state": state}],
            **status,
        },
    }


def test_a_job_whose_pods_are_refused_says_why() -> None:
    found = state(job(active=0), [], {}, refusal="exceeded quota: gpus")
    assert found.condition == "Waiting: the cluster refuses the pods: exceeded quota: gpus"


def lines(*texts: str, minute: int = 21) -> str:
    return "".join(f"2026-11-21T12:{minute}:{second:02}.123456789Z {text}\n" for second, text in enumerate(texts))


STEP = "step=120 steps=500 loss=3.2100 learning_rate=0.001 tokens_per_second=1234 eta_seconds=80 world_size=2"


def shown(found: Any) -> str:
    text = io.StringIO()
    Console(file=text, width=160).print(screen(found, TARGET, NOW))
    return text.getvalue()


def test_a_running_training_on_one_screen() -> None:
    first, second = pod(0), pod(1)
    logs = {
        first["metadata"]["name"]: lines(
            "event=round round=3 world_size=2 rank=1", "event=workers_ended codes=-9 reason='signal 9' step=110"
        ),
        second["metadata"]["name"]: lines(
            "event=round round=3 world_size=2 rank=0",
            "event=checkpoint step=100",
            "step=100 validation_loss=3.5 bits_per_byte=1.2",
            STEP,
        ),
    }
    text = shown(state(job(), [first, second, pod(2, "Pending")], logs))
    for expected in [
        "Running for 30:00   trainyard/train-small-1 on trainyard-local",
        "2 of 3 run, 1 failed",
        "round 3  step 120/500  loss 3.210  validation 3.500 (1.200 bits/byte)  1,234 tokens/s  1:20 to go",
        "newest checkpoint: step 100",
        "round 3 ended: signal 9",
        "starting the pods",
    ]:
        assert expected in text, text
    row = next(line for line in text.splitlines() if line.startswith("1 "))
    assert row.split() == ["1", "train-small-1-1-abcde", "node-1", "Running", "10:00", "3", "0"]


def test_log_lines_of_a_node_elsewhere_are_of_the_same_moment() -> None:
    """containerd stamps log lines in its node's time zone."""
    moments = ("2026-11-21T12:20:00.123456789Z", "2026-11-21T13:20:00.123456789+01:00", "2026-11-21T12:20:00.123456Z")
    assert len({moment(text) for text in moments}) == 1
    assert moment(None) is moment("yesterday") is None


def test_causes_of_restarts_each_once_in_order() -> None:
    """A drained node, the round that ended with it (both other workers report it), a pod that failed by itself."""
    drained = pod(
        2,
        "Failed",
        {"exitCode": 143, "finishedAt": "2026-11-21T12:22:30Z", "message": json.dumps({"message": "asked to end"})},
        conditions=[
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
                "lastTransitionTime": "2026-11-21T12:22:00Z",
            }
        ],
    )
    killed = pod(1, "Failed", {"exitCode": 137, "finishedAt": "2026-11-21T12:25:00Z", "reason": "OOMKilled"})
    told = lines(
        "event=round round=1 world_size=3 rank=0", "event=workers_ended codes=75 reason='left together'", minute=22
    )
    logs = {
        "a": told,
        "b": told.replace("rank=0", "rank=1"),
        "c": lines("event=new_round after=2 lost_members=1", minute=26),
    }
    found = state(job(), [pod(0), killed, drained], logs)
    assert [incident.cause for incident in found.incidents] == [
        "EvictionByEvictionAPI: Eviction API: evicting",
        "round 1 ended: left together",
        "ended with 143: asked to end",
        "ended with 137: killed",
        "round 0 ended: 1 member lost",
    ]
    assert "what happened" in shown(found)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"type": "Complete", "status": "True", "lastTransitionTime": "2026-11-21T12:10:00Z"}, "Complete for 10:00"),
        (
            {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "exit code 42"},
            "Failed (PodFailurePolicy: exit code 42)",
        ),
    ],
)
def test_the_end_is_the_jobs_own_word(condition: dict[str, Any], expected: str) -> None:
    assert shown(state(job([condition]), [], {})).startswith(expected)


def test_before_the_first_pod_it_says_what_is_waited_for() -> None:
    unschedulable = pod(0, "Pending")
    unschedulable["status"] |= {
        "containerStatuses": None,
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}],
    }
    text = shown(state(job(active=1), [unschedulable], {}))
    assert "Waiting for a node: 0/1 nodes: Insufficient cpu; lower workers.cpu or workers.count" in text
    assert "no step yet" in text
    # The Job counts a pod without a node as active.
    beside = shown(state(job(active=3), [pod(1), pod(2), unschedulable], {}))
    assert "2 of 3 run, 1 failed, 1 waiting for a node: 0/1 nodes: Insufficient cpu; lower" in beside


def test_status_json_goes_before_the_logs_where_it_can_be_seen(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    target = Target("c", "n", "j", str(tmp_path), {}, "/data/runs/x")
    assert status_file(target) is None
    (folder / "status.json").write_text(json.dumps({"step": 130, "steps": 500, "loss": 3.1, "round": 4, "message": ""}))
    logs = {"train-small-1-0-abcde": lines("event=round round=3 world_size=2 rank=0", STEP)}
    found = state(job(), [pod(0)], logs, status_file(target))
    assert found.figures["step"] == 130
    assert "round 4  step 130/500  loss 3.100" in shown(found)


def test_logs_are_those_of_rank_zero_of_the_newest_round() -> None:
    pods = [pod(0), pod(1)]
    logs = {
        "train-small-1-0-abcde": lines(
            "event=round round=1 world_size=2 rank=0", "event=round round=2 world_size=2 rank=1"
        ),
        "train-small-1-1-abcde": lines(
            "event=round round=1 world_size=2 rank=1", "event=round round=2 world_size=2 rank=0"
        ),
    }
    assert choose(pods, None, logs.__getitem__) == "train-small-1-1-abcde"
    assert choose(pods, 0, logs.__getitem__) == "train-small-1-0-abcde"
    newer = pod(0, name="train-small-1-0-newer")
    newer["metadata"]["creationTimestamp"] = "2026-11-21T12:29:00Z"
    assert choose([newer, *pods], 0, logs.__getitem__) == "train-small-1-0-newer"
    with pytest.raises(CommandError, match="no pod 7 has started; there are: 0, 1"):
        choose(pods, 7, logs.__getitem__)
    with pytest.raises(CommandError, match="no pod has started yet"):
        choose([], None, logs.__getitem__)
