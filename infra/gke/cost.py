"""The bill of a stack on Google Cloud; prices are in prices.yaml."""

from __future__ import annotations

from infra.bill import Estimate, Line, always, counted, monthly
from infra.config import StackConfig
from infra.gke import prices
from infra.gke.keys import SYSTEM_DISK_GIB, SYSTEM_DISK_TYPE, GkeConfig, GkeNodes, GkeStorage, kinds, zones
from infra.gke.machines import machines


def estimate(config: StackConfig, images_gib: int) -> Estimate:
    """`images_gib`: the stack's images in the registry, GiB."""
    gke, nodes = config.section(GkeConfig), config.section(GkeNodes)
    region = gke.region
    title = f"{nodes.machine_type}, workers, {nodes.consumption.replace('_', ' ')}"
    lines = [
        always("GKE control plane", prices.FEES["cluster"]),
        _nodes(f"{gke.system_machine_type}, system", region, gke.system_machine_type, 1, gke.system_nodes, spot=False),
        _disks("system boot disks", region, SYSTEM_DISK_TYPE, SYSTEM_DISK_GIB, 1, gke.system_nodes),
        _nodes(title, region, nodes.machine_type, 0, nodes.max, spot=nodes.consumption == "spot"),
        _disks("worker boot disks", region, nodes.disk_type, nodes.disk_gib, 0, nodes.max),
        *_local_ssds(region, config),
        _nat(gke, nodes),
        _storage(config, region),
    ]
    if images_gib:
        lines.append(always(f"images, {images_gib} GiB", monthly(images_gib, prices.FEES["registry_gib"])))
    return Estimate(region, tuple(lines), prices.DATE, prices.SOURCE, tuple(_notes(config)))


def _nodes(what: str, region: str, machine_type: str, fewest: int, most: int, *, spot: bool) -> Line:
    # Switching hyperthreads off changes the number of CPUs, not the price.
    rate = prices.of_machine(region, machines()[machine_type])
    each = (rate.spot if spot else rate.on_demand) if rate else None
    return counted(what, fewest, most, each)


def _disks(what: str, region: str, type_: str, gib: int, fewest: int, most: int) -> Line:
    return counted(f"{what}, {gib} GiB {type_}", fewest, most, monthly(gib, prices.disk(region, type_)))


def _local_ssds(region: str, config: StackConfig) -> list[Line]:
    nodes = config.section(GkeNodes)
    # A machine's price includes its bundled SSDs.
    count = (nodes.local_ssds or 0) - config.machine.bundled_ssds
    if count <= 0:
        return []
    found = prices.REGIONS.get(region, {}).get("local_ssd")
    month = (found.spot if nodes.consumption == "spot" else found.on_demand) if found else None
    return [counted(f"{count} local SSDs", 0, nodes.max, monthly(count * prices.LOCAL_SSD_GB, month))]


def _nat(gke: GkeConfig, nodes: GkeNodes) -> Line:
    def price(vms: int) -> float:
        fees = prices.FEES
        return min(vms * fees["nat_machine"], fees["nat_most"]) + fees["nat_address"]

    return Line("Cloud NAT and its address", price(1), price(gke.system_nodes + nodes.max))


def _storage(config: StackConfig, region: str) -> Line:
    storage = config.section(GkeStorage)
    if storage.kind == "filestore":
        each = monthly(storage.size_gib, prices.FILESTORE_GIB[storage.tier] if region in prices.REGIONS else None)
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
