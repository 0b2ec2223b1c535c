"""Several trainings on a node with room for fewer: the first has priority, the others give way and come back, and what
ends one leaves the others alone.

On the real engine and the real node, in order. tests/e2e/test_elastic_pods.py compares the losses of a training that is
disturbed, and tests/e2e/test_job_controller.py shows one that lets its nodes go.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from cli.cluster import as_json, connect
from faults.fault import until
from faults.on_pods import ETCD
from faults.stack import Stack
from local import paths
from tests.e2e.conftest import succeed, tool
from workloads.objects import TRAINING

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.usefixtures("room_alone")]

MARK = f"many-{uuid.uuid4().hex[:6]}"
#: Of the trainings that go on for as long as a test looks at them; `calm` is done after two steps.
ENDLESS = {"steps": 100_000}
CALM = {"workers": {"count": 1}}
#: Pods that the node has room for: two workers of the first training, and one of the second.
ROOM = 3
#: Folders of all trainings that there were.
RUNS: set[Path] = set()
#: Of all memory on the node that pods have not asked for, the part that ROOM workers share.
SHARE = 0.9


def free_gib(core: Any) -> float:
    """The memory of the only node with a kubelet that no pod asked for, GiB."""
    nodes = as_json(core.list_node)["items"]
    (node,) = [each for each in nodes if "memory" in each["status"].get("allocatable", {})]
    pods = as_json(core.list_pod_for_all_namespaces)["items"]
    alive = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
    boxes = [box for pod in alive for box in pod["spec"]["containers"]]
    asked = [box["resources"].get("requests", {}).get("memory", "0Ki") for box in boxes]
    return _gib(node["status"]["allocatable"]["memory"]) - sum(map(_gib, asked))


def _gib(text: str) -> float:
    return float(text[:-2]) * {"Ki": 2**-20, "Mi": 2**-10, "Gi": 1.0}[text[-2:]]


@pytest.fixture(scope="module")
def stack(node_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack("many", tmp_path_factory.mktemp("many"), node_environment)
    core = client.CoreV1Api(connect(made.values["cluster"]["context"], node_environment["KUBECONFIG"]))
    made.write(
        workers={"count": 2, "min": 1, "cpu": 0.15, "memoryGib": round(SHARE * free_gib(core) / ROOM, 1)},
        dataset={"name": MARK},
        tensorboard={"enabled": False},
        training={
            "model": {"preset": "tiny"},
            "steps": 2,
            "tokensPerStep": 1024,
            "sequenceLength": 128,
            "microBatch": 2,
            "precision": "fp32",
            "optimizer": {"warmupSteps": 1, "schedule": "constant"},
            "evaluation": {"every": 100, "batches": 2},
            "checkpoint": {"everySteps": 25},
        },
    )
    made.select()
    try:
        yield made
    finally:
        made.remove()
        for folder in (*RUNS, *paths.STORAGE.glob(f"**/{MARK}*")):
            shutil.rmtree(folder, ignore_errors=True)


def up(stack: Stack, **trainings: Any) -> None:
    """Bring the stack up with these trainings alone; `high` is more urgent than `low`.

    The engine sorts names, and only of a stack file in its place the program knows the order: here by name."""
    stack.values["trainings"] = trainings
    stack.write()
    stack.up()
    RUNS.update(run(stack, name) for name in trainings)


def run(stack: Stack, training: str) -> Path:
    """The folder of a run on this machine."""
    told = stack.outputs()
    return Path(told["dataFolder"]) / Path(told["trainings"][training]["runDirectory"]).relative_to("/data")


def step(folder: Path) -> int:
    try:
        return int(json.loads((folder / "status.json").read_text())["step"])
    except (OSError, ValueError, KeyError):
        return 0


def goes_on(folder: Path, after: int = 10) -> None:
    start = step(folder)
    until(lambda: step(folder) >= start + after, 240, f"{folder.name} makes steps")


def pods(stack: Stack, training: str, phase: str) -> list[str]:
    """The pods of a training in a phase that are not leaving."""
    asked = stack.kubectl("get", "pods", "--selector", f"{TRAINING}={training}", "-o", "json")
    found = [pod for pod in json.loads(asked.stdout)["items"] if not pod["metadata"].get("deletionTimestamp")]
    return [pod["metadata"]["name"] for pod in found if pod["status"].get("phase") == phase]


def has(stack: Stack, training: str, running: int) -> None:
    until(lambda: len(pods(stack, training, "Running")) == running, 180, f"{training} runs in {running} pods", pause=1)


def job(stack: Stack, training: str) -> dict[str, Any]:
    asked = stack.kubectl("get", "jobs", "--selector", f"{TRAINING}={training}", "-o", "json")
    (found,) = json.loads(asked.stdout)["items"]
    return found


def test_one_that_fails_for_good_says_so_and_the_others_go_on(stack: Stack) -> None:
    """It is the most urgent one: the others get its room once it has failed."""
    broken = {**ENDLESS, "model": {"preset": "", "config": "/data/models/none/config.json"}}
    up(stack, broken=broken, calm=CALM, low=ENDLESS)
    followed = tool(stack, "follow", "--training", "broken")
    assert followed.returncode == 1
    assert "The training failed: " in followed.stdout
    has(stack, "low", 2)
    goes_on(run(stack, "low"))


def test_a_more_urgent_training_takes_the_room_and_the_other_goes_on_with_less(stack: Stack) -> None:
    low = job(stack, "low")
    up(stack, calm=CALM, high=ENDLESS, low=ENDLESS)
    has(stack, "high", 2)
    has(stack, "low", 1)
    until(lambda: len(pods(stack, "low", "Pending")) == 1, 60, "the preempted worker waits", pause=1)
    for name in ("high", "low"):
        goes_on(run(stack, name))
    after = job(stack, "low")
    assert after["metadata"]["uid"] == low["metadata"]["uid"], "the training trains on undisturbed"
    assert not after["status"].get("failedIndexes")
    shown = succeed(stack, "status", "--training", "low")
    assert "1 of 2" in shown, shown


def test_a_lost_pod_of_each_and_the_loss_of_etcd_stop_none(stack: Stack) -> None:
    for name in ("high", "low"):
        stack.kubectl("delete", "pod", pods(stack, name, "Running")[0], "--grace-period=0", "--force")
    stack.kubectl("delete", "pod", f"{ETCD}-0", "--grace-period=0", "--force")
    for name in ("high", "low"):
        goes_on(run(stack, name))
    has(stack, "high", 2)


def test_a_training_that_is_removed_ends_keeps_its_run_and_leaves_its_room(stack: Stack) -> None:
    folder = run(stack, "high")
    up(stack, calm=CALM, low=ENDLESS)
    assert not stack.kubectl("get", "jobs", "--selector", f"{TRAINING}=high", "-o", "name").stdout
    assert list(folder.glob("checkpoints/step-*/manifest.json"))
    has(stack, "low", 2)


def test_a_command_names_the_trainings_to_choose_from(stack: Stack) -> None:
    asked = tool(stack, "logs")
    assert asked.returncode == 2
    assert "stack many has several trainings; give --training NAME, one of: calm, low" in asked.stderr
    assert "no such training; there are: calm, low" in tool(stack, "logs", "--training", "lwo").stderr


def test_stop_and_resume_are_for_one_or_all(stack: Stack) -> None:
    stopped = succeed(stack, "stop")
    assert "nothing to stop: it is trained" in stopped
    assert "stopped at step" in stopped
    resumed = succeed(stack, "resume", "--training", "low", "--config-file", str(stack.config))
    assert "resumes from its newest checkpoint" in resumed
    goes_on(run(stack, "low"))
    stack.up(expect_no_changes=True)
