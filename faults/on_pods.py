"""The faults of pods, on any cluster.

Each is a function that breaks a training, waits until all workers train again in the same Job, and returns what was
seen in a line.
"""

from __future__ import annotations

import time
from typing import Any

from kubernetes import client

from cli.cluster import JOB, as_json, workers
from faults.cluster import PATIENCE, Cluster, Pods, proof_of
from faults.fault import Cannot, expect
from trainer.plain import counted
from workloads.nfs import NAME as NFS_SERVER

ETCD = "etcd"
"""Name of the rendezvous' StatefulSet."""
ABSENCE = 60
"""Seconds without etcd: four times the time after which a silent member counts as lost, and on slow machines some
records of a run."""


def pod_killed(there: Cluster) -> str:
    return there.survive(lambda pods: (_kill(there, pods[-1:]), _name(pods[-1])))


def pod_evicted(there: Cluster) -> str:
    """A notice, as where a node is drained: the Job must not see it as a failure of the pod."""
    failed = there.training().failed

    def evict(pods: Pods) -> tuple[Pods, str]:
        name = _name(pods[-1])
        there.core.create_namespaced_pod_eviction(name, there.target().namespace, {"metadata": {"name": name}})
        return pods[-1:], name

    said = there.survive(evict)
    expect(there.training().failed == failed, "the eviction counts as a failure of the pod")
    return said


def etcd_data_lost(there: Cluster) -> str:
    """Etcd's pod goes, with its data, and an empty one comes after a minute. The same pods form a new round at it."""
    apps: Any = client.AppsV1Api(there.api())
    namespace = there.target().namespace

    def scale(replicas: int) -> None:
        apps.patch_namespaced_stateful_set_scale(ETCD, namespace, {"spec": {"replicas": replicas}})

    def ready() -> bool:
        return bool(as_json(apps.read_namespaced_stateful_set, ETCD, namespace)["status"].get("readyReplicas"))

    def empty(_: Pods) -> tuple[Pods, str]:
        try:
            scale(0)
            there.core.delete_namespaced_pod(f"{ETCD}-0", namespace, grace_period_seconds=0)
            time.sleep(ABSENCE / 2)
            half = there.training().figures["step"]
            time.sleep(ABSENCE / 2)
            expect(there.training().figures["step"] > half, "the training waited for etcd")
        finally:
            scale(1)
        there.until(ready, 300, "etcd's pod")
        return [], f"etcd away for {ABSENCE} s, and its data lost"

    return there.survive(empty)


def node_lost(there: Cluster) -> str:
    """The machine of a worker is deleted; without a cloud, its node is cordoned and its workers are killed."""
    cloud = proof_of(there.config)

    def lose(pods: Pods) -> tuple[Pods, str]:
        node = there.node(pods[-1]["spec"]["nodeName"])
        name = node["metadata"]["name"]
        broken = [pod for pod in pods if pod["spec"]["nodeName"] == name]
        if cloud is not None:
            cloud.delete_machine(node["spec"]["providerID"])
            return broken, f"the machine of {name}"
        there.cordon(name, closed=True)
        try:
            _kill(there, broken)
            # On the only node the new pods wait; else they run on another.
            where = there.until(lambda: _elsewhere_or_waiting(there, name), 300, "new pods")
        finally:
            there.cordon(name, closed=False)
        return broken, f"{name} cordoned, its {counted(len(broken), 'worker')} killed: their successors {where}"

    return there.survive(lose)


def machine_taken_back(there: Cluster) -> str:
    """The cloud takes one machine back, as it does with Spot machines."""
    cloud, nodes = proof_of(there.config), there.config.nodes
    if cloud is None:
        raise Cannot("no cloud takes machines of this cluster back")
    if nodes is None or nodes.consumption != "spot":
        raise Cannot("the stack's machines are not Spot")

    def take(pods: Pods) -> tuple[Pods, str]:
        node = there.node(pods[-1]["spec"]["nodeName"])
        return pods[-1:], f"{node['metadata']['name']}: {cloud.interrupt(node['spec']['providerID'], there.until)}"

    return there.survive(take)


def nfs_server_killed(there: Cluster) -> str:
    namespace, label = f"{there.config.cluster.namespace}-storage", f"app.kubernetes.io/component={NFS_SERVER}"
    if (kind := there.config.storage.kind) != "nfs":
        raise Cannot(f"the shared volume ({kind or 'a directory of the node'}) has no server pod")
    before, clock = there.training(), time.monotonic()
    (server,) = there.pods(label, namespace)
    there.core.delete_namespaced_pod(_name(server), namespace, grace_period_seconds=0)

    def replaced() -> bool:
        pods = there.pods(label, namespace)
        ready = [each for pod in pods for each in pod["status"].get("containerStatuses") or [] if each["ready"]]
        return bool(ready) and all(pod["metadata"]["uid"] != server["metadata"]["uid"] for pod in pods)

    def saved() -> Any:
        found, step = there.training(), before.figures["step"]
        return found if found.figures["step"] > (found.record.checkpoint or 0) > step else None

    there.until(replaced, 600, "a new NFS server")
    away = time.monotonic() - clock
    # Wait for a checkpoint: steps alone may never touch the volume.
    found = there.until(saved, PATIENCE, "a checkpoint on the served volume")
    return (
        f"the server was back after {away:.0f} s, a checkpoint was on it after {time.monotonic() - clock:.0f} s; "
        f"round {before.record.round} became {found.record.round}"
    )


def resized(there: Cluster) -> str:
    if there.most < 2:
        raise Cannot("the stack has one worker node at most")
    if not there.elastic:
        raise Cannot("the stack's training is not elastic (workers.spares, job.runtime or queued nodes)")
    count, lines = there.count, []
    other = count + 1 if there.most > count else count - 1

    def resize(pods: Pods, wanted: int) -> tuple[Pods, str]:
        there.up(workers={"count": wanted})
        there.count = wanted
        return pods[wanted:], f"{counted(len(pods), 'worker')} became {wanted}"

    for before, wanted in ((count, other), (other, count)):
        clock = time.monotonic()
        there.survive(lambda pods, wanted=wanted: resize(pods, wanted))
        lines.append(f"{before} to {counted(wanted, 'worker')}, training after {time.monotonic() - clock:.0f} s")
    return "; ".join([*lines, "the same Job all the time"])


def _name(pod: dict[str, Any]) -> str:
    return pod["metadata"]["name"]


def _kill(there: Cluster, pods: Pods) -> Pods:
    """Delete pods without grace."""
    for pod in pods:
        there.core.delete_namespaced_pod(_name(pod), pod["metadata"]["namespace"], grace_period_seconds=0)
    return pods


def _elsewhere_or_waiting(there: Cluster, node: str) -> str:
    pods = workers(there.pods(JOB + there.target().job), "Pending")
    placed = [pod for pod in pods if pod["spec"].get("nodeName")]
    if len(pods) == there.count and all(pod["spec"]["nodeName"] != node for pod in placed):
        if len(placed) == there.count:
            return "ran on other nodes"
        conditions = [each for pod in pods for each in pod["status"].get("conditions") or []]
        if any((each["status"], each.get("reason")) == ("False", "Unschedulable") for each in conditions):
            return "waited until it was open again"
    return ""
