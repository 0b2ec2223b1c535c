"""Google's list prices, read from prices.yaml; imported when a bill is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.bill import Rate
from infra.facts import load
from infra.machine import Machine

_TABLE = load(Path(__file__).parent / "prices.yaml")
DATE: str = _TABLE["date"]
SOURCE: str = _TABLE["source"]
#: USD an hour, or a GiB-month; the file says which.
FEES: dict[str, float] = _TABLE["fees"]
#: USD a GiB-month, by tier.
FILESTORE_GIB: dict[str, float] = _TABLE["filestore_gib"]
#: GB of one local SSD; a2-highgpu has none of its own, a2-ultragpu includes its own.
LOCAL_SSD_GB = 375
#: An A100's share of an a2-highgpu machine, vCPU.
_A2_VCPUS = 12
#: Region -> its prices, in the units that the file says; None: not offered.
REGIONS: dict[str, dict[str, Any]] = {
    region: {key: Rate(*it) if isinstance(it, list) else it for key, it in found.items()}
    for region, found in _TABLE["regions"].items()
}


def of_machine(region: str, machine: Machine) -> Rate | None:
    """A machine with its memory and its accelerators, an hour; None: no price is known."""
    each = vcpu(region, machine.family)
    if each is None:
        return None
    rate = _scaled(each, machine.vcpus)
    l4 = REGIONS[region]["l4"] if machine.family == "g2-standard" else None
    # For other families the price of a vCPU includes the accelerators.
    extra = _scaled(l4, machine.accelerators) if l4 else Rate(0, 0)
    return Rate(rate.on_demand + extra.on_demand, rate.spot + extra.spot)


def vcpu(region: str, family: str) -> Rate | None:
    """One vCPU of a machine family with its memory, and its accelerators but those of G2; None: no price is known."""
    prices = REGIONS.get(region)
    if prices is None:
        return None
    match family:
        case "e2-highmem":
            cpu, gib = _TABLE["e2"]["vcpu"], _TABLE["e2"]["gib"]
            return _scaled(prices["e2-standard"], (cpu + 8 * gib) / (cpu + 4 * gib))
        case "c3-highcpu":
            # It has half of the memory of c3-standard; c3-highmem has twice as much.
            standard, highmem = prices["c3-standard"], prices["c3-highmem"]
            return Rate(
                standard.on_demand - (highmem.on_demand - standard.on_demand) / 2,
                standard.spot - (highmem.spot - standard.spot) / 2,
            )
        case "a2-highgpu":
            return _scaled(prices[family], 1 / _A2_VCPUS) if prices[family] else None
    return prices.get(family)


def _scaled(rate: Rate, factor: float) -> Rate:
    return Rate(rate.on_demand * factor, rate.spot * factor)


def disk(region: str, type_: str) -> float | None:
    """GiB-month of a persistent disk; None: no price is known."""
    return REGIONS.get(region, {}).get("disk", {}).get(type_)
