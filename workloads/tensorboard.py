"""TensorBoard beside the training: curves of every run on the shared volume, reached by port-forward."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from workloads.layout import DATA, TENSORBOARD_PORT
from workloads.objects import GONE_AT_ONCE, make_deployment, make_service, metadata
from workloads.pod import resources, trainer_mounts
from workloads.workspace import Workspace

NAME = "tensorboard"
#: Seconds between two reads of new points.
RELOAD_SECONDS = 15


class TensorBoard(pulumi.ComponentResource):
    """A Deployment and its Service, without an address outside the cluster, which would cost money."""

    def __init__(self, name: str, workspace: Workspace):
        super().__init__("trainyard:workloads:TensorBoard", name, None, workspace.component())
        # Not waited for: nothing depends on it, and it starts slowly while the training starts.
        described = metadata(NAME, workspace.namespace.name, NAME, GONE_AT_ONCE)
        opts = workspace.owned(self)
        make_deployment(NAME, described, _pod(workspace), opts)
        make_service(name, NAME, described, ("http", TENSORBOARD_PORT), opts)
        self.register_outputs({})


def _pod(workspace: Workspace) -> k8s.core.v1.PodSpecArgs:
    core = k8s.core.v1
    container = workspace.container(
        NAME,
        [
            "tensorboard",
            f"--logdir={DATA}/runs",
            "--bind_all",
            f"--port={TENSORBOARD_PORT}",
            f"--reload_interval={RELOAD_SECONDS}",
        ],
        resources(cpu=0.05, memory_gib=1),
        ports=[core.ContainerPortArgs(name="http", container_port=TENSORBOARD_PORT)],
        readiness_probe=core.ProbeArgs(
            http_get=core.HTTPGetActionArgs(path="/", port=TENSORBOARD_PORT), period_seconds=5, timeout_seconds=5
        ),
        volume_mounts=trainer_mounts(read_only=True),
    )
    return workspace.pod(container, termination_grace_period_seconds=5)
