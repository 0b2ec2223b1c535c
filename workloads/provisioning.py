"""Asks for all nodes of a Job at once, where they come that way: a ProvisioningRequest of the cluster's autoscaler.

Capacity that is scarce is given for a fixed time to whoever asked first. The request says how many pods of which shape
will come; the pods say which request they use, or the autoscaler takes the nodes for unused and removes them after ten
minutes.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.apiextensions import CustomResource

from infra.cluster import WorkerPool

CLASS = "queued-provisioning.gke.io"
PREFIX = "autoscaling.x-k8s.io"


def pod_annotations(job_name: str, pool: WorkerPool) -> dict[str, str]:
    """What pods carry to use the request of their Job; nothing where nodes come as pods ask for them."""
    if pool.queue_hours is None:
        return {}
    return {f"{PREFIX}/consume-provisioning-request": job_name, f"{PREFIX}/provisioning-class-name": CLASS}


def request_nodes(
    job_name: str,
    pool: WorkerPool,
    count: int,
    pod: k8s.core.v1.PodSpecArgs,
    namespace: pulumi.Input[str],
    labels: dict[str, str],
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    """The request for `count` nodes that fit `pod`, when nodes come that way."""
    if pool.queue_hours is None:
        return []
    metadata = k8s.meta.v1.ObjectMetaArgs(
        name=job_name,
        namespace=namespace,
        labels=labels,
        # It is granted when there is capacity, which may take hours: the Job waits for it, not `pulumi up`.
        annotations={"pulumi.com/skipAwait": "true"},
    )
    once = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(delete_before_replace=True))
    template = k8s.core.v1.PodTemplate(
        "nodes-wanted",
        metadata=metadata,
        template=k8s.core.v1.PodTemplateSpecArgs(metadata=k8s.meta.v1.ObjectMetaArgs(labels=labels), spec=pod),
        opts=once,
    )
    request = CustomResource(
        "nodes-wanted",
        api_version=f"{PREFIX}/v1",
        kind="ProvisioningRequest",
        metadata=metadata,
        spec={
            "provisioningClassName": CLASS,
            "parameters": {"maxRunDurationSeconds": str(round(pool.queue_hours * 3600))},
            "podSets": [{"count": count, "podTemplateRef": {"name": template.metadata.name}}],
        },
        opts=once,
    )
    return [template, request]
