"""One elastic training on real pods, from its start to its end, and each step of it is that of an undisturbed one.

In order: evicted, killed, without etcd and resized, it goes on by itself (faults/on_pods.py says what must follow
each fault); deleted, stopped, and failed and mended, and goes on when asked; and is destroyed while it trains.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cluster import JOB
from cli.training_status import run_here
from faults import on_pods
from faults.cluster import Cluster
from faults.fault import PERIOD, SAME_LOSS, until
from faults.journal import Journal
from faults.stack import Stack
from infra.stackfiles import ROOT
from local import paths
from tests.e2e.conftest import succeed, tool
from trainer.config.schema import stored

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

STACK: dict[str, Any] = {
    # Three workers fit on a node with two processors. Without a limit, each takes what is free.
    "workers": {"count": 2, "min": 1, "cpu": 0.15, "memoryGib": 2},
    "tensorboard": {"enabled": False},
    "training": {
        "model": {"preset": "tiny"},
        # More steps than there is time for: the training runs until the stack is destroyed.
        "steps": 100_000,
        "tokensPerStep": 384,
        "sequenceLength": 64,
        "microBatch": 1,
        "precision": "fp32",
        "optimizer": {"learningRate": 0.001, "warmupSteps": 10, "schedule": "constant"},
        # An evaluation after each step slows the training down and changes no loss. The undisturbed run leaves it out,
        # and soon has made as many steps.
        "evaluation": {"every": 1, "batches": 24, "sampleTokens": 4},
        "checkpoint": {"everySteps": PERIOD},
        "metrics": {"every": 1, "tensorboard": False},
    },
}
FAULTS = (
    (on_pods.pod_evicted, 0),
    (on_pods.pod_killed, PERIOD + 2),
    (on_pods.etcd_data_lost, 0),
    (on_pods.resized, 0),
)
"""With the steps that each may cost."""
ABSENCE = 32
"""Seconds without etcd: twice the time after which a silent member counts as lost."""


def losses(run: Path) -> dict[int, float]:
    """Map each step of a run to its loss."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


class Elastic:
    """The training, its folder on this machine, its steps as they are made, and its settings."""

    def __init__(self, stack: Stack) -> None:
        self.cluster = Cluster(stack)
        target = self.cluster.target()
        run = run_here(target)
        assert run is not None
        self.run, self.journal = run, Journal(run)
        (self.settings,) = self.cluster.core.read_namespaced_config_map(target.job, target.namespace).data.values()

    def job(self) -> dict[str, Any] | None:
        stack = self.cluster.stack
        found = stack.kubectl("get", "job", self.cluster.target().job, "--output=json", "--ignore-not-found")
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout) if found.stdout.strip() else None

    def resume(self) -> str:
        return succeed(self.cluster.stack, "resume", "--config-file", str(self.cluster.stack.config))

    def goes_on(self, step: int) -> None:
        until(lambda: self.journal.step > step, 240, "it goes on")

    def undisturbed(self, folder: Path, steps: int) -> Path:
        """Run the pods' training in one process of this machine, for this many steps; return its folder."""
        (file := folder / "training.yaml").write_text(self.settings, "utf-8")
        arguments = {
            "data.directory": stored(self.settings)["data.directory"].replace("/data", str(self.run.parents[1]), 1),
            "run.directory": str(folder / "run"),
            "steps": str(steps),
            "evaluation.every": str(steps),
            "evaluation.batches": "1",
            # All of a step at once: six times as fast as one sequence after the other.
            "micro_batch": "6",
            "checkpoint.every_steps": str(steps),
        }
        command = [sys.executable, "-m", "trainer.launch", "--standalone", "--", "--config", str(file)]
        command += [f"{key}={value}" for key, value in arguments.items()]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return folder / "run"


@pytest.fixture(scope="module")
def there(node_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elastic]:
    stack = Stack("elastic", tmp_path_factory.mktemp("elastic"), node_environment)
    run = f"elastic-{uuid.uuid4().hex[:8]}"
    # A dataset of its own, which a test damages.
    stack.write(**STACK, dataset={"name": run}, job={"name": run})
    stack.select()
    try:
        stack.up()
        made = Elastic(stack)
        yield made
        made.journal.end()
    finally:
        stack.remove()
        for folder in paths.STORAGE.glob(f"**/{run}*"):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(("fault", "steps"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_the_training_goes_on_by_itself(
    fault: Callable[[Cluster], str], steps: int, there: Elastic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_pods, "ABSENCE", ABSENCE)
    before = there.journal.lost
    fault(there.cluster)
    assert there.journal.lost - before <= steps


def test_a_deleted_job_comes_back_when_asked_and_trains_on(there: Elastic) -> None:
    stack = there.cluster.stack
    assert "nothing to resume: it has not ended" in there.resume()
    stack.kubectl("delete", "job", there.cluster.target().job, "--wait=false")
    until(lambda: there.job() is None, 60, "the Job is gone", pause=1)
    for command in ("status", "follow", "stop"):
        asked = tool(stack, command)
        assert asked.returncode == 1
        assert f"is gone; `.venv/bin/trainyard resume --stack {stack.name}` starts the training again" in asked.stderr
    stack.up(expect_no_changes=True)
    assert there.job() is None
    step = there.journal.step
    assert "was deleted; starts again from its newest checkpoint" in there.resume()
    there.goes_on(step)


def test_a_stopped_training_has_saved_and_stays_stopped(there: Elastic) -> None:
    stack = there.cluster.stack
    stopped = succeed(stack, "stop")
    step = int(stopped.partition("stopped at step ")[2].partition(",")[0])
    assert f"trainyard resume --stack {stack.name}" in stopped
    assert (there.run / f"checkpoints/step-{step:08d}/manifest.json").exists()
    assert there.cluster.pods(JOB + there.cluster.target().job) == []
    stack.up(expect_no_changes=True)
    after = there.job()
    assert after
    assert after["spec"]["suspend"] is True
    assert not after["status"].get("active")
    assert "Stopped (by `trainyard stop` at 20" in succeed(stack, "status")
    followed = tool(stack, "follow")
    assert followed.returncode == 1
    assert "The training is stopped by `trainyard stop` at 20" in followed.stdout
    assert "nothing to stop: it is stopped" in succeed(stack, "stop")


def test_a_training_that_failed_for_good_says_why_and_goes_on_once_mended(there: Elastic) -> None:
    """Exit code 42: damaged data, where the training was stopped."""
    stopped, step = there.job(), there.journal.step
    assert stopped
    shard = sorted((there.run.parents[1] / "datasets" / there.run.name).glob("*.bin"))[0]
    whole = shard.read_bytes()
    shard.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert "was stopped by `trainyard stop`" in there.resume()
    assert (there.job() or {})["metadata"]["uid"] == stopped["metadata"]["uid"]
    followed = tool(there.cluster.stack, "follow")
    assert followed.returncode == 1
    assert "The training failed: " in followed.stdout
    shard.write_bytes(whole)
    said = there.resume()
    assert "had failed: " in said
    assert "checksum" in said, said
    there.goes_on(step)


def test_destroyed_while_it_trains_it_leaves_nothing(there: Elastic) -> None:
    stack, begin = there.cluster.stack, time.time()
    there.cluster.until(lambda: there.journal.made_since(begin) >= 4, 90, "four more steps")
    clock = time.monotonic()
    stack.destroy()
    assert time.monotonic() - clock < 120
    assert "NotFound" in stack.kubectl("get", "namespace", stack.namespace).stderr
    assert stack.namespace not in stack.kubectl("get", "persistentvolumes").stdout
    assert stack.resources() == []


def test_every_step_was_that_of_an_undisturbed_training(there: Elastic, tmp_path: Path) -> None:
    made = losses(there.run)
    assert sorted(made) == list(range(1, len(made) + 1)), "a step is missing, or is there twice"
    assert made == pytest.approx(losses(there.undisturbed(tmp_path, len(made))), abs=SAME_LOSS)
