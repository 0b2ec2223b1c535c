"""The bill of a stack on Google Cloud by the list prices of prices.yaml; imported when a bill is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infra.config import StackConfig
from infra.cost import Estimate, Line, always, counted, monthly
from infra.facts import load
from infra.gke.keys import SYSTEM_DISK_GIB, SYSTEM_DISK_TYPE, GkeConfig, GkeNodes, GkeStorage, kinds, zones
from infra.gke.machines import machines

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
#: Region -> its prices, in the units that the file says, those of machines [on demand, Spot]; None: not offered.
REGIONS: dict[str, dict[str, Any]] = _TABLE["regions"]


def estimate(config: StackConfig, images_gib: int) -> Estimate:
    """`images_gib`: the stack's images in the registry, GiB."""
    gke, nodes = config.section(GkeConfig), config.section(GkeNodes)
    region = gke.region
    title = f"{nodes.machine_type}, workers, {nodes.consumption.replace('_', ' ')}"
    lines = [
        always("GKE control plane", FEES["cluster"]),
        _nodes(f"{gke.system_machine_type}, system", region, gke.system_machine_type, 1, gke.system_nodes, spot=False),
        _disks("system boot disks", region, SYSTEM_DISK_TYPE, SYSTEM_DISK_GIB, 1, gke.system_nodes),
        _nodes(title, region, nodes.machine_type, 0, nodes.max, spot=nodes.consumption == "spot"),
        _disks("worker boot disks", region, nodes.disk_type, nodes.disk_gib, 0, nodes.max),
        *_local_ssds(region, config),
        _nat(gke, nodes),
        _storage(config, region),
    ]
    if images_gib:
        lines.append(always(f"images, {images_gib} GiB", monthly(images_gib, FEES["registry_gib"])))
    return Estimate(region, tuple(lines), DATE, SOURCE, tuple(_notes(config)))


def _nodes(what: str, region: str, machine_type: str, fewest: int, most: int, *, spot: bool) -> Line:
    machine = machines()[machine_type]
    # Switching hyperthreads off changes the number of CPUs, not the price.
    each = vcpu(region, machine.family, spot=spot)
    if each is not None:
        each *= machine.vcpus
        # For other families than G2 the price of a vCPU includes the accelerators.
        if machine.family == "g2-standard" and (l4 := REGIONS[region]["l4"]):
            each += machine.accelerators * l4[spot]
    return counted(what, fewest, most, each)


def _disks(what: str, region: str, type_: str, gib: int, fewest: int, most: int) -> Line:
    each = REGIONS.get(region, {}).get("disk", {}).get(type_)
    return counted(f"{what}, {gib} GiB {type_}", fewest, most, monthly(gib, each))


def _local_ssds(region: str, config: StackConfig) -> list[Line]:
    nodes = config.section(GkeNodes)
    # A machine's price includes its bundled SSDs.
    count = (nodes.local_ssds or 0) - config.machine.bundled_ssds
    if count <= 0:
        return []
    found = REGIONS.get(region, {}).get("local_ssd")
    month = found[nodes.consumption == "spot"] if found else None
    return [counted(f"{count} local SSDs", 0, nodes.max, monthly(count * LOCAL_SSD_GB, month))]


def _nat(gke: GkeConfig, nodes: GkeNodes) -> Line:
    def price(vms: int) -> float:
        return min(vms * FEES["nat_machine"], FEES["nat_most"]) + FEES["nat_address"]

    return Line("Cloud NAT and its address", price(1), price(gke.system_nodes + nodes.max))


def _storage(config: StackConfig, region: str) -> Line:
    storage = config.section(GkeStorage)
    if storage.kind == "filestore":
        each = monthly(storage.size_gib, FILESTORE_GIB[storage.tier] if region in REGIONS else None)
        return always(f"Filestore {storage.tier}, {storage.size_gib} GiB", each)
    return _disks("data disk", region, storage.disk_type, storage.size_gib, 1, 1)


def _notes(config: StackConfig) -> list[str]:
    gke, nodes = config.section(GkeConfig), config.section(GkeNodes)
    notes = []
    if kinds(config)[-1] == "on_demand" != nodes.consumption:
        full = _nodes("", gke.region, nodes.machine_type, 0, nodes.max, spot=False).at_full
        price = "at a price that is not known" if full is None else f"for {full:.2f} USD an hour"
        notes.append(f"nodes.fallback: where nothing cheaper is, all workers come on demand, {price}.")
    if len(zones(config)) > 1:
        notes.append("Between zones each GiB costs 0.01 USD: gradients, and what is read from the shared volume.")
    if nodes.consumption == "spot":
        notes.append("Spot prices change up to once in 30 days.")
    if nodes.consumption in ("flex_start", "queued"):
        notes.append("flex_start and queued nodes are counted at the on-demand price; they are up to 53 % cheaper.")
    if nodes.consumption == "reservation":
        notes.append("A reservation is billed around the clock, used or not, by the project that made it.")
    if config.section(GkeStorage).kind == "filestore":
        notes.append("Filestore is counted at us-central1's price of 2025; other regions are up to a third dearer.")
    if config.section(GkeStorage).retain:
        notes.append("The data disk stays after `pulumi destroy`, and is still billed.")
    return notes


def vcpu(region: str, family: str, *, spot: bool) -> float | None:
    """One vCPU of a machine family with its memory, and its accelerators but those of G2; None: no price is known."""
    prices = {name: each[spot] for name, each in REGIONS.get(region, {}).items() if isinstance(each, list)}
    match family:
        case "e2-highmem" if prices:
            cpu, gib = _TABLE["e2"]["vcpu"], _TABLE["e2"]["gib"]
            return prices["e2-standard"] * (cpu + 8 * gib) / (cpu + 4 * gib)
        case "c3-highcpu" if prices:
            # It has half of the memory of c3-standard; c3-highmem has twice as much.
            return prices["c3-standard"] - (prices["c3-highmem"] - prices["c3-standard"]) / 2
        case "a2-highgpu" if family in prices:
            return prices[family] / _A2_VCPUS
    return prices.get(family)
