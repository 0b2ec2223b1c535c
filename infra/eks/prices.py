"""AWS's list prices, read from prices.yaml; imported when a bill is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infra.bill import Rate
from infra.needs import load

_TABLE = load(Path(__file__).parent / "prices.yaml")
DATE: str = _TABLE["date"]
SOURCE: str = _TABLE["source"]
#: USD; the file says of what.
FEES: dict[str, float] = _TABLE["fees"]
#: Machine type -> USD an hour, on demand.
US_EAST_1: dict[str, float] = _TABLE["us_east_1"]


@dataclass(frozen=True, kw_only=True)
class Region:
    """Prices of one region, in the units that prices.yaml says."""

    g4dn: Rate
    newer: float | None
    m6i: float
    nat: float
    gp3: float
    efs: float


REGIONS = {name: Region(**{**found, "g4dn": Rate(*found["g4dn"])}) for name, found in _TABLE["regions"].items()}


def machine(region: str, instance_type: str, *, spot: bool = False) -> float | None:
    """USD per hour; None: no price is known.

    Spot prices of the sizes other than g4dn.xlarge are taken to be as much below theirs on demand.
    """
    prices, base = REGIONS.get(region), US_EAST_1.get(instance_type)
    if prices is None or base is None:
        return None
    match instance_type.split(".")[0]:
        case "g4dn":
            return base / US_EAST_1["g4dn.xlarge"] * (prices.g4dn.spot if spot else prices.g4dn.on_demand)
        case "g5" | "g6" if prices.newer is not None and not spot:
            return base * prices.newer
        case "m6i" if not spot:
            return base / US_EAST_1["m6i.large"] * prices.m6i
        case "m5" | "t3" if region == "us-east-1" and not spot:
            return base
    return None
