"""AWS's list prices, read from prices.yaml; imported when a bill is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.facts import load

_TABLE = load(Path(__file__).parent / "prices.yaml")
DATE: str = _TABLE["date"]
SOURCE: str = _TABLE["source"]
#: USD; the file says of what.
FEES: dict[str, float] = _TABLE["fees"]
#: Machine type -> USD an hour, on demand.
US_EAST_1: dict[str, float] = _TABLE["us_east_1"]
#: Region -> its prices, in the units that the file says.
REGIONS: dict[str, dict[str, Any]] = _TABLE["regions"]


def machine(region: str, instance_type: str, *, spot: bool = False) -> float | None:
    """USD per hour; None: no price is known.

    Other sizes than g4dn.xlarge are assumed to have its ratio of Spot to on-demand price.
    """
    prices, base = REGIONS.get(region), US_EAST_1.get(instance_type)
    if prices is None or base is None:
        return None
    match instance_type.split(".")[0]:
        case "g4dn":
            on_demand, as_spot = prices["g4dn"]
            return base / US_EAST_1["g4dn.xlarge"] * (as_spot if spot else on_demand)
        case "g5" | "g6" if prices["newer"] is not None and not spot:
            return base * prices["newer"]
        case "m6i" if not spot:
            return base / US_EAST_1["m6i.large"] * prices["m6i"]
        case "m5" | "t3" if region == "us-east-1" and not spot:
            return base
    return None
