"""The bill of a stack on AWS; prices are in prices.yaml."""

from __future__ import annotations

from infra.bill import Estimate, Line, always, counted, monthly
from infra.config import StackConfig
from infra.eks import prices
from infra.eks.keys import SYSTEM_DISK_GIB, EksConfig, EksNodes, EksStorage


def estimate(config: StackConfig, images_gib: int) -> Estimate:
    """`images_gib`: the stack's images in the registry, GiB."""
    eks, nodes = config.section(EksConfig), config.section(EksNodes)
    region = eks.region
    spot = nodes.consumption == "spot"
    system = prices.machine(region, eks.system_machine_type)
    workers = prices.machine(region, nodes.machine_type, spot=spot)
    title = f"{nodes.machine_type}, workers, {nodes.consumption.replace('_', ' ')}"
    lines = [
        always("EKS control plane", prices.FEES["cluster"]),
        counted(f"{eks.system_machine_type}, system", 1, eks.system_nodes, system),
        _disks("system boot disks", region, SYSTEM_DISK_GIB, 1, eks.system_nodes),
        counted(title, 0, nodes.max, workers),
        _disks("worker boot disks", region, nodes.disk_gib, 0, nodes.max),
        *_network(eks, nodes),
        _storage(config, region),
    ]
    if eks.secrets_encryption:
        lines.append(always("KMS key", monthly(1, prices.FEES["key"])))
    if images_gib:
        lines.append(always(f"images, {images_gib} GiB", monthly(images_gib, prices.FEES["registry_gib"])))
    return Estimate(region, tuple(lines), prices.DATE, prices.SOURCE, tuple(_notes(config)))


def _disks(what: str, region: str, gib: int, fewest: int, most: int) -> Line:
    each = prices.REGIONS.get(region, {}).get("gp3")
    return counted(f"{what}, {gib} GiB gp3", fewest, most, monthly(gib, each))


def _network(eks: EksConfig, nodes: EksNodes) -> list[Line]:
    """The way to the internet: one NAT gateway with its address, or an address for each node."""
    if eks.public_nodes:
        return [counted("public address of a node", 1, eks.system_nodes + nodes.max, prices.FEES["public_address"])]
    gateway = prices.REGIONS.get(eks.region, {}).get("nat")
    return [always("NAT gateway and its address", gateway and gateway + prices.FEES["public_address"])]


def _storage(config: StackConfig, region: str) -> Line:
    each = prices.REGIONS.get(region, {}).get("efs")
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
        notes.append(
            f"CloudWatch bills {prices.FEES['logs_gb']:.2f} USD for each GB of the control plane's logs ({kinds})."
        )
    if nodes.fallback == "on_demand":
        each = prices.machine(eks.region, nodes.machine_type)
        full = "at no known price" if each is None else f"for {nodes.max * each:.2f} USD an hour"
        notes.append(f"nodes.fallback: where there is no Spot machine, all workers come on demand {full} instead.")
    if nodes.alternatives:
        notes.append(f"All workers are counted as {nodes.machine_type}; the alternatives cost more.")
    if storage.throughput == "elastic":
        notes.append("EFS with elastic throughput bills each GB read (0.03) and written (0.06) on top.")
    if storage.retain:
        notes.append("The file system stays after `pulumi destroy`, and is still billed.")
    return notes
