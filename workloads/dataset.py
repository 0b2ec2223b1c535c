"""The dataset Job: tokenises the text once, into shards on the shared volume."""

from __future__ import annotations

import hashlib

import pulumi
import pulumi_kubernetes as k8s

from infra.cluster import Cluster
from infra.config import DatasetConfig
from infra.image import TrainerImage
from workloads.layout import DATA, dataset_folder
from workloads.namespace import Namespace
from workloads.pod import (
    TRAINER_ENVIRONMENT,
    container_security,
    environment,
    labels,
    resources,
    trainer_mounts,
    trainer_pod,
)


class Dataset(pulumi.ComponentResource):
    """Tokenised text. `pulumi up` waits for it, so that no accelerator waits for text."""

    directory: str
    """Folder of the shards in the pods."""
    job: k8s.batch.v1.Job

    def __init__(
        self,
        name: str,
        config: DatasetConfig,
        cluster: Cluster,
        namespace: Namespace,
        image: TrainerImage,
        claim: k8s.core.v1.PersistentVolumeClaim,
    ):
        super().__init__("trainyard:workloads:Dataset", name, None, pulumi.ResourceOptions(provider=cluster.provider))
        self.directory = dataset_folder(config.name)
        arguments = prepare_arguments(config, self.directory)
        identity = hashlib.sha256("\0".join([image.version, *arguments]).encode()).hexdigest()[:8]
        self.job = k8s.batch.v1.Job(
            name,
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=f"dataset-{config.name}-{identity}",
                namespace=namespace.name,
                labels=labels("dataset"),
                annotations={
                    "pulumi.com/timeoutSeconds": str(config.timeout_minutes * 60),
                    # A failed Job is made again by the next `pulumi up`.
                    "pulumi.com/replaceUnready": "true",
                },
            ),
            spec=k8s.batch.v1.JobSpecArgs(
                # A second try helps with a node that went away, not with bad input.
                backoff_limit=2,
                template=k8s.core.v1.PodTemplateSpecArgs(
                    metadata=k8s.meta.v1.ObjectMetaArgs(labels=labels("dataset")),
                    spec=_pod(arguments, image.reference, claim.metadata.name),
                ),
            ),
            # Never two that write the same shards.
            opts=pulumi.ResourceOptions(parent=self, deleted_with=namespace.lifetime, delete_before_replace=True),
        )
        self.register_outputs({"directory": self.directory})


def prepare_arguments(config: DatasetConfig, directory: str) -> list[str]:
    """Arguments of `python -m trainer.prepare`; relative inputs are paths on the shared volume."""
    inputs = [
        text if text == "sample" or "://" in text or text.startswith("/") else f"{DATA}/{text}" for text in config.input
    ]
    return [
        *("--input", *inputs),
        *("--output", directory),
        *("--tokenizer", config.tokenizer),
        *("--validation-fraction", str(config.validation_fraction)),
    ]


def _pod(arguments: list[str], image: pulumi.Output[str], claim: pulumi.Input[str]) -> k8s.core.v1.PodSpecArgs:
    container = k8s.core.v1.ContainerArgs(
        name="prepare",
        image=image,
        args=["python", "-m", "trainer.prepare", *arguments],
        # The one pod that may reach the Hugging Face hub, for a tokenizer; the image is offline otherwise.
        env=environment(TRAINER_ENVIRONMENT | {"HF_HUB_OFFLINE": "0"}),
        resources=resources(cpu=0.5, memory_gib=2),
        security_context=container_security(),
        volume_mounts=trainer_mounts(),
        # The reason of a failure in the Pod's status, where Pulumi finds it.
        termination_message_policy="FallbackToLogsOnError",
    )
    return trainer_pod(container, claim, restart_policy="Never")
