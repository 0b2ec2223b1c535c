"""Custom resources of controllers in the cluster: ProvisioningRequest and TrainJob."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.apiextensions import CustomResource

from infra.cluster import WorkerPool
from workloads.layout import CONSUMES
from workloads.objects import metadata, pod_template

#: A request is granted, and a TrainJob done, after hours: what depends on them waits, `pulumi up` does not.
NOT_AWAITED = {"pulumi.com/skipAwait": "true"}

# The cluster autoscaler's request for all nodes of a Job at once.
CLASS = "queued-provisioning.gke.io"
AUTOSCALING = "autoscaling.x-k8s.io"

# Kubeflow Trainer v2; the specifications below are held to the schema of v1alpha1 (Trainer v2.0.0).
KUBEFLOW = "trainer.kubeflow.org"
KUBEFLOW_VERSION = f"{KUBEFLOW}/v1alpha1"
#: Its controller finds the trainers by this name of replicated job and container, and by the label.
CONTAINER = "node"
STEP = {f"{KUBEFLOW}/trainjob-ancestor-step": "trainer"}


def request_annotations(job_name: str, pool: WorkerPool) -> dict[str, str]:
    """Annotations of pods that use their Job's ProvisioningRequest; empty where nodes are not queued.

    Without them the autoscaler considers the nodes unused and removes them after ten minutes.
    """
    if pool.queue_hours is None:
        return {}
    return {
        CONSUMES: job_name,
        f"{AUTOSCALING}/provisioning-class-name": CLASS,
    }


def request_nodes(
    name: str,
    job_name: str,
    pool: WorkerPool,
    count: int,
    pod: k8s.core.v1.PodSpecArgs,
    namespace: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    """Request `count` nodes that fit `pod`, all at once; nothing where nodes are not queued.

    Scarce capacity is granted for a fixed time, in the order of the requests.
    """
    if pool.queue_hours is None:
        return []
    described = metadata("trainer", namespace, job_name, NOT_AWAITED)
    once = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(delete_before_replace=True))
    template = k8s.core.v1.PodTemplate(name, metadata=described, template=pod_template("trainer", pod), opts=once)
    request = CustomResource(
        name,
        api_version=f"{AUTOSCALING}/v1",
        kind="ProvisioningRequest",
        metadata=described,
        spec={
            "provisioningClassName": CLASS,
            "parameters": {"maxRunDurationSeconds": str(round(pool.queue_hours * 3600))},
            "podSets": [{"count": count, "podTemplateRef": {"name": template.metadata.name}}],
        },
        opts=once,
    )
    return [template, request]


def job_of(train_job: str) -> str:
    """Name of the Job that JobSet makes for the first replica of a TrainJob."""
    return f"{train_job}-{CONTAINER}-0"


def make_train_job(
    name: str,
    train_job_name: str,
    nodes: int,
    job: k8s.batch.v1.JobSpecArgs,
    namespace: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
) -> pulumi.Resource:
    """Make the training as a TrainJob, for clusters whose queues and dashboards know that kind.

    The same pods in the same Job: a TrainingRuntime holds the Job's specification as one replicated job of a JobSet,
    and a TrainJob names the runtime and the number of nodes. Its controller makes the Job under the name of `job_of`,
    where `trainyard status`, `follow` and `logs` find it. A runtime in use cannot be deleted, so it goes last.
    """
    described = metadata("trainer", namespace, train_job_name, NOT_AWAITED)
    replicated = {"name": CONTAINER, "replicas": 1, "template": {"metadata": {"labels": STEP}, "spec": job}}
    runtime = CustomResource(
        f"{name}-runtime",
        api_version=KUBEFLOW_VERSION,
        kind="TrainingRuntime",
        metadata=described,
        spec={
            # Neither torch nor mpi policy: their variables and ssh keys are for launchers without a rendezvous.
            "mlPolicy": {"numNodes": nodes},
            # The pods meet through the rendezvous and use the subdomain of our own Service.
            "template": {"spec": {"network": {"enableDNSHostnames": False}, "replicatedJobs": [replicated]}},
        },
        opts=opts,
    )
    return CustomResource(
        name,
        api_version=KUBEFLOW_VERSION,
        kind="TrainJob",
        metadata=described,
        spec={
            "runtimeRef": {"apiGroup": KUBEFLOW, "kind": "TrainingRuntime", "name": train_job_name},
            "trainer": {"numNodes": nodes},
        },
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[runtime])),
    )
