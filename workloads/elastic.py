"""The number of pods of a training, and how it changes while the training runs.

Pulumi replaces a Job whose `parallelism` or `completions` change, which would end a running training. So the Job's own
values count only when it is made; a JobPatch, which owns those fields alone, changes them in place.
"""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import WorkerPool
from infra.config import WorkersConfig
from workloads.objects import labels
from workloads.workspace import Namespace

#: Most pods that a Job may be scaled to: the limit of workers.count. A maximum that is never reached costs the first
#: round, and each round with newcomers, a last call of 5 s.
MOST = 1000
#: Fields of the Job that follow workers.count.
FIELDS = ("completions", "parallelism", "maxFailedIndexes")


def is_elastic(workers: WorkersConfig, pool: WorkerPool, runtime: str) -> bool:
    """Whether pods may come and go without a new Job.

    Not with spares, which the launcher counts beyond a fixed --nnodes; not with queued nodes, which come all together;
    not when another controller sets the number of pods.
    """
    return workers.spares == 0 and pool.queue_hours is None and runtime == "job"


def node_range(workers: WorkersConfig, elastic: bool) -> str:
    """The launcher's --nnodes."""
    return f"{workers.min}:{MOST if elastic else workers.count}"


def identity(workers: WorkersConfig, pool: WorkerPool, elastic: bool) -> dict[str, Any]:
    """Settings of the workers, and of the nodes as their pods see them, whose change makes a new Job.

    What is not set is left out: a key that a newer version brings restarts no training that does not use it.
    """
    nodes = {
        "selector": dict(pool.node_selector),
        "tolerations": [str(toleration.key) for toleration in pool.tolerations],
        "threads": pool.threads_per_core,
        "cores": pool.whole_cores,
        "environment": dict(pool.environment),
        "devices": dict(pool.devices),
        "grace": pool.grace_seconds,
    }
    given = workers.model_dump(exclude={"count"} if elastic else set(), exclude_defaults=True)
    return {**given, "nodes": {key: value for key, value in nodes.items() if value}}


def job_size(workers: WorkersConfig) -> dict[str, Any]:
    """FIELDS and their values."""
    pods = workers.count + workers.spares
    # An index that failed too often stays empty; with fewer than `min` left nothing could train.
    return {"completions": pods, "parallelism": pods, "max_failed_indexes": pods - workers.min}


def resize(
    name: str, job: k8s.batch.v1.Job, workers: WorkersConfig, namespace: Namespace, training: str
) -> k8s.batch.v1.JobPatch:
    """Give the Job the size that is configured now."""
    return k8s.batch.v1.JobPatch(
        name,
        metadata=k8s.meta.v1.ObjectMetaPatchArgs(
            # The Job's output, not a string: a Job that is made again has the size that is configured now, since
            # ignore_changes ends with the resource (Pulumi 3.200 and 3.274), but needs a patch that owns the fields.
            name=job.metadata.name,
            namespace=namespace.name,
            labels=labels("trainer", training),
            annotations={"pulumi.com/patchForce": "true", "pulumi.com/skipAwait": "true"},
        ),
        spec=k8s.batch.v1.JobSpecPatchArgs(**job_size(workers)),
        opts=pulumi.ResourceOptions(
            parent=job,
            depends_on=[job],
            deleted_with=namespace.lifetime,
            # Deleting the patch would release the fields, and the API server would reset them to 1 and end pods.
            retain_on_delete=True,
            # A patch of another Job replaces this resource and leaves the old Job alone.
            replace_on_changes=["metadata.name"],
        ),
    )
