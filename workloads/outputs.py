"""The outputs of a stack: names, and commands to watch, log, open and use what it made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pulumi

from infra import cost
from infra.config import StackConfig
from workloads.gpu_check import GpuCheck
from workloads.tensorboard import NAME as TENSORBOARD
from workloads.tensorboard import PORT
from workloads.training import Training
from workloads.workspace import Workspace

#: Label of a Job's pods.
JOB = "batch.kubernetes.io/job-name"


def export(
    config: StackConfig,
    workspace: Workspace,
    trainings: Sequence[Training],
    check: GpuCheck | None = None,
) -> None:
    """Export the outputs; cli/target.py reads them."""
    cluster = workspace.cluster
    name = config.cluster.namespace
    own = str(Path(config.cluster.kubeconfig).expanduser()) if config.cluster.kubeconfig else None
    where = f"--kubeconfig {shlex.quote(own)} " if own else ""
    kubectl = f"kubectl {where}--context {shlex.quote(cluster.context)} --namespace {name}"
    pulumi.export("context", cluster.context)
    if own:
        pulumi.export("kubeconfig", own)
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
    pulumi.export("watchCommand", f"{kubectl} get pods,jobs --watch --output wide")
    if trainings:
        jobs = ",".join(each.job_name for each in trainings)
        pods = f"{JOB}={jobs}" if len(trainings) == 1 else f"'{JOB} in ({jobs})'"
        pulumi.export("logsCommand", f"{kubectl} logs --selector {pods} --follow --prefix")
    stack = shlex.quote(pulumi.get_stack())
    # An ended Job stays until somebody has looked at it: no `pulumi up` starts it again unasked.
    pulumi.export("resumeCommand", f".venv/bin/trainyard resume --stack {stack}")
    pulumi.export("uploadCommand", f".venv/bin/trainyard upload --stack {stack} FOLDER")
    pulumi.export("fetchCommand", f".venv/bin/trainyard fetch --stack {stack}")
    if config.tensorboard.enabled:
        pulumi.export("tensorboardCommand", f"{kubectl} port-forward service/{TENSORBOARD} {PORT}")
    if config.training.task != "question_answering":
        verb = "chat" if config.training.task == "finetune" else "sample"
        pulumi.export("sampleCommand", f".venv/bin/trainyard {verb} --stack {stack}")
