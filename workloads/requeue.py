"""What suspends a training that holds nodes and trains nothing, and lets it try again (trainer/requeue.py).

One small pod beside the rendezvous, only in stacks in which a training may hold nodes in vain. Its account may read and
patch the trainings' Jobs by name, and list the namespace's pods.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import WorkerPool
from infra.config import StackConfig
from workloads.objects import (
    API_PORTS,
    GONE_AT_ONCE,
    allow,
    bind_role,
    make_deployment,
    make_policy,
    metadata,
    ports,
    select,
)
from workloads.pod import pod_security, resources
from workloads.training import Training
from workloads.workspace import Workspace

NAME = "requeue"


def may_hold(config: StackConfig, pool: WorkerPool) -> bool:
    """Whether a training may get some of the nodes that it needs, and this stack is to let go of them.

    Queued nodes come all together, and a TrainJob's controller would start its Job again.
    """
    if config.job.hold_minutes is None or config.job.runtime != "job" or pool.queue_hours is not None:
        return False
    return any(each.workers.min > 1 for each in config.each_training)


class Requeue(pulumi.ComponentResource):
    """A Deployment, and the rights of its pod."""

    def __init__(self, config: StackConfig, workspace: Workspace, trainings: Sequence[Training]):
        super().__init__("trainyard:workloads:Requeue", NAME, None, workspace.component())
        namespace, opts = workspace.namespace.name, workspace.owned(self)
        # Not waited for: nothing depends on it.
        described, jobs = metadata(NAME, namespace, NAME, GONE_AT_ONCE), [each.job_name for each in trainings]
        account = k8s.core.v1.ServiceAccount(NAME, metadata=described, automount_service_account_token=False, opts=opts)
        rules = [allow("batch", ["jobs"], ["get", "patch"], jobs), allow("", ["pods"], ["list"])]
        bind_role(NAME, described, rules, account, namespace, opts)
        # No policy can name the API server's address.
        make_policy(NAME, namespace, select(NAME), opts, egress=[(None, ports(*API_PORTS))])
        container = workspace.container(
            NAME,
            [
                *("python", "-m", "trainer.requeue"),
                *("--minutes", f"{config.job.hold_minutes:g}"),
                *(("--nodes", str(config.nodes.max)) if config.nodes else ()),
                *jobs,
            ],
            resources(cpu=0.01, memory_gib=0.0625),
            volume_mounts=None,
        )
        pod = k8s.core.v1.PodSpecArgs(
            containers=[container],
            service_account_name=account.metadata.name,
            automount_service_account_token=True,
            enable_service_links=False,
            image_pull_secrets=workspace.pull_secrets,
            security_context=pod_security(),
            termination_grace_period_seconds=5,
            **workspace.nodes,
        )
        make_deployment(NAME, described, pod, opts)
        self.register_outputs({})
