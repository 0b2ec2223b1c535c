"""cli.status and cli.logs against the real API: a Job whose pods log what the trainer would."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from rich.console import Console

from cli import logs
from cli.__main__ import main
from cli.status import screen
from cli.target import Target
from cli.training_status import read

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE = f"trainyard-status-{uuid.uuid4().hex[:8]}"
JOB = "status"
SCRIPT = """
import json, os, sys, time
rank = os.environ["JOB_COMPLETION_INDEX"]
print(f"event=round round=1 world_size=2 rank={rank}", flush=True)
if rank == "0":
    told = {"state": "training", "round": 1, "members": {"0": 0, "1": 1}, "checkpoint": 40, "step": 50, "steps": 100}
    told |= {"loss": 3.5, "tokens_per_second": 900, "eta_seconds": 70, "world_size": 2, "updated": time.time()}
    print("record", json.dumps(told), flush=True)
else:
    open("/dev/termination-log", "w").write('{"state": "restart", "message": "lost a peer"}')
    time.sleep(2)
    sys.exit(75)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def target(node: Path, base_image: str) -> Iterator[Target]:
    """A Job of which one pod trains, and the other has ended once."""
    api = config.new_client_from_config(config_file=str(node), context="trainyard-local")
    core: Any = client.CoreV1Api(api)
    batch: Any = client.BatchV1Api(api)
    core.create_namespace({"metadata": {"name": NAMESPACE}})
    container = {"name": "train", "image": base_image, "command": ["python3", "-c", SCRIPT]}
    spec = {
        "completionMode": "Indexed",
        "completions": 2,
        "parallelism": 2,
        "backoffLimitPerIndex": 5,
        "template": {
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
        },
    }
    batch.create_namespaced_job(NAMESPACE, {"metadata": {"name": JOB}, "spec": spec})
    made, end = Target("trainyard-local", NAMESPACE, JOB, None, {}), time.monotonic() + 200
    while not ((found := read(made, str(node))).figures.get("step") == 50 and found.incidents):
        assert time.monotonic() < end, found
        time.sleep(1)
    yield made
    # Delete the Job first: with a limit per index its pods keep finalizers, which block the namespace
    # (workloads/training.py).
    batch.delete_namespaced_job(JOB, NAMESPACE, propagation_policy="Foreground")
    while batch.list_namespaced_job(NAMESPACE).items:
        time.sleep(0.2)
    core.delete_namespace(NAMESPACE)


def test_the_screen_shows_progress_pods_and_why_one_was_restarted(target: Target, node: Path) -> None:
    found = read(target, str(node))
    assert found.figures["step"] == 50
    assert found.condition == "Running"
    assert (found.wanted, found.record.checkpoint, found.record.round) == (2, 40, 1)
    assert {pod.index for pod in found.pods} == {0, 1}
    assert all(pod.node == "trainyard" for pod in found.pods)
    assert "ended with 75: lost a peer" in [incident.cause for incident in found.incidents]
    console = Console(width=150, record=True)
    console.print(screen(found, target, datetime.now(UTC)))
    assert "step 50/100  loss 3.500  900 tokens/s  1:10 to go" in console.export_text()


def test_logs_finds_the_pod_of_rank_zero(
    target: Target, node: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(logs, "target_of", lambda *_: target)
    assert main(["logs", "--stack", "local", "--kubeconfig", str(node)]) == 0
    assert b"rank=0" in capfdbinary.readouterr().out
    assert main(["logs", "--stack", "local", "--kubeconfig", str(node), "--pod", "9"]) == 1
    assert b"no pod 9 has started; there are: 0, 1" in capfdbinary.readouterr().err
