"""In which ways the nodes that train are had, and from which zones: what rules, pools, bill and doctor share."""

from __future__ import annotations

from infra.catalog import MACHINES
from infra.sections import GkeConfig, NodesConfig

#: The cheapest first.
ORDER = ("spot", "flex_start", "on_demand")
#: Label and taint by which GKE knows the pools of a class, and the class's name, which may not begin with `gke`.
COMPUTE_CLASS, CLASS = "cloud.google.com/compute-class", "trainyard-workers"


def kinds(nodes: NodesConfig) -> tuple[str, ...]:
    """The ways in which nodes are had, the most wanted first."""
    if nodes.fallback == "none" or nodes.consumption not in ORDER:
        return (nodes.consumption,)
    accelerated = MACHINES[nodes.machine_type].accelerators > 0
    between = ORDER[ORDER.index(nodes.consumption) : ORDER.index(nodes.fallback) + 1]
    return tuple(kind for kind in between if kind != "flex_start" or accelerated)


def pool_name(nodes: NodesConfig, kind: str) -> str:
    """The node pool of one of the `kinds`."""
    return "workers" if kind == nodes.consumption else f"workers-{kind.replace('_', '-')}"


def zones(gke: GkeConfig, nodes: NodesConfig) -> tuple[str, ...]:
    """The zones of the nodes that train."""
    return nodes.zones or (gke.zone,)
