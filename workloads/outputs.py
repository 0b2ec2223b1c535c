"""The outputs of a stack: names, and commands to use what it made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pulumi

from infra import cost
from infra.config import StackConfig
from workloads.gpu_check import GpuCheck
from workloads.training import Training
from workloads.workspace import Workspace


def export(
    config: StackConfig,
    workspace: Workspace,
    trainings: Sequence[Training],
    check: GpuCheck | None = None,
) -> None:
    """Export the outputs; cli/target.py reads them."""
    cluster = workspace.cluster
    pulumi.export("context", cluster.context)
    if config.cluster.kubeconfig:
        pulumi.export("kubeconfig", str(Path(config.cluster.kubeconfig).expanduser()))
    pulumi.export("namespace", workspace.namespace.name)
    if config.trainings:
        # With their rank: an object's keys have no order in Pulumi's state.
        told = {
            each.config.training_name: {"jobName": each.told_name, "runDirectory": each.run_directory, "rank": rank}
            for rank, each in enumerate(trainings)
        }
        pulumi.export("trainings", told)
    elif trainings:
        pulumi.export("jobName", trainings[0].told_name)
        pulumi.export("runDirectory", trainings[0].run_directory)
    pulumi.export("image", workspace.image.reference)
    if cluster.resource is not None:
        pulumi.export("cluster", cluster.name)
    if cluster.credentials_command:
        # To be run first: the other commands need the context that it writes.
        pulumi.export("credentialsCommand", cluster.credentials_command)
    if cluster.storage.local_folder:
        pulumi.export("dataFolder", cluster.storage.local_folder)
    if cluster.storage.address is not None:
        pulumi.export("storageAddress", cluster.storage.address)
    if check is not None:
        pulumi.export("gpuCheck", check.result)
    if (hourly := cost.output(config)) is not None:
        pulumi.export("costPerHour", hourly)
    verbs = {verb: verb for verb in ("logs", "resume", "fetch")}
    if config.training.task != "question_answering":
        verbs["sample"] = "chat" if config.training.task == "finetune" else "sample"
    for name, verb in verbs.items():
        pulumi.export(f"{name}Command", f".venv/bin/trainyard {verb} --stack {shlex.quote(pulumi.get_stack())}")
