"""What a stack tells its user: names, and commands to watch, log, open and use what it made."""

from __future__ import annotations

import shlex

import pulumi

from infra.cluster import Cluster
from infra.config import StackConfig
from infra.image import TrainerImage
from workloads.namespace import Namespace
from workloads.tensorboard import NAME as TENSORBOARD
from workloads.tensorboard import PORT
from workloads.training import Training


def export(
    config: StackConfig, cluster: Cluster, image: TrainerImage, namespace: Namespace, training: Training
) -> None:
    """The stack's outputs; workloads/follow.py reads them."""
    name = config.cluster.namespace
    kubectl = f"kubectl --context {shlex.quote(config.cluster.context)} --namespace {name}"
    pulumi.export("context", config.cluster.context)
    pulumi.export("namespace", namespace.name)
    pulumi.export("jobName", training.job_name)
    pulumi.export("runDirectory", training.run_directory)
    if cluster.storage.local_folder:
        pulumi.export("dataFolder", cluster.storage.local_folder)
    pulumi.export("image", image.reference)
    pulumi.export(
        "logsCommand", f"{kubectl} logs --selector batch.kubernetes.io/job-name={training.job_name} --follow --prefix"
    )
    if config.tensorboard.enabled:
        pulumi.export("tensorboardCommand", f"{kubectl} port-forward service/{TENSORBOARD} {PORT}")
        # The TensorBoard pod mounts the shared volume and has the trainer's image: the place to try the model.
        run = f"python -m trainer.sample --run {training.run_directory}"
        pulumi.export("sampleCommand", f"{kubectl} exec deployment/{TENSORBOARD} -- {run} --prompt 'The light'")
