"""The section `gke` of a stack's configuration, and what follows from it and `nodes`: the ways to obtain the nodes that
train, and their zones."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from infra.config import StackConfig
from infra.sections import NodesConfig
from trainer.config.section import Section

#: Ways to obtain nodes between which `nodes.fallback` chooses, the cheapest first.
ORDER = ("spot", "flex_start", "on_demand")
#: Maximum life of flex_start and queued nodes, hours (cloud.google.com/kubernetes-engine/docs/concepts/dws).
FLEX_HOURS = 7 * 24
#: Boot disk of the system pool's nodes.
SYSTEM_DISK_TYPE, SYSTEM_DISK_GIB = "pd-balanced", 100
#: Key of the label and taint that mark the pools of a compute class; our class's name, which may not begin with `gke`.
COMPUTE_CLASS, CLASS = "cloud.google.com/compute-class", "trainyard-workers"


class GkeConfig(Section):
    project: Annotated[str, StringConstraints(pattern=r"^[a-z][-a-z0-9]{4,28}[a-z0-9]$")]
    """Id of the Google Cloud project, which must exist and have billing."""
    zone: Annotated[str, StringConstraints(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]
    """Zone of everything: accelerators are zonal, and a zonal control plane starts faster at the same price."""
    release_channel: Literal["RAPID", "REGULAR", "STABLE"] = "REGULAR"
    """Release channel from which GKE upgrades the control plane."""
    no_upgrades_since: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None = (
        "2026-11-01T00:00:00Z"
    )
    """From this time until the version's end of support, GKE upgrades neither the minor version nor the nodes, which
    would restart a training. null: upgrades come with the channel."""
    system_machine_type: str = "e2-standard-4"
    """Machine type of the nodes for etcd, the dataset Job, TensorBoard and the NFS server: on demand, without
    accelerators."""
    system_nodes: int = Field(default=3, ge=1, le=10)
    """Maximum number of nodes of the system pool; one runs at rest."""

    @property
    def region(self) -> str:
        return self.zone.rsplit("-", 1)[0]


def kinds(config: StackConfig) -> tuple[str, ...]:
    """The ways to obtain the nodes that train, the preferred first."""
    nodes = config.section(NodesConfig)
    if nodes.fallback == "none" or nodes.consumption not in ORDER:
        return (nodes.consumption,)
    accelerated = config.machine.accelerators > 0
    between = ORDER[ORDER.index(nodes.consumption) : ORDER.index(nodes.fallback) + 1]
    return tuple(kind for kind in between if kind != "flex_start" or accelerated)


def pool_name(config: StackConfig, kind: str) -> str:
    """Name of the node pool for one of the `kinds`."""
    return "workers" if kind == config.section(NodesConfig).consumption else f"workers-{kind.replace('_', '-')}"


def zones(config: StackConfig) -> tuple[str, ...]:
    """The zones of the nodes that train."""
    return config.section(NodesConfig).zones or (config.section(GkeConfig).zone,)
