"""EC2's instance types that a stack may use (machines.yaml), and the zones that offer them (zones.yaml)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from infra.facts import load
from infra.machine import Machine, Node, machine_type

_FOLDER = Path(__file__).parent
#: Zones of a control plane: EKS wants two, and accepts no others later.
HOME_ZONES = 2
#: Number of zones for the workers if the stack file names none.
DEFAULT_ZONES = 4


def _kept(machine: Machine) -> float:
    """255 MiB and 11 MiB for each pod that the node may have (awslabs/amazon-eks-ami, nodeadm). The Elastic Fabric
    Adapter's driver reserves huge pages: 5,128 of 2 MiB (aws-efa-installer)."""
    return (255 + 11 * machine.max_pods + (5128 * 2 if machine.efa else 0)) / 1024


#: seen: Karpenter's VM_MEMORY_OVERHEAD_PERCENT. Daemons: aws-node with its policy agent, kube-proxy, pod identity
#: agent, node monitoring agent, EFS driver, and ours: device plugin and DCGM exporter.
NODE = Node(seen=0.925, kept=_kept, daemons=(0.6, 1.0))


@cache
def machines() -> dict[str, Machine]:
    """All instance types, by name."""
    table = load(_FOLDER / "machines.yaml")
    found: dict[str, Machine] = {}
    for family, entry in table["workers"].items():
        for size, row in entry["sizes"].items():
            found[f"{family}.{size}"] = _machine(family, size, row, entry)
    for family in table["system"]["families"]:
        for size, row in table["system"]["sizes"].items():
            found[f"{family}.{size}"] = _machine(family, size, row, {})
    return found


def _machine(family: str, size: str, row: list[Any], entry: Mapping[str, Any]) -> Machine:
    vcpus, memory, accelerators, disks, pods, efa = row
    return machine_type(
        name=f"{family}.{size}",
        node=NODE,
        family=family,
        vcpus=vcpus,
        memory_gib=memory,
        accelerator=entry.get("accelerator"),
        accelerator_gib=entry.get("accelerator_gib", 0.0),
        accelerators=accelerators,
        precisions=entry.get("precisions", ["fp32"]),
        local_ssds=[0, disks] if accelerators else [0],
        bundled_ssds=disks,
        boot_disks=["gp3"],
        threads_selectable=False,
        max_pods=pods,
        efa=efa,
        system=not accelerators,
    )


@dataclass(frozen=True)
class Region:
    """The zones of a region, by their ids."""

    zones: tuple[str, ...]
    lacks: Mapping[str, tuple[str, ...]]
    """Family of machines -> zones that do not offer it."""

    @property
    def home(self) -> tuple[str, ...]:
        """Zones of the control plane, the system nodes and the NAT gateway, which cannot move while they live; the
        workers' zones do not matter."""
        return self.zones[:HOME_ZONES]

    def offers(self, machine_type: str, zone: str) -> bool:
        """Whether a zone offers a machine type, as of the table's date; an unknown zone counts as if it does."""
        return zone not in self.lacks.get(machine_type.partition(".")[0], ())


@cache
def regions() -> dict[str, Region]:
    """The regions whose zones are known."""
    return {
        name: Region(tuple(found["zones"]), {family: tuple(zones) for family, zones in found.get("lacks", {}).items()})
        for name, found in _zones()["regions"].items()
    }


def offerings(given: Mapping[str, Any], region: str) -> dict[str, Any]:
    """What AWS answers to getInstanceTypeOfferings, by the table of zones: for recordings without AWS."""
    types = [name for filter_ in given["filters"] for name in filter_["values"]]
    known = regions()[region]
    pairs = [(zone, name) for zone in known.zones for name in types if known.offers(name, zone)]
    return {"id": region, "locations": [zone for zone, _ in pairs], "instanceTypes": [name for _, name in pairs]}


def by_zone(
    zones: Sequence[str], types: Sequence[str], pairs: Collection[tuple[str, str]]
) -> dict[str, tuple[str, ...]]:
    """Zone -> the machine types that it offers by these pairs (zone, type), both in the order given; a zone without any
    is left out: EKS refuses a node group there."""
    found = {zone: tuple(name for name in types if (zone, name) in pairs) for zone in zones}
    return {zone: offered for zone, offered in found.items() if offered}


def zones_date() -> str:
    """When AWS gave these answers."""
    return str(_zones()["date"])


@cache
def _zones() -> dict[str, Any]:
    return load(_FOLDER / "zones.yaml")


def default_zones(region: str, machine_type: str) -> tuple[str, ...]:
    """The first zones of a region that offer a machine type; none for a region that is not known."""
    found = regions().get(region)
    zones = [zone for zone in found.zones if found.offers(machine_type, zone)] if found else []
    return tuple(zones[:DEFAULT_ZONES])
