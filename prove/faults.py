"""Faults that are injected while the training runs, and its recovery."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from chaos.row import expect
from cli.cluster import JOB, workers
from cli.state import State as Training
from infra.clouds import Proof, cloud_of
from infra.config import StackConfig
from prove.engine import Cannot
from prove.subject import Subject
from trainer.plain import counted
from workloads.nfs import NAME as NFS_SERVER

PATIENCE = 1800
"""Seconds until the replacement of a lost node trains: machines with accelerators take up to 15 minutes to come."""


def pod_killed(subject: Subject) -> str:
    def kill(pods: list[dict[str, Any]]) -> str:
        _delete(subject, pods[-1])
        return pods[-1]["metadata"]["name"]

    return _broken(subject, kill)


def node_lost(subject: Subject) -> str:
    """Delete a worker's machine; without a cloud, cordon the node and kill its workers."""
    cloud = proof_of(subject.config)

    def delete(pods: list[dict[str, Any]]) -> str:
        node = subject.node(pods[-1]["spec"]["nodeName"])
        if cloud is not None:
            cloud.delete_machine(node["spec"]["providerID"])
            return f"the machine of {node['metadata']['name']}"
        name = node["metadata"]["name"]
        victims = [pod for pod in pods if pod["spec"]["nodeName"] == name]
        with _cordon(subject, name):
            for pod in victims:
                _delete(subject, pod)
            # On the only node the new pods wait; else they run on another.
            where = subject.until(lambda: _elsewhere_or_waiting(subject, name, len(pods)), 300, "new pods")
        return f"{name} cordoned, its {counted(len(victims), 'worker')} killed: their successors {where}"

    return _broken(subject, delete)


def spot(subject: Subject) -> str:
    """Have the cloud take one machine back, as it does with Spot machines."""
    cloud = proof_of(subject.config)
    if cloud is None:
        raise Cannot("no cloud takes machines of this cluster back")
    if subject.config.nodes is None or subject.config.nodes.consumption != "spot":
        raise Cannot("the stack's machines are not Spot")

    def interrupt(pods: list[dict[str, Any]]) -> str:
        node = subject.node(pods[-1]["spec"]["nodeName"])
        how = cloud.interrupt(node["spec"]["providerID"], subject.until)
        return f"{node['metadata']['name']}: {how}"

    return _broken(subject, interrupt)


def nfs_server_killed(subject: Subject) -> str:
    namespace = f"{subject.config.cluster.namespace}-storage"
    if subject.config.storage.kind != "nfs":
        raise Cannot(
            f"the shared volume ({subject.config.storage.kind or 'a directory of the node'}) has no server pod"
        )
    before = subject.training()
    (server,) = subject.pods(f"app.kubernetes.io/component={NFS_SERVER}", namespace)
    clock = time.monotonic()
    subject.core.delete_namespaced_pod(server["metadata"]["name"], namespace, grace_period_seconds=0)

    def replaced() -> bool:
        pods = subject.pods(f"app.kubernetes.io/component={NFS_SERVER}", namespace)
        ready = [each for pod in pods for each in pod["status"].get("containerStatuses") or [] if each["ready"]]
        return bool(ready) and all(pod["metadata"]["uid"] != server["metadata"]["uid"] for pod in pods)

    subject.until(replaced, 600, "a new NFS server")
    away = time.monotonic() - clock
    # Wait for a checkpoint: steps alone may never touch the volume.
    found = subject.until(lambda: _saved_since(subject, before), PATIENCE, "a checkpoint on the served volume")
    return (
        f"the server was back after {away:.0f} s, a checkpoint was on it after {time.monotonic() - clock:.0f} s; "
        f"round {before.round} became {found.round}"
    )


def _saved_since(subject: Subject, before: Training) -> Training | None:
    found = subject.training()
    saved, step = found.checkpoint or 0, before.figures["step"]
    return found if saved > step and found.figures["step"] > saved else None


def resize(subject: Subject) -> str:
    config, most, count = subject.config, subject.most, subject.workers
    if most < 2:
        raise Cannot("the stack has one worker node at most")
    queued = config.nodes is not None and config.nodes.consumption == "queued"
    if config.workers.spares or config.job.runtime != "job" or queued:
        raise Cannot("the stack's training is not elastic (workers.spares, job.runtime or queued nodes)")
    other = count + 1 if most > count else count - 1
    told = []
    for before, wanted in ((count, other), (other, count)):
        now, clock = subject.training(), time.monotonic()
        subject.up(workers={"count": wanted})
        found = subject.steps_on(wanted, PATIENCE, _other_round(now))
        told.append(f"{before} to {counted(wanted, 'worker')}, training after {time.monotonic() - clock:.0f} s")
        expect(found.job == now.job, f"the Job was replaced: {now.job} became {found.job}")
    return "; ".join([*told, "the same Job all the time"])


def _broken(subject: Subject, fault: Callable[[list[dict[str, Any]]], str]) -> str:
    """Inject a fault into the last worker, and wait until all workers train again."""
    subject.until(lambda: subject.training().checkpoint, 600, "a first checkpoint")
    before, pods = subject.training(), subject.worker_pods()
    clock = time.monotonic()
    what = fault(pods)

    def replaced(_: Training | None = None) -> bool:
        there = [pod["metadata"]["uid"] for pod in subject.worker_pods()]
        return bool(there) and pods[-1]["metadata"]["uid"] not in there

    # Rounds start at 1 again if the only worker was away for longer than its lease (trainer/elastic/etcd.py).
    anew = replaced if len(pods) == 1 else _other_round(before)
    found = subject.steps_on(len(pods), PATIENCE, anew)
    expect(replaced(), "the pod that was to go is still there")
    return (
        f"{what}; {counted(len(pods), 'worker')} made steps again after {time.monotonic() - clock:.0f} s, in round "
        f"{found.round} (before: {before.round}), step {before.figures['step']} before, "
        f"checkpoint {before.checkpoint}, step {found.figures['step']} after"
    )


def _other_round(before: Training) -> Callable[[Training], bool]:
    return lambda found: found.round != before.round


def _elsewhere_or_waiting(subject: Subject, node: str, count: int) -> str:
    pods = workers(subject.pods(JOB + subject.target().job), "Pending")
    placed = [pod for pod in pods if pod["spec"].get("nodeName")]
    if len(pods) == count and all(pod["spec"]["nodeName"] != node for pod in placed):
        if len(placed) == count:
            return "ran on other nodes"
        reasons = [each for pod in pods for each in pod["status"].get("conditions") or [] if each["status"] == "False"]
        if any(each.get("reason") == "Unschedulable" for each in reasons):
            return "waited until it was open again"
    return ""


@contextlib.contextmanager
def _cordon(subject: Subject, node: str) -> Iterator[None]:
    subject.state.notes["cordoned"] = node
    subject.save()
    subject.core.patch_node(node, {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        uncordon(subject)


def uncordon(subject: Subject) -> None:
    """Uncordon the node that a run cordoned, also after the run was killed."""
    if node := subject.state.notes.pop("cordoned", None):
        subject.core.patch_node(node, {"spec": {"unschedulable": None}})


def _delete(subject: Subject, pod: dict[str, Any]) -> None:
    subject.core.delete_namespaced_pod(pod["metadata"]["name"], pod["metadata"]["namespace"], grace_period_seconds=0)


def proof_of(config: StackConfig) -> Proof | None:
    """Access to the cloud's machines; None: the stack made no cluster."""
    make = cloud_of(config).proof
    return make(config) if make else None
