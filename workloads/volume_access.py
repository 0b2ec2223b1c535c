"""The pod by which `trainyard upload` and `trainyard fetch` reach the shared volume, as a template.

A template costs nothing and runs nothing. Declared here, it has what every pod of the stack has: the image by digest,
the restricted security context, the claim; and it shows in the preview and in the snapshots. Its pods may do what the
dataset Job may: reach the web, and read the buckets that the stack may read.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import READER
from workloads.layout import VOLUME_ACCESS
from workloads.pod import (
    TRAINER_ENVIRONMENT,
    component,
    container_security,
    environment,
    labels,
    resources,
    trainer_mounts,
    trainer_pod,
)
from workloads.workspace import Workspace

#: A pod that was forgotten ends after this time; the transfer goes on where it stopped.
DEADLINE_SECONDS = 24 * 3600


def volume_access(workspace: Workspace) -> k8s.core.v1.PodTemplate:
    """The template. What its pods run comes from the command that makes them (cli/reach.py)."""
    cluster, namespace = workspace.cluster, workspace.namespace
    container = k8s.core.v1.ContainerArgs(
        name=VOLUME_ACCESS,
        image=workspace.image.reference,
        env=environment(TRAINER_ENVIRONMENT),
        resources=resources(cpu=0.1, memory_gib=1),
        security_context=container_security(),
        volume_mounts=trainer_mounts(),
        termination_message_policy="FallbackToLogsOnError",
    )
    pod = trainer_pod(
        container,
        workspace.volume,
        service_account_name=READER if cluster.reader_annotations is not None else None,
        restart_policy="Never",
        active_deadline_seconds=DEADLINE_SECONDS,
        termination_grace_period_seconds=2,
    )
    return k8s.core.v1.PodTemplate(
        VOLUME_ACCESS,
        metadata=k8s.meta.v1.ObjectMetaArgs(name=VOLUME_ACCESS, namespace=namespace.name, labels=labels(VOLUME_ACCESS)),
        template=k8s.core.v1.PodTemplateSpecArgs(
            # Of the dataset Job, for its network policy.
            metadata=k8s.meta.v1.ObjectMetaArgs(labels=component("dataset")),
            spec=pod,
        ),
        opts=pulumi.ResourceOptions(provider=cluster.provider, deleted_with=namespace.lifetime),
    )
