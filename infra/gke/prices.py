"""Google's list prices, read from prices.yaml; imported when a bill is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.bill import Rate
from infra.machine import Machine
from infra.needs import load

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


@dataclass(frozen=True, kw_only=True)
class Region:
    """Prices of one region, in the units that prices.yaml says; None: not offered."""

    e2_standard: Rate
    c3_standard: Rate
    c3_highmem: Rate
    a2_highgpu: Rate | None
    g2: Rate | None
    l4: Rate | None
    local_ssd: Rate
    disk: dict[str, float]


def _region(found: dict[str, Any]) -> Region:
    prices: dict[str, Any] = {key: Rate(*it) if isinstance(it, list) else it for key, it in found.items()}
    return Region(**prices)


REGIONS = {region: _region(found) for region, found in _TABLE["regions"].items()}


def of_machine(region: str, machine: Machine) -> Rate | None:
    """A machine with its memory and its accelerators, an hour; None: no price is known."""
    each = vcpu(region, machine.family)
    if each is None:
        return None
    rate = _scaled(each, machine.vcpus)
    l4 = REGIONS[region].l4 if machine.family == "g2-standard" else None
    # The others' accelerators are in the price of their vCPU.
    extra = _scaled(l4, machine.accelerators) if l4 else Rate(0, 0)
    return Rate(rate.on_demand + extra.on_demand, rate.spot + extra.spot)


def vcpu(region: str, family: str) -> Rate | None:
    """One vCPU of a machine family with its memory, and its accelerators but those of G2; None: no price is known."""
    prices = REGIONS.get(region)
    if prices is None:
        return None
    match family:
        case "e2-standard":
            return prices.e2_standard
        case "e2-highmem":
            cpu, gib = _TABLE["e2"]["vcpu"], _TABLE["e2"]["gib"]
            return _scaled(prices.e2_standard, (cpu + 8 * gib) / (cpu + 4 * gib))
        case "c3-standard":
            return prices.c3_standard
        case "c3-highmem":
            return prices.c3_highmem
        case "c3-highcpu":
            # Half of the memory of c3-standard, of which c3-highmem has twice as much.
            standard, highmem = prices.c3_standard, prices.c3_highmem
            return Rate(
                standard.on_demand - (highmem.on_demand - standard.on_demand) / 2,
                standard.spot - (highmem.spot - standard.spot) / 2,
            )
        case "g2-standard":
            return prices.g2
        case "a2-highgpu":
            return _scaled(prices.a2_highgpu, 1 / _A2_VCPUS) if prices.a2_highgpu else None
    return None


def _scaled(rate: Rate, factor: float) -> Rate:
    return Rate(rate.on_demand * factor, rate.spot * factor)


def disk(region: str, type_: str) -> float | None:
    """GiB-month of a persistent disk; None: no price is known."""
    prices = REGIONS.get(region)
    return prices.disk.get(type_) if prices else None
