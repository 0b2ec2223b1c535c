"""Priority classes: storage, rendezvous, node check, training; and no training at the cost of others."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from workloads.pod import labels

#: Every pod of a training waits for the one that serves their volume, the rendezvous' as well.
STORAGE = 10_000
#: All rounds of a training go through one small pod: it may push a worker off a node, and the kubelet that runs out of
#: memory ends workers first.
RENDEZVOUS = 1000
#: It takes seconds, and a training goes on after it; without nodes of its own it would wait for them in vain.
CHECK = 500
#: Other pods of the cluster have 0: a training waits in the queue before them, but evicts none.
TRAINING = 100


def priority_class(
    name: str, value: int, preempts: bool, cluster: Cluster, namespace: pulumi.Input[str], parent: pulumi.Resource
) -> pulumi.Output[str]:
    """The name of a new priority class. It belongs to no namespace, so its name says whose it is."""
    made = k8s.scheduling.v1.PriorityClass(
        f"{name}-priority",
        metadata=k8s.meta.v1.ObjectMetaArgs(name=pulumi.Output.concat(namespace, "-", name), labels=labels("priority")),
        value=value,
        global_default=False,
        preemption_policy="PreemptLowerPriority" if preempts else "Never",
        description=f"trainyard: the pods of {name}",
        opts=pulumi.ResourceOptions(parent=parent, deleted_with=cluster.resource),
    )
    return made.metadata.name.apply(str)
