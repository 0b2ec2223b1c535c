"""A training on any cluster, which on_pods.py breaks: the stack that made it, its Job's pods, and its recovery."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kubernetes import client

from cli.cluster import JOB, TrainingJob, as_json, connect, workers
from cli.pods import last_words
from cli.target import Target, target_from
from cli.training_status import TrainingStatus as Training
from cli.training_status import look
from faults.fault import Expected, expect, until
from faults.stack import Stack
from infra.clouds import Proof, cloud_of
from infra.config import StackConfig
from infra.parse import parse
from trainer.plain import counted

PATIENCE = 1800
"""Seconds until the replacement of a lost node trains: machines with accelerators take up to 15 minutes to come."""
MANY = 3
"""Workers that nodes which a stack did not make have room for."""
Pods = list[dict[str, Any]]
"""As the API server has them."""


class Cluster:
    """The training of a stack."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.config = stack, parse(stack.values, stack.name)
        self.count = self.config.workers.count
        """The workers that train when all is well."""
        self.most = self.config.nodes.max if self.config.nodes else MANY
        """Workers that the stack's nodes have room for."""
        self._target: Target | None = None

    @property
    def elastic(self) -> bool:
        queued = self.config.nodes is not None and self.config.nodes.consumption == "queued"
        return not (self.config.workers.spares or self.config.job.runtime != "job" or queued)

    def target(self) -> Target:
        """Namespace, Job and run of the stack; asked once per `up`."""
        if self._target is None:
            told = self.stack.outputs()
            kubeconfig = told.get("kubeconfig") or self.config.cluster.kubeconfig
            kubeconfig = kubeconfig or self.stack.environment.get("KUBECONFIG")
            self._target = target_from(told, kubeconfig, "", told["jobName"], told["runDirectory"])
        return self._target

    def up(self, **sections: dict[str, Any]) -> None:
        """Change sections of the stack and bring it up."""
        self.stack.write(**sections)
        self.stack.up()
        self._target = None

    def cordon(self, node: str, closed: bool) -> None:
        """Close a node for new pods, or open it."""
        self.core.patch_node(node, {"spec": {"unschedulable": closed or None}})

    # What is there.

    @property
    def core(self) -> Any:
        """Any: the client accepts plain JSON, but its type hints demand its own models."""
        return client.CoreV1Api(self.api())

    def api(self) -> client.ApiClient:
        return connect(self.target().context, self.target().kubeconfig)

    def pods(self, selector: str, namespace: str | None = None) -> Pods:
        namespace = namespace or self.target().namespace
        return as_json(self.core.list_namespaced_pod, namespace, label_selector=selector)["items"]

    def worker_pods(self) -> Pods:
        """The running ones, by index."""
        return workers(self.pods(JOB + self.target().job))

    def node(self, name: str) -> dict[str, Any]:
        return as_json(self.core.read_node, name)

    def training(self) -> Training:
        return look(TrainingJob.of(self.target()))

    def job(self) -> dict[str, Any]:
        return TrainingJob.of(self.target()).read()[0]

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """Wait for a condition; return its value once it is true."""
        return until(condition, seconds, what, self.stack.tick, pause=1)

    def steps_on(self, count: int, seconds: float, anew: Callable[[Training], bool] = lambda _: True) -> Training:
        """Wait for two different steps of this many workers, both after `anew` holds."""
        first: list[Training] = []

        def trains() -> Training | None:
            found = self.training()
            if found.condition == "Failed":
                raise Expected(f"the training ended: {found.why}")
            pods = sum(pod.state == "Running" for pod in found.pods)
            self.stack.say(f"step {found.figures.get('step', '-')}, round {found.record.round}, {counted(pods, 'pod')}")
            if found.figures.get("world_size") != count * self.config.workers.processes:
                return None
            if not anew(found):
                return None
            if not first or found.figures["step"] < first[0].figures["step"]:
                first[:] = [found]
            return found if found.figures["step"] > first[0].figures["step"] else None

        return self.until(trains, seconds, f"steps of {counted(count, 'worker')} in a new round")

    def survive(self, breaks: Callable[[Pods], tuple[Pods, str]]) -> str:
        """Break the training, and wait until all workers train again in the same Job; return what was seen, in a line.

        `breaks` gets the workers, by index, once there is a checkpoint. It returns those that must go, and what it did.
        """
        self.until(lambda: self.training().record.checkpoint, 600, "a first checkpoint")
        before, pods, job, clock = self.training(), self.worker_pods(), self.job(), time.monotonic()
        broken, what = breaks(pods)
        found = self.steps_on(self.count, PATIENCE, lambda found: found.record.round != before.record.round)
        there, now = _uids(self.worker_pods()), self.job()
        expect(bool(there) and not there & _uids(broken), "the pod that was to go is still there")
        same = now["metadata"]["uid"] == job["metadata"]["uid"]
        expect(same, f"the Job was replaced: {before.job} became {found.job}")
        expect(not now["status"].get("failedIndexes"), f"an index was given up: {now['status']}")
        lost = _uids(pods) - _uids(broken) - there
        if lost and self.config.nodes is None:  # a cloud may take any of its machines back meanwhile
            ended = [pod for pod in self.pods(JOB + self.target().job) if pod["metadata"]["uid"] in lost]
            why = "; ".join(f"{pod['metadata']['name']}: {last_words(pod)}" for pod in ended)
            raise Expected(f"{counted(len(lost), 'worker')} beside the broken ones were lost; {why}")
        return (
            f"{what}; {counted(self.count, 'worker')} made steps again after {time.monotonic() - clock:.0f} s, in "
            f"round {found.record.round} (before: {before.record.round}), step {before.figures['step']} before, "
            f"checkpoint {before.record.checkpoint}, step {found.figures['step']} after"
        )


def _uids(pods: Pods) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def proof_of(config: StackConfig) -> Proof | None:
    """Access to the cloud's machines; None: the stack made no cluster."""
    make = cloud_of(config).proof
    return make(config) if make else None
