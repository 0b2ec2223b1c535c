"""In which ways the nodes that train are had, and from which zones: what rules, pools, bill and doctor share."""

from __future__ import annotations

from infra.config import StackConfig
from infra.gke.section import GkeConfig
from infra.sections import NodesConfig

#: The cheapest first.
ORDER = ("spot", "flex_start", "on_demand")
#: Label and taint by which GKE knows the pools of a class, and the class's name, which may not begin with `gke`.
COMPUTE_CLASS, CLASS = "cloud.google.com/compute-class", "trainyard-workers"


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
