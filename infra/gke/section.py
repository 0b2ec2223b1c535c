"""The section `gke` of a stack's configuration: where on Google Cloud the cluster is, and what it consists of;
in which ways the nodes that train are had, and from which zones."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from infra.config import StackConfig
from infra.sections import NodesConfig
from trainer.config.section import Section

#: The cheapest first.
ORDER = ("spot", "flex_start", "on_demand")
#: flex_start and queued nodes are given for this long (cloud.google.com/kubernetes-engine/docs/concepts/dws).
FLEX_HOURS = 7 * 24
#: Boot disk of the system pool's nodes.
SYSTEM_DISK_TYPE, SYSTEM_DISK_GIB = "pd-balanced", 100
#: Label and taint by which GKE knows the pools of a class, and the class's name, which may not begin with `gke`.
COMPUTE_CLASS, CLASS = "cloud.google.com/compute-class", "trainyard-workers"


class GkeConfig(Section):
    project: Annotated[str, StringConstraints(pattern=r"^[a-z][-a-z0-9]{4,28}[a-z0-9]$")]
    """Id of the Google Cloud project; it has to exist, with billing."""
    zone: Annotated[str, StringConstraints(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]
    """Zone of everything: accelerators are zonal, and a zonal control plane is quicker to make and costs the same."""
    release_channel: Literal["RAPID", "REGULAR", "STABLE"] = "REGULAR"
    """What GKE upgrades the control plane to."""
    no_upgrades_since: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None = (
        "2026-11-01T00:00:00Z"
    )
    """Start of the time in which neither minor version nor nodes are upgraded, up to the version's end of support; an
    upgrade of the nodes restarts a training. null: upgrades come as the channel brings them."""
    system_machine_type: str = "e2-standard-4"
    """Nodes for etcd, the dataset Job, TensorBoard and the NFS server: on demand, without accelerators."""
    system_nodes: int = Field(default=3, ge=1, le=10)
    """Most nodes of the system pool; one runs at rest."""

    @property
    def region(self) -> str:
        return self.zone.rsplit("-", 1)[0]


def kinds(config: StackConfig) -> tuple[str, ...]:
    """The ways in which nodes are had, the most wanted first."""
    nodes = config.section(NodesConfig)
    if nodes.fallback == "none" or nodes.consumption not in ORDER:
        return (nodes.consumption,)
    accelerated = config.machine.accelerators > 0
    between = ORDER[ORDER.index(nodes.consumption) : ORDER.index(nodes.fallback) + 1]
    return tuple(kind for kind in between if kind != "flex_start" or accelerated)


def pool_name(config: StackConfig, kind: str) -> str:
    """The node pool of one of the `kinds`."""
    return "workers" if kind == config.section(NodesConfig).consumption else f"workers-{kind.replace('_', '-')}"


def zones(config: StackConfig) -> tuple[str, ...]:
    """The zones of the nodes that train."""
    return config.section(NodesConfig).zones or (config.section(GkeConfig).zone,)
