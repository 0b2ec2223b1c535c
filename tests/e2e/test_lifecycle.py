"""A training that ended before it was done, and how it comes back: deleted, stopped, failed and mended.

On the real engine and the real node, in order: one training is disturbed in each way, and goes on.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.fault import until
from faults.stack import Stack
from local import paths
from tests.e2e.conftest import tool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

MARK = f"life-{uuid.uuid4().hex[:6]}"


@pytest.fixture(scope="module")
def stack(node_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack("life", tmp_path_factory.mktemp("life"), node_environment)
    made.write(
        workers={"count": 1, "min": 1, "cpu": 0.15, "memoryGib": 2},
        dataset={"name": MARK},
        job={"name": MARK},
        tensorboard={"enabled": False},
        training={
            "model": {"preset": "tiny"},
            "steps": 100_000,  # for as long as a test looks, whatever the machine's speed
            "tokensPerStep": 1024,
            "optimizer": {"warmupSteps": 1, "schedule": "constant"},
            "evaluation": {"every": 100, "batches": 2},
            "checkpoint": {"everySteps": 50},
        },
    )
    made.select()
    try:
        yield made
    finally:
        made.remove()
        for folder in paths.STORAGE.glob(f"**/{MARK}*"):
            shutil.rmtree(folder, ignore_errors=True)


def _step(folder: Path) -> int:
    try:
        return int(json.loads((folder / "status.json").read_text())["step"])
    except (OSError, ValueError, KeyError):
        return 0


def job(stack: Stack) -> dict[str, Any] | None:
    found = stack.kubectl("get", "job", stack.outputs()["jobName"], "--output=json", "--ignore-not-found")
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout) if found.stdout.strip() else None


def resume(stack: Stack) -> str:
    done = tool(stack, "resume", "--config-file", str(stack.config))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def disturbed(stack: Stack) -> Path:
    """The run's folder on this machine, once some steps are made."""
    stack.up()
    folder = Path(stack.outputs()["dataFolder"], "runs", MARK)
    until(lambda: _step(folder) >= 10, 240, "steps are made")
    return folder


def goes_on(folder: Path, step: int) -> None:
    until(lambda: _step(folder) > step, 240, "it goes on")


def test_a_deleted_job_comes_back_when_asked_and_trains_on(stack: Stack, disturbed: Path) -> None:
    assert "nothing to resume: it has not ended" in resume(stack)
    stack.kubectl("delete", "job", stack.outputs()["jobName"], "--wait=false")
    until(lambda: job(stack) is None, 60, "the Job is gone")
    for command in ("status", "follow", "stop"):
        asked = tool(stack, command)
        assert asked.returncode == 1
        assert "is gone; `.venv/bin/trainyard resume --stack life` starts the training again" in asked.stderr
    stack.up(expect_no_changes=True)
    assert job(stack) is None
    step = _step(disturbed)
    assert "was deleted; starts again from its newest checkpoint" in resume(stack)
    goes_on(disturbed, step)


def test_a_stopped_training_has_saved_and_stays_stopped(stack: Stack, disturbed: Path) -> None:
    stopped = tool(stack, "stop")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    step = int(stopped.stdout.partition("stopped at step ")[2].partition(",")[0])
    assert "trainyard resume --stack life" in stopped.stdout
    assert (disturbed / f"checkpoints/step-{step:08d}/manifest.json").exists()
    before = job(stack)
    assert before
    pods = json.loads(stack.kubectl("get", "pods", "-o", "json").stdout)["items"]
    assert not [pod for pod in pods if pod["metadata"]["name"].startswith(before["metadata"]["name"])]
    stack.up(expect_no_changes=True)
    after = job(stack)
    assert after
    assert after["spec"]["suspend"] is True
    assert not after["status"].get("active")
    shown = tool(stack, "status")
    assert "Stopped (by `trainyard stop` at 20" in shown.stdout, shown.stdout + shown.stderr
    followed = tool(stack, "follow")
    assert followed.returncode == 1
    assert "The training is stopped by `trainyard stop` at 20" in followed.stdout
    assert "nothing to stop: it is stopped" in tool(stack, "stop").stdout


def test_a_training_that_failed_for_good_says_why_and_goes_on_once_mended(stack: Stack, disturbed: Path) -> None:
    """Exit code 42: damaged data, where the training was stopped."""
    stopped, step = job(stack), _step(disturbed)
    assert stopped
    shard = sorted(Path(stack.outputs()["dataFolder"], "datasets", MARK).glob("*.bin"))[0]
    whole = shard.read_bytes()
    shard.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert "was stopped by `trainyard stop`" in resume(stack)
    assert (job(stack) or {})["metadata"]["uid"] == stopped["metadata"]["uid"]
    followed = tool(stack, "follow")
    assert followed.returncode == 1
    assert "The training failed: " in followed.stdout
    stack.up(expect_no_changes=True)
    shard.write_bytes(whole)
    said = resume(stack)
    assert "had failed: " in said
    assert "checksum" in said, said
    goes_on(disturbed, step)
