"""What Azure refuses, which machines it has (learn.microsoft.com/azure/virtual-machines/sizes) and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from infra.config import StackConfig
from infra.cost import Estimate, always, counted
from infra.machine import Machine, Node, machine_type
from infra.sections import NodesConfig
from tests.infra.aks.keys import AksConfig

#: Source: learn.microsoft.com/azure/aks/node-resource-reservations: 20 MB for each of 110 pods and 50 MB.
NODE = Node(seen=0.97, kept=lambda machine: (20 * machine.max_pods + 50) / 1024, daemons=(0.5, 1.0))


def machines() -> dict[str, Machine]:
    """A table in code, because it has one row; a longer one belongs in machines.yaml."""
    name = "Standard_NC24ads_A100_v4"
    return {
        name: machine_type(
            name=name,
            node=NODE,
            family="NCads_A100_v4",
            vcpus=24,
            memory_gib=220,
            accelerator="a100",
            accelerators=1,
        )
    }


def _location(config: StackConfig) -> Iterator[str]:
    location = config.section(AksConfig).location
    if location != location.lower():
        yield f"aks.location: '{location}' is not a location; give one such as westeurope"


RULES = (_location,)


def bill(config: StackConfig, images_gib: int) -> Estimate:
    """List prices would be in prices.yaml."""
    nodes = config.section(NodesConfig)
    lines = (always("AKS control plane", 0.10), counted(nodes.machine_type, 0, nodes.max, 3.673))
    return Estimate(config.section(AksConfig).location, lines, "2026-11-22", "an exercise")
