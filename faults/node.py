"""A training on the local node, whose files this machine sees: exit codes, lost steps, pauses and losses."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from kubernetes import client, watch

from cli.cluster import JOB, as_json, ends
from cli.target import Target
from faults.cluster import Cluster
from faults.fault import PERIOD, Expected, Fault, Result, expect, judge
from faults.journal import Journal
from faults.nodes import ROOT
from faults.on_pods import MANY
from faults.stack import Stack
from infra.parse import parse
from local import paths
from trainer.config.schema import stored

ETCD = "etcd"
"""Name of the rendezvous' StatefulSet and of its Service."""
ABSENCE = 60
"""Seconds without etcd: four times the time after which a silent member counts as lost."""
STACK: dict[str, Any] = {
    # Three workers fit on a node with two processors. Without a limit, each takes what is free.
    "workers": {"count": 1, "min": 1, "cpu": 0.15, "memoryGib": 2},
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


@contextlib.contextmanager
def elastic_stack(folder: Path, environment: dict[str, str]) -> Iterator[Stack]:
    """Bring up the training that meets the faults; destroy it at the end."""
    stack, run = Stack("e2e-elastic", folder, environment), f"elastic-{uuid.uuid4().hex[:8]}"
    stack.write(**STACK, job={"name": run})
    stack.select()
    try:
        stack.up()
        yield stack
    finally:
        stack.remove()
        shutil.rmtree(paths.STORAGE / "runs" / run, ignore_errors=True)


class Node(Cluster):
    """The training of a stack that is up. Leaving it ends the thread that reads its steps."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.config, self.outputs = stack, parse(stack.values, stack.name), stack.outputs()
        self.count, self.most = self.config.workers.count, MANY
        self.run = Path(self.outputs["dataFolder"]) / Path(self.outputs["runDirectory"]).relative_to("/data")
        self._batch: Any = client.BatchV1Api(self.api())
        self._uid: str = self._job()["metadata"]["uid"]
        made = self.core.read_namespaced_config_map(self.target().job, self.stack.namespace)
        (self.settings,) = made.data.values()
        self.journal, self._codes = Journal(self.run), list[int | None]()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.end()

    def target(self) -> Target:
        told = self.outputs
        return Target(
            told["context"],
            told["namespace"],
            told["jobName"],
            told["dataFolder"],
            {},
            told["runDirectory"],
            self.stack.environment.get("KUBECONFIG"),
        )

    def more_steps(self, count: int = 4, seconds: float = 90) -> None:
        begin, step = time.time(), self.journal.step
        self.until(lambda: self.journal.made_since(begin) >= count, seconds, f"{count} steps after step {step}")

    def train(self, count: int | None = None) -> list[dict[str, Any]]:
        found = super().train(count)
        self.more_steps()  # after the last checkpoint, which a fault can lose
        return found

    def delete(self, pod: dict[str, Any], grace: int | None = None) -> int | None:
        return self._ended([pod], lambda: super(Node, self).delete(pod, grace))[0]

    def evict(self, pod: dict[str, Any]) -> int | None:
        """Evict a pod, as draining a node does, which the Job must see as no failure of the pod."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self._breaks([pod], name)

        def evict() -> None:
            self.core.create_namespaced_pod_eviction(name, namespace, {"metadata": {"name": name}})

        return self._ended([pod], evict, "EvictionByEvictionAPI")[0]

    def scale(self, count: int) -> list[int | None]:
        return self._ended(self._workers[count:], lambda: super(Node, self).scale(count))

    def lose_etcd(self) -> None:
        """Kill etcd's pod, whose data go with it. The training goes on; the pod returns after a minute."""
        apps: Any = client.AppsV1Api(self.api())

        def scale(replicas: int) -> None:
            apps.patch_namespaced_stateful_set_scale(ETCD, self.stack.namespace, {"spec": {"replicas": replicas}})

        def ready() -> bool:
            status = as_json(apps.read_namespaced_stateful_set, ETCD, self.stack.namespace)["status"]
            return bool(status.get("readyReplicas"))

        begin = time.time()
        scale(0)
        self.core.delete_namespaced_pod(f"{ETCD}-0", self.stack.namespace, grace_period_seconds=0)
        time.sleep(ABSENCE)
        expect(self.journal.longest_pause(begin) < ABSENCE / 4, "the training waited for etcd")
        scale(1)
        self.until(ready, 60, "etcd's pod")

    def stayed(self, pods: list[dict[str, Any]]) -> bool:
        return [pod["metadata"]["uid"] for pod in self.worker_pods()] == [pod["metadata"]["uid"] for pod in pods]

    def recovered(self) -> Any:
        found = super().recovered()
        job = self._job()
        expect(job["metadata"]["uid"] == self._uid, "the Job is another one")
        expect(not job["status"].get("failedIndexes"), f"an index was given up: {job['status']}")
        stayed = [pod["metadata"]["uid"] for pod in self._workers if pod["metadata"]["uid"] not in self._leaving]
        there = {pod["metadata"]["uid"] for pod in self.worker_pods()}
        expect(set(stayed) <= there, f"others than the broken ones were lost: {stayed} became {there}")
        return found

    def play(self, fault: Fault) -> Result:
        """Break the training, wait for its recovery, and judge it."""
        before, begin, problem = self.journal.lost, time.time(), ""
        self._codes = []
        try:
            fault.play(self)
        except Expected as error:
            problem = str(error) or "an expectation failed"
        lost = self.journal.lost - before
        pause = self.journal.longest_pause(begin)
        return Result(fault, problem or judge(fault, lost), lost, pause, tuple(self._codes))

    def _job(self) -> dict[str, Any]:
        return as_json(self._batch.read_namespaced_job, self.target().job, self.stack.namespace)

    def _ended(self, pods: list[dict[str, Any]], act: Callable[[], Any], reason: str = "") -> list[int | None]:
        """Act, and follow the pods to their end; return their exit codes. None: removed before one was reported."""
        core, where = self.core, {"label_selector": JOB + self.target().job}
        known = as_json(core.list_namespaced_pod, self.stack.namespace, **where)["metadata"]["resourceVersion"]
        act()
        codes: dict[str, int | None] = {}
        left = {pod["metadata"]["uid"] for pod in pods}
        # The API server keeps what happened since, so nobody has to watch meanwhile.
        stream: Any = watch.Watch().stream if left else lambda *_, **__: ()
        follow = core.list_namespaced_pod
        for event in stream(follow, self.stack.namespace, **where, resource_version=known, timeout_seconds=90):
            pod = event["raw_object"]
            uid = pod["metadata"]["uid"]
            if uid in left:
                # The last event of a force-deleted pod may lack the exit code that an earlier event had.
                if ended := ends(pod):
                    codes[uid] = ended[0]["exitCode"]
                conditions = pod["status"].get("conditions") or []
                if event["type"] == "DELETED" or (uid in codes and not reason):
                    left.discard(uid)
                if reason in [each.get("reason") for each in conditions]:
                    reason = ""
            if not left:
                break
        expect(not left, f"{len(left)} of {len(pods)} pods did not end within 90 s")
        expect(not reason, f"{reason} is no condition of the pod")
        self._codes += [codes.get(pod["metadata"]["uid"]) for pod in pods]
        return self._codes[-len(pods) :] if pods else []


def losses(run: Path, name: str = "loss") -> dict[int, float]:
    """Map each step of a run to its loss of this name."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return {entry["step"]: entry[name] for entry in entries if name in entry}


def difference(node: Node) -> float:
    """Return the largest difference, over all steps, between the loss and that of an undisturbed training."""
    made = losses(node.run)
    expect(sorted(made) == list(range(1, len(made) + 1)), "a step is missing in metrics.jsonl, or is there twice")
    with tempfile.TemporaryDirectory(prefix="trainyard-pods-") as folder:
        wanted = losses(undisturbed(node, Path(folder), len(made)))
    return float(np.abs([made[step] - wanted[step] for step in made]).max())  # NaN if a loss is


def undisturbed(node: Node, folder: Path, steps: int) -> Path:
    """Run the pods' training in one process of this machine, for this many steps; return its folder."""
    (file := folder / "training.yaml").write_text(node.settings, "utf-8")
    data = stored(node.settings)["data.directory"].replace("/data", str(node.run.parents[1]), 1)
    arguments = {
        "data.directory": data,
        "run.directory": str(folder / "run"),
        "steps": str(steps),
        "evaluation.every": str(steps),
        "evaluation.batches": "1",
        "checkpoint.every_steps": str(steps),
    }
    command = [sys.executable, "-m", "trainer.launch", "--standalone", "--", "--config", str(file)]
    command += [f"{key}={value}" for key, value in arguments.items()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"the undisturbed run ended with {done.returncode}: {done.stderr[-500:]}")
    return folder / "run"
