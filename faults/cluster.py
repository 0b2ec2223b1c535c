"""A training on any cluster, which can be broken: the stack that made it, its Job's pods, and its recovery."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes import client

from cli.cluster import JOB, TrainingJob, as_json, connect, workers
from cli.target import Target
from cli.training_status import TrainingStatus as Training
from cli.training_status import look
from faults.fault import Cannot, Expected, expect, until
from faults.stack import Stack
from infra.clouds import Proof, cloud_of
from infra.config import StackConfig
from infra.parse import parse
from trainer.plain import counted
from workloads.nfs import NAME as NFS_SERVER

PATIENCE = 1800
"""Seconds until the replacement of a lost node trains: machines with accelerators take up to 15 minutes to come."""
ETCD = "etcd"
"""Name of the rendezvous' StatefulSet."""
ABSENCE = 60
"""Seconds without etcd: four times the time after which a silent member counts as lost, and on slow machines some
records of a run."""
MANY = 3
"""Workers that nodes which a stack did not make have room for."""


class Cluster:
    """The training of a stack. A subclass may say what a wait shows, and end it."""

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

    def tick(self) -> None:
        """Called while something is waited for; may raise."""

    def say(self, text: str) -> None:
        """Show what is waited for."""

    def target(self) -> Target:
        """Namespace, Job and run of the stack; asked once per `up`."""
        if self._target is None:
            told = self.stack.outputs()
            kubeconfig = told.get("kubeconfig") or self.config.cluster.kubeconfig
            self._target = Target(
                context=told["context"],
                namespace=told["namespace"],
                job=told["jobName"],
                data_folder=told.get("dataFolder"),
                commands={},
                run_directory=told["runDirectory"],
                kubeconfig=kubeconfig or self.stack.environment.get("KUBECONFIG"),
            )
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

    def pods(self, selector: str, namespace: str | None = None) -> list[dict[str, Any]]:
        namespace = namespace or self.target().namespace
        return as_json(self.core.list_namespaced_pod, namespace, label_selector=selector)["items"]

    def worker_pods(self) -> list[dict[str, Any]]:
        """The running ones, by index."""
        return workers(self.pods(JOB + self.target().job))

    def node(self, name: str) -> dict[str, Any]:
        return as_json(self.core.read_node, name)

    def training(self) -> Training:
        return look(TrainingJob.of(self.target()))

    def job(self) -> dict[str, Any]:
        batch: Any = client.BatchV1Api(self.api())
        return as_json(batch.read_namespaced_job, self.target().job, self.target().namespace)

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """Wait for a condition; return its value once it is true."""
        return until(condition, seconds, what, self.tick, pause=1)

    def steps_on(self, count: int, seconds: float, anew: Callable[[Training], bool] = lambda _: True) -> Training:
        """Wait for two different steps of this many workers, both after `anew` holds."""
        first: list[Training] = []

        def trains() -> Training | None:
            found = self.training()
            if found.condition == "Failed":
                raise Expected(f"the training ended: {found.why}")
            pods = sum(pod.state == "Running" for pod in found.pods)
            self.say(f"step {found.figures.get('step', '-')}, round {found.record.round}, {counted(pods, 'pod')}")
            if found.figures.get("world_size") != count * self.config.workers.processes:
                return None
            if not anew(found):
                return None
            if not first or found.figures["step"] < first[0].figures["step"]:
                first[:] = [found]
            return found if found.figures["step"] > first[0].figures["step"] else None

        return self.until(trains, seconds, f"steps of {counted(count, 'worker')} in a new round")

    # Faults, and recovery.

    def train(self) -> list[dict[str, Any]]:
        """Wait for a checkpoint, and mark the fault; return the workers, by index."""
        self.until(lambda: self.training().record.checkpoint, 600, "a first checkpoint")
        self._before, self._workers, self._job = self.training(), self.worker_pods(), self.job()["metadata"]["uid"]
        self._leaving: list[str] = []
        self._what, self._clock = "", time.monotonic()
        return self._workers

    def kill(self, pod: dict[str, Any]) -> None:
        """Delete a worker without grace."""
        self._breaks([pod], pod["metadata"]["name"])
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self.core.delete_namespaced_pod(name, namespace, grace_period_seconds=0)

    def evict(self, pod: dict[str, Any]) -> None:
        """Evict a worker with its grace, as draining a node does."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self._breaks([pod], name)
        self.core.create_namespaced_pod_eviction(name, namespace, {"metadata": {"name": name}})

    def scale(self, count: int) -> None:
        self._breaks(self._workers[count:], f"{counted(len(self._workers), 'worker')} became {count}")
        self.up(workers={"count": count})
        self.count = count

    def lose_etcd(self) -> None:
        """Kill etcd's pod, whose data go with it, and bring an empty one back after a minute."""
        apps: Any = client.AppsV1Api(self.api())
        namespace = self.target().namespace

        def scale(replicas: int) -> None:
            apps.patch_namespaced_stateful_set_scale(ETCD, namespace, {"spec": {"replicas": replicas}})

        def ready() -> bool:
            status = as_json(apps.read_namespaced_stateful_set, ETCD, namespace)["status"]
            return bool(status.get("readyReplicas"))

        self._breaks([], f"etcd away for {ABSENCE} s, and its data lost")
        try:
            scale(0)
            self.core.delete_namespaced_pod(f"{ETCD}-0", namespace, grace_period_seconds=0)
            time.sleep(ABSENCE / 2)
            half = self.training().figures["step"]
            time.sleep(ABSENCE / 2)
            expect(self.training().figures["step"] > half, "the training waited for etcd")
        finally:
            scale(1)
        self.until(ready, 300, "etcd's pod")

    def lose_node(self, pod: dict[str, Any]) -> None:
        """Delete a worker's machine; without a cloud, cordon the node and kill its workers."""
        node, cloud = self.node(pod["spec"]["nodeName"]), proof_of(self.config)
        name = node["metadata"]["name"]
        there = [each for each in self._workers if each["spec"]["nodeName"] == name]
        if cloud is not None:
            self._breaks(there, f"the machine of {name}")
            cloud.delete_machine(node["spec"]["providerID"])
            return
        with self._cordoned(name):
            for each in there:
                self.kill(each)
            # On the only node the new pods wait; else they run on another.
            where = self.until(lambda: self._elsewhere_or_waiting(name), 300, "new pods")
        self._breaks(there, f"{name} cordoned, its {counted(len(there), 'worker')} killed: their successors {where}")

    def take_machine_back(self) -> None:
        """Have the cloud take one machine back, as it does with Spot machines."""
        cloud = proof_of(self.config)
        if cloud is None:
            raise Cannot("no cloud takes machines of this cluster back")
        if self.config.nodes is None or self.config.nodes.consumption != "spot":
            raise Cannot("the stack's machines are not Spot")
        pod = self.train()[-1]
        node = self.node(pod["spec"]["nodeName"])
        how = cloud.interrupt(node["spec"]["providerID"], self.until)
        self._breaks([pod], f"{node['metadata']['name']}: {how}")

    def kill_nfs_server(self) -> str:
        namespace, label = f"{self.config.cluster.namespace}-storage", f"app.kubernetes.io/component={NFS_SERVER}"
        if self.config.storage.kind != "nfs":
            kind = self.config.storage.kind or "a directory of the node"
            raise Cannot(f"the shared volume ({kind}) has no server pod")
        before = self.training()
        (server,) = self.pods(label, namespace)
        clock = time.monotonic()
        self.core.delete_namespaced_pod(server["metadata"]["name"], namespace, grace_period_seconds=0)

        def replaced() -> bool:
            pods = self.pods(label, namespace)
            ready = [each for pod in pods for each in pod["status"].get("containerStatuses") or [] if each["ready"]]
            return bool(ready) and all(pod["metadata"]["uid"] != server["metadata"]["uid"] for pod in pods)

        def saved() -> Training | None:
            found, step = self.training(), before.figures["step"]
            return found if found.figures["step"] > (found.record.checkpoint or 0) > step else None

        self.until(replaced, 600, "a new NFS server")
        away = time.monotonic() - clock
        # Wait for a checkpoint: steps alone may never touch the volume.
        found = self.until(saved, PATIENCE, "a checkpoint on the served volume")
        return (
            f"the server was back after {away:.0f} s, a checkpoint was on it after {time.monotonic() - clock:.0f} s; "
            f"round {before.record.round} became {found.record.round}"
        )

    def recovered(self) -> Any:
        """Wait until all workers train again in the same Job; return what was seen, in a line."""
        before, clock = self._before, self._clock

        def gone() -> bool:
            there = [pod["metadata"]["uid"] for pod in self.worker_pods()]
            return bool(there) and not set(self._leaving) & set(there)

        found = self.steps_on(self.count, PATIENCE, lambda found: found.record.round != before.record.round)
        expect(gone(), "the pod that was to go is still there")
        job = self.job()
        expect(job["metadata"]["uid"] == self._job, f"the Job was replaced: {before.job} became {found.job}")
        expect(not job["status"].get("failedIndexes"), f"an index was given up: {job['status']}")
        if self.config.nodes is None:  # a cloud may take any of its machines back meanwhile
            stayed = {pod["metadata"]["uid"] for pod in self._workers} - set(self._leaving)
            lost = stayed - {pod["metadata"]["uid"] for pod in self.worker_pods()}
            expect(not lost, f"{counted(len(lost), 'worker')} beside the broken ones were lost")
        return (
            f"{self._what}; {counted(self.count, 'worker')} made steps again after "
            f"{time.monotonic() - clock:.0f} s, in round {found.record.round} (before: {before.record.round}), step "
            f"{before.figures['step']} before, checkpoint {before.record.checkpoint}, step {found.figures['step']} "
            "after"
        )

    def _breaks(self, pods: list[dict[str, Any]], what: str) -> None:
        """Note which workers must go, and the words for it."""
        self._leaving, self._what = [pod["metadata"]["uid"] for pod in pods], what

    def _elsewhere_or_waiting(self, node: str) -> str:
        pods = workers(self.pods(JOB + self.target().job), "Pending")
        placed = [pod for pod in pods if pod["spec"].get("nodeName")]
        if len(pods) == self.count and all(pod["spec"]["nodeName"] != node for pod in placed):
            if len(placed) == self.count:
                return "ran on other nodes"
            conditions = [each for pod in pods for each in pod["status"].get("conditions") or []]
            if any((each["status"], each.get("reason")) == ("False", "Unschedulable") for each in conditions):
                return "waited until it was open again"
        return ""

    @contextlib.contextmanager
    def _cordoned(self, node: str) -> Iterator[None]:
        self.cordon(node, closed=True)
        try:
            yield
        finally:
            self.cordon(node, closed=False)


def proof_of(config: StackConfig) -> Proof | None:
    """Access to the cloud's machines; None: the stack made no cluster."""
    make = cloud_of(config).proof
    return make(config) if make else None
