"""Why pods wait for a node: in the scheduler's own words, and what to do about it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import Any

import pulumi

from infra.api_client import api_client
from trainer.plain import counted

#: Words of kube-scheduler (v1.36, pkg/scheduler/framework/plugins) -> what makes the pods fit.
REMEDIES = {
    "Insufficient cpu": "lower workers.cpu or workers.count",
    "Insufficient memory": "lower workers.memoryGib or workers.count",
    "Insufficient ephemeral-storage": "free the node's disk, or lower workers.count",
    "Insufficient": "lower workers.gpus or workers.count, or take other nodes",
    "Too many pods": "lower workers.count, or add a node",
    "untolerated taint": "name the taint in workers.tolerations, or lower workers.count",
    "node affinity/selector": "workers.nodeSelector must name labels that a node has, or lower workers.count",
    "PersistentVolume's node affinity": "the volume is on another node: a ReadWriteMany class in storage.className",
    "pod affinity": "the volume serves one node, which is full: a ReadWriteMany class in storage.className, or less",
    "PersistentVolumeClaim": "the cluster's storage makes no volume: storage.kind, storage.className",
    "didn't have free ports": "lower workers.count",
}
#: Seconds that `pulumi up` gives the scheduler to place the pods before it warns.
PATIENCE = 10.0
#: How its message goes on about preemption, which says nothing of what is missing.
PREEMPTION = re.compile(r"\.? (no new claims to deallocate, )?preemption: .*", re.DOTALL)


def unscheduled(pod: dict[str, Any]) -> str:
    """The scheduler's message of a pod that it has tried in vain; empty: it has not, or the pod has a node."""
    for condition in pod["status"].get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return PREEMPTION.sub("", str(condition.get("message") or condition.get("reason") or "")).strip()
    return ""


def with_remedy(message: str) -> str:
    found = [what for words, what in REMEDIES.items() if words in message]
    return f"{message}; {found[0]}" if found else message


def waiting(pods: Iterable[dict[str, Any]]) -> str:
    """One line about the pods that wait for a node; empty: none does."""
    messages = [text for pod in pods if not pod["metadata"].get("deletionTimestamp") and (text := unscheduled(pod))]
    if not messages:
        return ""
    who = counted(len(messages), "worker waits", "workers wait")
    return f"{who} for a node: {with_remedy(messages[0])}"


def warn_of_waiting(kubeconfig: str, context: str, namespace: str, job: str, made: pulumi.Output[Any]) -> None:
    """End an `up` with a warning where the nodes of a given cluster have no room for all workers.

    `up` does not await the training's Job, which runs for hours. Clouds of ours add nodes, which takes minutes.
    """

    async def look(_: Any) -> None:
        if text := await asyncio.to_thread(_look, kubeconfig, context, namespace, job):
            pulumi.warn(f"{text}; the training goes on with the others, if workers.min allows")

    if not pulumi.runtime.is_dry_run():
        made.apply(look)


def _look(kubeconfig: str, context: str, namespace: str, job: str) -> str:
    """What still waits after PATIENCE; a cluster that does not answer ends no `up`."""
    from kubernetes import client  # takes a second

    try:
        api = api_client(context, kubeconfig)
        batch, core, end = client.BatchV1Api(api), client.CoreV1Api(api), time.monotonic() + PATIENCE
        while True:
            found: Any = batch.read_namespaced_job(job, namespace, _request_timeout=5)
            pods: Any = core.list_namespaced_pod(
                namespace, label_selector=f"batch.kubernetes.io/job-name={job}", _request_timeout=5
            )
            plain: Any = [api.sanitize_for_serialization(pod) for pod in pods.items]
            placed = sum(bool((pod["spec"] or {}).get("nodeName")) for pod in plain)
            # A Job that went on after a stop keeps the condition Suspended, with status False.
            ended = any(each.status == "True" for each in found.status.conditions or [])
            if ended or found.spec.suspend or placed >= found.spec.parallelism:
                return ""
            if time.monotonic() > end:
                return waiting(plain)
            time.sleep(0.5)
    except Exception:
        return ""
