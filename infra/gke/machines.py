"""Compute Engine's machine types that a stack may use, and the zones that offer them (zones.yaml)."""

from __future__ import annotations

from pathlib import Path

from infra.machine import Machine
from infra.needs import load

_ZONES = load(Path(__file__).parent / "zones.yaml")
#: When the zones were checked; the other tables below are of the same day: cloud.google.com/compute/docs
#: (accelerator-optimized-machines, general-purpose-machines).
DATE = str(_ZONES["date"])


def _zones(family: str) -> frozenset[str]:
    return frozenset(f"{region}-{letter}" for region, letters in _ZONES["zones"][family].items() for letter in letters)


#: sm80 and newer; sm75 (T4) has no bf16 units.
_AMPERE = ("fp32", "fp16", "bf16")
_A100_40, _A100_80, _H100 = "nvidia-tesla-a100", "nvidia-a100-80gb", "nvidia-h100-80gb"

_MACHINES = (
    # A2: 12 vCPU and 85 GB an A100; local SSDs in the counts that the documentation allows.
    *(
        Machine(
            name=f"a2-highgpu-{count}g",
            family="a2-highgpu",
            vcpus=12 * count,
            memory_gib=85 * count,
            accelerator=_A100_40,
            accelerators=count,
            precisions=_AMPERE,
            local_ssds=(0, *(disks for disks in (1, 2, 4, 8) if disks >= count)),
            zones=_zones("a2-highgpu"),
            threads_selectable=False,
        )
        for count in (1, 2, 4, 8)
    ),
    Machine(
        name="a2-megagpu-16g",
        family="a2-megagpu",
        vcpus=96,
        memory_gib=1360,
        accelerator=_A100_40,
        accelerators=16,
        precisions=_AMPERE,
        local_ssds=(0, 8),
        zones=_zones("a2-megagpu"),
        threads_selectable=False,
    ),
    *(
        Machine(
            name=f"a2-ultragpu-{count}g",
            family="a2-ultragpu",
            vcpus=12 * count,
            memory_gib=170 * count,
            accelerator=_A100_80,
            accelerators=count,
            precisions=_AMPERE,
            local_ssds=(count,),
            bundled_ssds=count,
            zones=_zones("a2-ultragpu"),
            threads_selectable=False,
        )
        for count in (1, 2, 4, 8)
    ),
    *(
        Machine(
            name=f"a3-highgpu-{count}g",
            family="a3-highgpu",
            vcpus=26 * count,
            memory_gib=234 * count,
            accelerator=_H100,
            accelerators=count,
            precisions=_AMPERE,
            local_ssds=(2 * count,),
            bundled_ssds=2 * count,
            boot_disks=("pd-balanced", "pd-ssd", "hyperdisk-balanced"),
            zones=_zones("a3-highgpu"),
            threads_selectable=False,
        )
        for count in (1, 2, 4, 8)
    ),
    # For trials of a few dollars: one L4, or one T4.
    *(
        Machine(
            name=f"g2-standard-{cpus}",
            family="g2-standard",
            vcpus=cpus,
            memory_gib=4 * cpus,
            accelerator="nvidia-l4",
            accelerators=count,
            precisions=_AMPERE,
            local_ssds=(0, count),
            boot_disks=("pd-balanced", "pd-ssd"),
            zones=_zones("g2-standard"),
            threads_selectable=False,
        )
        for cpus, count in ((4, 1), (8, 1), (12, 1), (16, 1), (24, 2), (48, 4), (96, 8))
    ),
    *(
        Machine(
            name=f"n1-standard-{cpus}",
            family="n1-standard",
            vcpus=cpus,
            memory_gib=3.75 * cpus,
            accelerator="nvidia-tesla-t4",
            accelerators=1,
            precisions=("fp32", "fp16"),
            local_ssds=(0, 1, 2, 4, 8),
            compact=False,
        )
        for cpus in (4, 8, 16)
    ),
    # C3: Sapphire Rapids with AMX, gVNIC only, no pd-standard (pd.csi issue 1391).
    *(
        Machine(
            name=f"c3-{memory}-{cpus}",
            family=f"c3-{memory}",
            vcpus=cpus,
            memory_gib=ratio * cpus,
            precisions=("fp32", "bf16"),
            boot_disks=("pd-balanced", "pd-ssd", "hyperdisk-balanced"),
            zones=_zones("c3"),
            capability="amx_bf16",
        )
        for memory, ratio in (("highcpu", 2), ("standard", 4), ("highmem", 8))
        for cpus in (4, 8, 22, 44, 88, 176)
    ),
    # Shared-core-free E2: what the system pool runs on.
    *(
        Machine(
            name=f"e2-{memory}-{cpus}",
            family=f"e2-{memory}",
            vcpus=cpus,
            memory_gib=ratio * cpus,
            compact=False,
            threads_selectable=False,
        )
        for memory, ratio in (("standard", 4), ("highmem", 8))
        for cpus in (2, 4, 8, 16)
    ),
)
#: What the system pool may be: cheap, on-demand, in every zone. GKE would choose a type that some zones lack
#: (cluster-toolkit #6275).
_SYSTEM = ("e2-standard", "e2-highmem")
#: Filestore's tiers: (smallest, largest) GiB (cloud.google.com/filestore/docs/service-tiers).
FILESTORE_TIERS = {"BASIC_HDD": (1024, 65_433), "BASIC_SSD": (2560, 65_433), "ZONAL": (1024, 102_400)}


def machines() -> dict[str, Machine]:
    """All of them, by name."""
    return workers() | system()


def workers() -> dict[str, Machine]:
    """What may train, by name."""
    return {machine.name: machine for machine in _MACHINES if machine.family not in _SYSTEM}


def system() -> dict[str, Machine]:
    """What the system pool may consist of, by name."""
    return {machine.name: machine for machine in _MACHINES if machine.family in _SYSTEM}
