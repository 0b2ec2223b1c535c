"""The bill of a stack on AWS by the list prices of prices.yaml; imported when a bill is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.config import StackConfig
from infra.cost import Estimate, Line, always, counted, monthly
from infra.eks.keys import SYSTEM_DISK_GIB, EksConfig, EksNodes, EksStorage
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


def estimate(config: StackConfig, images_gib: int) -> Estimate:
    """`images_gib`: the stack's images in the registry, GiB."""
    eks, nodes = config.section(EksConfig), config.section(EksNodes)
    region = eks.region
    spot = nodes.consumption == "spot"
    system = machine(region, eks.system_machine_type)
    workers = machine(region, nodes.machine_type, spot=spot)
    title = f"{nodes.machine_type}, workers, {nodes.consumption.replace('_', ' ')}"
    lines = [
        always("EKS control plane", FEES["cluster"]),
        counted(f"{eks.system_machine_type}, system", 1, eks.system_nodes, system),
        _disks("system boot disks", region, SYSTEM_DISK_GIB, 1, eks.system_nodes),
        counted(title, 0, nodes.max, workers),
        _disks("worker boot disks", region, nodes.disk_gib, 0, nodes.max),
        *_network(eks, nodes),
        _storage(config, region),
    ]
    if eks.secrets_encryption:
        lines.append(always("KMS key", monthly(1, FEES["key"])))
    if images_gib:
        lines.append(always(f"images, {images_gib} GiB", monthly(images_gib, FEES["registry_gib"])))
    return Estimate(region, tuple(lines), DATE, SOURCE, tuple(_notes(config)))


def _disks(what: str, region: str, gib: int, fewest: int, most: int) -> Line:
    each = REGIONS.get(region, {}).get("gp3")
    return counted(f"{what}, {gib} GiB gp3", fewest, most, monthly(gib, each))


def _network(eks: EksConfig, nodes: EksNodes) -> list[Line]:
    """The way to the internet: one NAT gateway with its address, or an address for each node."""
    if eks.public_nodes:
        return [counted("public address of a node", 1, eks.system_nodes + nodes.max, FEES["public_address"])]
    gateway = REGIONS.get(eks.region, {}).get("nat")
    return [always("NAT gateway and its address", gateway and gateway + FEES["public_address"])]


def _storage(config: StackConfig, region: str) -> Line:
    each = REGIONS.get(region, {}).get("efs")
    return always(f"EFS, {config.storage.size_gib} GiB", monthly(config.storage.size_gib, each))


def _notes(config: StackConfig) -> list[str]:
    eks, nodes, storage = config.section(EksConfig), config.section(EksNodes), config.section(EksStorage)
    notes = ["EFS bills what is stored; storage.sizeGib is the guess of this estimate."]
    if nodes.consumption == "spot":
        notes.append(
            "Spot prices follow demand, by zone and size; this is the mean of one day (infra/eks/prices.yaml)."
        )
    if eks.logs:
        kinds = ", ".join(eks.logs)
        notes.append(f"CloudWatch bills {FEES['logs_gb']:.2f} USD for each GB of the control plane's logs ({kinds}).")
    if nodes.fallback == "on_demand":
        each = machine(eks.region, nodes.machine_type)
        full = "at no known price" if each is None else f"for {nodes.max * each:.2f} USD an hour"
        notes.append(f"nodes.fallback: where there is no Spot machine, all workers come on demand {full} instead.")
    if nodes.alternatives:
        notes.append(f"All workers are counted as {nodes.machine_type}; the alternatives cost more.")
    if storage.throughput == "elastic":
        notes.append("EFS with elastic throughput bills each GB read (0.03) and written (0.06) on top.")
    if storage.retain:
        notes.append("The file system stays after `pulumi destroy`, and is still billed.")
    return notes


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
