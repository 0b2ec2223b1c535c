"""A DaemonSet of the stack's on the cluster's nodes: what all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster, WorkerPool
from workloads.pod import component, labels

#: The one namespace in which pods may be critical for their node.
NAMESPACE = "kube-system"


def node_daemon(
    name: str,
    cluster: Cluster,
    pod: k8s.core.v1.PodSpecArgs,
    parent: pulumi.Resource,
    annotations: Mapping[str, str] | None = None,
) -> k8s.apps.v1.DaemonSet:
    """Not waited for: while there is no node for it, none of its pods exists. `annotations` are the pods'."""
    return k8s.apps.v1.DaemonSet(
        name,
        metadata=k8s.meta.v1.ObjectMetaArgs(
            name=name, namespace=NAMESPACE, labels=labels(name), annotations={"pulumi.com/skipAwait": "true"}
        ),
        spec=k8s.apps.v1.DaemonSetSpecArgs(
            selector=k8s.meta.v1.LabelSelectorArgs(match_labels=component(name)),
            template=k8s.core.v1.PodTemplateSpecArgs(
                metadata=k8s.meta.v1.ObjectMetaArgs(
                    labels=labels(name), annotations=dict(annotations) if annotations else None
                ),
                spec=pod,
            ),
        ),
        opts=pulumi.ResourceOptions(parent=parent, deleted_with=cluster.resource),
    )


def worker_pod(
    pool: WorkerPool, container: k8s.core.v1.ContainerArgs, folders: Mapping[str, str], **options: Any
) -> k8s.core.v1.PodSpecArgs:
    """A pod for every node of the pool and for no other. `folders` are the node's: volume -> path."""
    core = k8s.core.v1
    return core.PodSpecArgs(
        containers=[container],
        node_selector=pool.node_selector or None,
        tolerations=list(pool.tolerations),
        automount_service_account_token=False,
        enable_service_links=False,
        volumes=[
            core.VolumeArgs(name=name, host_path=core.HostPathVolumeSourceArgs(path=path))
            for name, path in folders.items()
        ],
        **options,
    )
