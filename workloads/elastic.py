"""How many pods a training has, and how that number changes while it trains.

Pulumi replaces a Job whose `parallelism` or `completions` change, and with it a training that runs. So the Job's own
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

#: The most pods that a Job may be scaled to: the limit of workers.count. A limit that is never reached costs the first
#: round, and one with newcomers, a last call of 5 s.
MOST = 1000
#: Fields of the Job that follow workers.count.
FIELDS = ("completions", "parallelism", "maxFailedIndexes")


def is_elastic(workers: WorkersConfig, pool: WorkerPool, runtime: str = "job") -> bool:
    """Whether pods may come and go without a new Job.

    Not with spares, who are those beyond a number that the launcher knows; nor with nodes that come all together; nor
    when another controller than ours says how many pods its Job has.
    """
    return workers.spares == 0 and pool.queue_hours is None and runtime == "job"


def node_range(workers: WorkersConfig, elastic: bool) -> str:
    """The launcher's --nnodes."""
    return f"{workers.min}:{MOST if elastic else workers.count}"


def identity(workers: WorkersConfig, pool: WorkerPool, elastic: bool) -> dict[str, Any]:
    """What of the workers, and of the nodes as their pods see them, makes a new Job when it changes."""
    nodes = {
        "selector": dict(pool.node_selector),
        "tolerations": [str(toleration.key) for toleration in pool.tolerations],
        "threads": pool.threads_per_core,
        "cores": pool.whole_cores,
        "environment": dict(pool.environment),
        **({"devices": dict(pool.devices)} if pool.devices else {}),
        "grace": pool.grace_seconds,
    }
    return {**workers.model_dump(exclude={"count"} if elastic else set()), "nodes": nodes}


def job_size(workers: WorkersConfig) -> dict[str, Any]:
    """FIELDS and their values."""
    pods = workers.count + workers.spares
    # An index that failed too often stays empty; with fewer than `min` left nothing could train.
    return {"completions": pods, "parallelism": pods, "max_failed_indexes": pods - workers.min}


def resize(name: str, job: k8s.batch.v1.Job, workers: WorkersConfig, namespace: Namespace) -> k8s.batch.v1.JobPatch:
    """Give the Job the size that is configured now."""
    return k8s.batch.v1.JobPatch(
        name,
        metadata=k8s.meta.v1.ObjectMetaPatchArgs(
            # From the Job, not as a text: a Job that is made again under its name begins with the size that the first
            # one began with, and needs its patch again.
            name=job.metadata.name,
            namespace=namespace.name,
            labels=labels("trainer"),
            annotations={"pulumi.com/patchForce": "true", "pulumi.com/skipAwait": "true"},
        ),
        spec=k8s.batch.v1.JobSpecPatchArgs(**job_size(workers)),
        opts=pulumi.ResourceOptions(
            parent=job,
            depends_on=[job],
            deleted_with=namespace.lifetime,
            # Deleting it would give the fields up, and the API server would set them to one: two pods would end.
            retain_on_delete=True,
            # A patch of another Job is another resource, which leaves the old Job alone.
            replace_on_changes=["metadata.name"],
        ),
    )
