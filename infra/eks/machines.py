"""EC2's instance types that a stack may use, and the zones of the regions where they are offered."""

from __future__ import annotations

from infra.machine import Machine

#: When the tables below were written, after docs.aws.amazon.com/ec2/latest/instancetypes (accelerated computing,
#: general purpose), amazon-eks-ami's eni-max-pods.txt and the list of availability zones.
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
MACHINES = {machine.name: machine for machine in _MACHINES}
WORKER_MACHINES = tuple(name for name, machine in MACHINES.items() if machine.accelerators)
SYSTEM_MACHINES = tuple(name for name, machine in MACHINES.items() if not machine.accelerators)

#: Region -> letters of its zones, as most accounts see them; eks.zones says otherwise. Local zones are left out.
REGIONS = {
    "us-east-1": "abcdf",
    "us-east-2": "abc",
    "us-west-1": "ac",
    "us-west-2": "abcd",
    "ca-central-1": "abd",
    "sa-east-1": "abc",
    "eu-central-1": "abc",
    "eu-north-1": "abc",
    "eu-south-1": "abc",
    "eu-west-1": "abc",
    "eu-west-2": "abc",
    "eu-west-3": "abc",
    "me-south-1": "abc",
    "af-south-1": "abc",
    "ap-east-1": "abc",
    "ap-northeast-1": "acd",
    "ap-northeast-2": "abcd",
    "ap-northeast-3": "abc",
    "ap-south-1": "abc",
    "ap-southeast-1": "abc",
    "ap-southeast-2": "abc",
}
#: Zones that a stack uses when it names none.
DEFAULT_ZONES = 4


def default_zones(region: str) -> tuple[str, ...]:
    """The first zones of a region; none for a region that is not known."""
    return tuple(f"{region}{letter}" for letter in REGIONS.get(region, "")[:DEFAULT_ZONES])
