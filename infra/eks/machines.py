"""EC2's instance types that a stack may use, and the zones of the regions where they are offered (zones.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.machine import Machine
from infra.needs import load

#: When the tables below were written, after docs.aws.amazon.com/ec2/latest/instancetypes (accelerated computing,
#: general purpose) and amazon-eks-ami's eni-max-pods.txt.
DATE = "2026-11-21"

#: Turing has no bf16 units; Ampere and newer have.
_T4, _AMPERE = ("fp32", "fp16"), ("fp32", "fp16", "bf16")
#: size -> (vCPU, GiB, accelerators, local NVMe disks, pods, EFA).
_G4DN = {
    "xlarge": (4, 16, 1, 1, 29, False),
    "2xlarge": (8, 32, 1, 1, 29, False),
    "4xlarge": (16, 64, 1, 1, 29, False),
    "8xlarge": (32, 128, 1, 1, 58, True),
    "16xlarge": (64, 256, 1, 1, 58, True),
    "12xlarge": (48, 192, 4, 1, 234, True),
    "metal": (96, 384, 8, 2, 737, True),
}
_G5 = {
    "xlarge": (4, 16, 1, 1, 58, False),
    "2xlarge": (8, 32, 1, 1, 58, False),
    "4xlarge": (16, 64, 1, 1, 234, False),
    "8xlarge": (32, 128, 1, 1, 234, True),
    "16xlarge": (64, 256, 1, 1, 234, True),
    "12xlarge": (48, 192, 4, 1, 737, True),
    "24xlarge": (96, 384, 4, 1, 737, True),
    "48xlarge": (192, 768, 8, 2, 345, True),
}
_G6 = {
    "xlarge": (4, 16, 1, 1, 58, False),
    "2xlarge": (8, 32, 1, 1, 58, False),
    "4xlarge": (16, 64, 1, 1, 234, False),
    "8xlarge": (32, 128, 1, 2, 234, True),
    "16xlarge": (64, 256, 1, 2, 737, True),
    "12xlarge": (48, 192, 4, 4, 234, True),
    "24xlarge": (96, 384, 4, 4, 737, True),
    "48xlarge": (192, 768, 8, 8, 737, True),
}
_ACCELERATED = (
    # The values of the node label k8s.amazonaws.com/accelerator.
    ("g4dn", "nvidia-tesla-t4", _T4, _G4DN),
    ("g5", "nvidia-a10g", _AMPERE, _G5),
    ("g6", "nvidia-l4", _AMPERE, _G6),
)
#: For the system node group: two to eight vCPU with 4 GiB each, in every region of REGIONS. size -> (vCPU, pods).
_GENERAL = {"large": (2, 29), "xlarge": (4, 58), "2xlarge": (8, 58)}

_MACHINES = (
    *(
        Machine(
            name=f"{family}.{size}",
            cloud="aws",
            family=family,
            vcpus=vcpus,
            memory_gib=memory,
            accelerator=accelerator,
            accelerators=count,
            precisions=precisions,
            local_ssds=(0, disks),
            bundled_ssds=disks,
            boot_disks=("gp3",),
            threads_selectable=False,
            max_pods=pods,
            efa=efa,
        )
        for family, accelerator, precisions, sizes in _ACCELERATED
        for size, (vcpus, memory, count, disks, pods, efa) in sizes.items()
    ),
    *(
        Machine(
            name=f"{family}.{size}",
            cloud="aws",
            family=family,
            vcpus=vcpus,
            memory_gib=4 * vcpus,
            boot_disks=("gp3",),
            threads_selectable=False,
            max_pods=pods,
        )
        for family in ("m5", "m6i", "t3")
        for size, (vcpus, pods) in _GENERAL.items()
    ),
)


def machines() -> dict[str, Machine]:
    """All of them, by name."""
    return workers() | system()


def workers() -> dict[str, Machine]:
    """What may train, by name."""
    return {machine.name: machine for machine in _MACHINES if machine.accelerators}


def system() -> dict[str, Machine]:
    """What the system group may consist of, by name."""
    return {machine.name: machine for machine in _MACHINES if not machine.accelerators}


@dataclass(frozen=True)
class Region:
    """The zones of a region, by their ids."""

    zones: tuple[str, ...]
    lacks: Mapping[str, tuple[str, ...]]
    """Family of machines -> zones that do not offer it."""

    @property
    def home(self) -> tuple[str, ...]:
        """Where control plane, system nodes and NAT gateway are, whatever zones the workers want: none of them can move
        while it lives."""
        return self.zones[:HOME_ZONES]

    def offers(self, machine_type: str, zone: str) -> bool:
        """As of the table's date; of a zone that is not in it nothing is known."""
        return zone not in self.lacks.get(machine_type.partition(".")[0], ())


_TABLE = load(Path(__file__).parent / "zones.yaml")
#: When AWS gave these answers.
ZONES_DATE = str(_TABLE["date"])
NO_CONTROL_PLANE = tuple(_TABLE["no_control_plane"])
REGIONS = {
    name: Region(tuple(found["zones"]), {family: tuple(zones) for family, zones in found.get("lacks", {}).items()})
    for name, found in _TABLE["regions"].items()
}
#: EKS wants two zones for a control plane, and takes no others later.
HOME_ZONES = 2
#: Zones that workers are wanted from when none is named.
DEFAULT_ZONES = 4


def default_zones(region: str, machine_type: str) -> tuple[str, ...]:
    """The first zones of a region that offer a machine type; none for a region that is not known."""
    found = REGIONS.get(region)
    zones = [zone for zone in found.zones if found.offers(machine_type, zone)] if found else []
    return tuple(zones[:DEFAULT_ZONES])
