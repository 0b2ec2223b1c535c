"""The training as a TrainJob of Kubeflow Trainer v2, for clusters whose queues and dashboards know those.

The same pods in the same Job: a TrainingRuntime holds the Job's specification as one replicated job of a JobSet, and a
TrainJob names the runtime and the number of nodes. Its controller makes the Job, so what reads a training's Job and
pods (cli/status.py, follow.py, logs.py) finds them under the name that `job_of` gives. The schema that this is
held to is that of trainer.kubeflow.org/v1alpha1 (Trainer v2.0.0).
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.apiextensions import CustomResource

from infra.config import WorkersConfig

GROUP = "trainer.kubeflow.org"
VERSION = f"{GROUP}/v1alpha1"
#: What the controller knows the trainers by: the replicated job and the container of this name, and the label.
CONTAINER = "node"
STEP = {f"{GROUP}/trainjob-ancestor-step": "trainer"}


def job_of(train_job: str) -> str:
    """Name of the Job that the controllers make for a TrainJob: JobSet's, for the first replica."""
    return f"{train_job}-{CONTAINER}-0"


def train_job(
    name: str,
    train_job_name: str,
    workers: WorkersConfig,
    job: k8s.batch.v1.JobSpecArgs,
    namespace: pulumi.Input[str],
    labels: dict[str, str],
    opts: pulumi.ResourceOptions,
) -> None:
    """The runtime with `job` in it, and the TrainJob. Deleted in the other order: a runtime in use stays."""
    nodes = workers.count + workers.spares
    metadata = k8s.meta.v1.ObjectMetaArgs(
        name=train_job_name,
        namespace=namespace,
        labels=labels,
        # It is done when the training is, which takes longer than Pulumi would wait.
        annotations={"pulumi.com/skipAwait": "true"},
    )
    replicated = {
        "name": CONTAINER,
        "replicas": 1,
        "template": {"metadata": {"labels": STEP}, "spec": job},
    }
    runtime = CustomResource(
        f"{name}-runtime",
        api_version=VERSION,
        kind="TrainingRuntime",
        metadata=metadata,
        spec={
            # Neither torch nor mpi: their variables and ssh keys are for launchers that have no rendezvous.
            "mlPolicy": {"numNodes": nodes},
            "template": {
                "spec": {
                    # The pods meet through the rendezvous, and have the subdomain of their own Service.
                    "network": {"enableDNSHostnames": False},
                    "replicatedJobs": [replicated],
                }
            },
        },
        opts=opts,
    )
    CustomResource(
        name,
        api_version=VERSION,
        kind="TrainJob",
        metadata=metadata,
        spec={
            "runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": train_job_name},
            "trainer": {"numNodes": nodes},
        },
        opts=pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[runtime])),
    )
