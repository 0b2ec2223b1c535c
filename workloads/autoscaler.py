"""The cluster-autoscaler, for clouds that run none: adds nodes for pending pods and removes idle nodes.

It takes the first node group in the list of priorities that fits the pods. It backs off from a group without capacity
and tries the next.
"""

from __future__ import annotations

import json

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import AUTOSCALER as NAME
from infra.cluster import Autoscaler, Cluster
from workloads.objects import RBAC, allow, bind_role, make_deployment, metadata
from workloads.pod import container_security, environment, pod_security, resources

#: The only namespace whose pods may have a system-*-critical priority class.
NAMESPACE = "kube-system"
#: ConfigMaps whose names cluster-autoscaler fixes: its status, and the priorities that it reads.
STATUS, PRIORITIES = "cluster-autoscaler-status", "cluster-autoscaler-priority-expander"
#: `nobody`; the image has no user of its own.
USER = 65534
PORT = 8085
#: Remove a node after this idle time, and none this soon after adding one. The default, ten minutes, costs GPU money.
IDLE = "3m"


class ClusterAutoscaler(pulumi.ComponentResource):
    """The Deployment and its RBAC; its rights in the cloud come from pod identity (infra/eks/identity.py)."""

    def __init__(self, name: str, cluster: Cluster, settings: Autoscaler):
        super().__init__(
            "trainyard:workloads:ClusterAutoscaler", name, None, pulumi.ResourceOptions(provider=cluster.provider)
        )
        opts = pulumi.ResourceOptions(parent=self, deleted_with=cluster.resource)
        # The highest number wins; groups without a priority, such as the system's, come last.
        wanted = {len(settings.priorities) - at: [name] for at, name in enumerate(settings.priorities)}
        ranks = "\n".join(f"{rank + 1}: {json.dumps(names)}" for rank, names in wanted.items()) + '\n1: [".*"]\n'
        priorities = k8s.core.v1.ConfigMap(
            f"{NAME}-priorities",
            metadata=metadata(NAME, NAMESPACE, PRIORITIES),
            data={"priorities": ranks},
            opts=opts,
        )
        granted = _grant_rights(opts)
        after = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[priorities, *granted]))
        make_deployment(NAME, metadata(NAME, NAMESPACE, NAME), _pod(settings), after)
        self.register_outputs({})


def _pod(settings: Autoscaler) -> k8s.core.v1.PodSpecArgs:
    core = k8s.core.v1
    flags = {
        **settings.flags,
        "expander": "priority,least-waste",
        "max-nodes-total": str(settings.most_nodes),
        "scale-down-unneeded-time": IDLE,
        "scale-down-delay-after-add": IDLE,
        # System pods with scratch volumes must not keep a second node alive. Pods that must not move say so themselves
        # (safe-to-evict).
        "skip-nodes-with-local-storage": "false",
        "skip-nodes-with-system-pods": "false",
    }
    health = core.HTTPGetActionArgs(path="/health-check", port=PORT)
    container = core.ContainerArgs(
        name=NAME,
        image=settings.image,
        command=["./cluster-autoscaler"],
        args=[f"--{flag}={value}" for flag, value in flags.items()],
        env=environment(dict(settings.environment)),
        ports=[core.ContainerPortArgs(name="http", container_port=PORT)],
        liveness_probe=core.ProbeArgs(http_get=health, initial_delay_seconds=60, period_seconds=30),
        readiness_probe=core.ProbeArgs(http_get=health, period_seconds=10),
        # Reading EC2's machine types at its start killed it at 300 MiB; upstream's example has 600
        # (kubernetes/autoscaler#3506, read 2026-11-28).
        resources=resources(cpu=0.1, memory_gib=0.75),
        security_context=container_security(),
    )
    return core.PodSpecArgs(
        containers=[container],
        service_account_name=NAME,
        # Without the autoscaler no training gets a node.
        priority_class_name="system-cluster-critical",
        security_context=pod_security(USER),
        enable_service_links=False,
    )


def _grant_rights(opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """Grant its rights: read what a scheduler reads, drain nodes, write its lease and status."""
    rbac = k8s.rbac.v1
    here, anywhere = metadata(NAME, NAMESPACE, NAME), metadata(NAME, name=f"trainyard-{NAME}")
    account = k8s.core.v1.ServiceAccount(NAME, metadata=here, opts=opts)
    look, volumes = ["get", "list", "watch"], ["persistentvolumeclaims", "persistentvolumes"]
    role = rbac.ClusterRole(
        NAME,
        metadata=anywhere,
        rules=[
            allow("", ["namespaces", "nodes", *volumes, "pods", "replicationcontrollers", "services"], look),
            allow("apps", ["daemonsets", "replicasets", "statefulsets"], look),
            allow("batch", ["cronjobs", "jobs"], look),
            allow("policy", ["poddisruptionbudgets"], look),
            # It watches the same kinds of these groups as the scheduler of its version.
            allow("storage.k8s.io", ["*"], look),
            allow("resource.k8s.io", ["*"], look),
            # It taints the nodes that it removes, and evicts their pods.
            allow("", ["nodes"], ["update", "patch"]),
            allow("", ["pods/eviction"], ["create"]),
            allow("", ["pods/status"], ["update"]),
            allow("", ["events"], ["create", "patch"]),
        ],
        opts=opts,
    )
    everywhere = rbac.ClusterRoleBinding(
        NAME,
        metadata=anywhere,
        role_ref=rbac.RoleRefArgs(api_group=RBAC, kind="ClusterRole", name=role.metadata.name),
        subjects=[rbac.SubjectArgs(kind="ServiceAccount", name=account.metadata.name, namespace=NAMESPACE)],
        opts=opts,
    )
    own = [
        allow("coordination.k8s.io", ["leases"], ["create"]),
        allow("coordination.k8s.io", ["leases"], ["get", "update"], [NAME]),
        allow("", ["configmaps"], ["create", "list", "watch"]),
        allow("", ["configmaps"], ["get", "update", "delete"], [STATUS, PRIORITIES]),
    ]
    return [everywhere, bind_role(NAME, here, own, account, NAMESPACE, opts)]
