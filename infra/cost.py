"""What a stack costs per hour by list prices, at rest and at full size: `python -m infra.cost STACK`.

At rest is the time between trainings: the control plane, one small node, storage. At full size every pool has its most
nodes. Prices and their date are in infra/prices.py; discounts, taxes, traffic and logs are not in the figures.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

from infra import prices
from infra.catalog import MACHINES
from infra.config import ConfigError, StackConfig, parse
from infra.sections import GkeConfig, NodesConfig

#: Boot disk of the system pool's nodes (infra/gke/nodes.py).
SYSTEM_DISK_TYPE, SYSTEM_DISK_GIB = "pd-balanced", 100
#: The trainer's image with CUDA's libraries is 3.2 GB compressed; BuildKit's cache is as large, and old images stay a
#: while.
IMAGES_GIB = 10
LEFT_OUT = "without discounts, taxes, traffic, logs and metrics"


@dataclass(frozen=True)
class Line:
    """One item of the bill, USD per hour; None: no list price is known."""

    what: str
    at_rest: float | None
    at_full: float | None


@dataclass(frozen=True)
class Estimate:
    region: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    @property
    def at_rest(self) -> float | None:
        return _total([line.at_rest for line in self.lines])

    @property
    def at_full(self) -> float | None:
        return _total([line.at_full for line in self.lines])

    @property
    def unknown(self) -> list[str]:
        """What has no known price."""
        return [line.what for line in self.lines if line.at_rest is None or line.at_full is None]


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def estimate(config: StackConfig) -> Estimate | None:
    """The bill of a configuration; None for a cluster that the stack does not make."""
    if config.gke is None or config.nodes is None:
        return None
    gke, nodes = config.gke, config.nodes
    region = gke.zone.rsplit("-", 1)[0]
    lines = [
        Line("GKE control plane", prices.GKE_CLUSTER, prices.GKE_CLUSTER),
        _nodes(f"{gke.system_machine_type}, system", region, gke.system_machine_type, 1, gke.system_nodes, spot=False),
        _disks("system boot disks", region, SYSTEM_DISK_TYPE, SYSTEM_DISK_GIB, 1, gke.system_nodes),
        _nodes(_workers_title(nodes), region, nodes.machine_type, 0, nodes.max, spot=nodes.consumption == "spot"),
        _disks("worker boot disks", region, nodes.disk_type, nodes.disk_gib, 0, nodes.max),
        *_local_ssds(region, nodes),
        _nat(gke, nodes),
        _storage(config, region),
    ]
    if config.image.builder != "prebuilt":
        gib_hour = prices.REGISTRY_GIB / prices.HOURS_PER_MONTH
        lines.append(Line(f"images, {IMAGES_GIB} GiB", IMAGES_GIB * gib_hour, IMAGES_GIB * gib_hour))
    return Estimate(region, tuple(lines), tuple(_notes(config, nodes)))


def _workers_title(nodes: NodesConfig) -> str:
    return f"{nodes.machine_type}, workers, {nodes.consumption.replace('_', ' ')}"


def _counted(what: str, fewest: int, most: int, each: float | None) -> Line:
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    if each is None:
        return Line(f"{count} x {what}", 0 if not fewest else None, None if most else 0)
    return Line(f"{count} x {what}", fewest * each, most * each)


def _nodes(what: str, region: str, machine_type: str, fewest: int, most: int, *, spot: bool) -> Line:
    machine = MACHINES[machine_type]
    rate = prices.vcpu(region, machine.family)
    # Switching hyperthreads off changes the number of CPUs, not the price.
    each = machine.vcpus * (rate.spot if spot else rate.on_demand) if rate else None
    return _counted(what, fewest, most, each)


def _disks(what: str, region: str, type_: str, gib: int, fewest: int, most: int) -> Line:
    month = prices.disk(region, type_)
    each = gib * month / prices.HOURS_PER_MONTH if month is not None else None
    return _counted(f"{what}, {gib} GiB {type_}", fewest, most, each)


def _local_ssds(region: str, nodes: NodesConfig) -> list[Line]:
    machine = MACHINES[nodes.machine_type]
    # What a machine always has is in its price.
    count = (nodes.local_ssds or 0) - machine.bundled_ssds
    if count <= 0:
        return []
    found = prices.REGIONS.get(region)
    each = None
    if found:
        month = found.local_ssd.spot if nodes.consumption == "spot" else found.local_ssd.on_demand
        each = count * prices.LOCAL_SSD_GB * month / prices.HOURS_PER_MONTH
    return [_counted(f"{count} local SSDs", 0, nodes.max, each)]


def _nat(gke: GkeConfig, nodes: NodesConfig) -> Line:
    def price(vms: int) -> float:
        return min(vms * prices.NAT_VM, prices.NAT_MOST) + prices.NAT_ADDRESS

    return Line("Cloud NAT and its address", price(1), price(gke.system_nodes + nodes.max))


def _storage(config: StackConfig, region: str) -> Line:
    storage = config.storage
    if storage.kind == "filestore":
        each = storage.size_gib * prices.FILESTORE_GIB[storage.tier] / prices.HOURS_PER_MONTH
        if region not in prices.REGIONS:
            return Line(f"Filestore {storage.tier}, {storage.size_gib} GiB", None, None)
        return Line(f"Filestore {storage.tier}, {storage.size_gib} GiB", each, each)
    return _disks("data disk", region, storage.disk_type, storage.size_gib, 1, 1)


def _notes(config: StackConfig, nodes: NodesConfig) -> list[str]:
    notes = []
    if nodes.consumption == "spot":
        notes.append("Spot prices change up to once in 30 days.")
    if nodes.consumption in ("flex_start", "queued"):
        notes.append("flex_start and queued nodes are counted at the on-demand price; they are up to 53 % cheaper.")
    if nodes.consumption == "reservation":
        notes.append("A reservation is billed around the clock, used or not, by the project that made it.")
    if config.storage.kind == "filestore":
        notes.append("Filestore is counted at us-central1's price of 2025; other regions are up to a third dearer.")
    if config.storage.retain:
        notes.append("The data disk stays after `pulumi destroy`, and goes on costing.")
    return notes


def output(config: StackConfig) -> dict[str, Any] | None:
    """The estimate as a stack output: US dollars per hour, rounded to cents, with date and source of the prices."""
    bill = estimate(config)
    if bill is None:
        return None
    result: dict[str, Any] = {
        "atRest": _cents(bill.at_rest),
        "atFullSize": _cents(bill.at_full),
        "unit": "USD per hour",
        "prices": f"list prices of {prices.DATE} in {bill.region}, {prices.SOURCE}, {LEFT_OUT}",
    }
    if bill.unknown:
        result["unknown"] = f"no list price for {'; '.join(bill.unknown)}"
    return result


def _cents(value: float | None) -> float | str:
    return "unknown" if value is None else round(value, 2)


def comparison() -> str:
    """Every stack that makes its cluster, on demand and as Spot, as a Markdown table for docs/costs.md."""
    from infra.recording import stack_file_values, stacks

    rows = [
        f"USD by list prices of {prices.DATE}, {prices.SOURCE}, {LEFT_OUT}:",
        "",
        "| stack | workers | region | an hour at rest | a month at rest | an hour at full size |",
        "|---|---|---|---|---|---|",
    ]
    for stack in stacks():
        values = stack_file_values(stack)
        for mode in ("on_demand", "spot") if "nodes" in values else ():
            config = parse({**values, "nodes": {**values["nodes"], "consumption": mode}}, stack)
            bill = estimate(config)
            if config.nodes is None or bill is None or bill.at_rest is None:
                continue
            workers = f"{config.nodes.max} x {config.nodes.machine_type}, {mode.replace('_', ' ')}"
            month = f"{bill.at_rest * prices.HOURS_PER_MONTH:,.0f}"
            rows.append(
                f"| {stack} | {workers} | {bill.region} | {bill.at_rest:.2f} | {month} | {_shown(bill.at_full)} |"
            )
    return "\n".join(rows)


def show(stack: str, bill: Estimate, hours: float | None = None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=f"{stack}: USD per hour, {bill.region}", title_justify="left")
    table.add_column("item")
    table.add_column("at rest", justify="right")
    table.add_column("at full size", justify="right")
    for line in bill.lines:
        table.add_row(line.what, _shown(line.at_rest), _shown(line.at_full))
    table.add_section()
    table.add_row("total", _shown(bill.at_rest), _shown(bill.at_full), style="bold")
    if bill.at_rest is not None:
        table.add_row("a month at rest", _shown(bill.at_rest * prices.HOURS_PER_MONTH), "")
    if hours is not None and bill.at_full is not None:
        table.add_row(f"{hours:g} hours at full size", "", _shown(bill.at_full * hours))
    console = Console(width=100, highlight=False)
    console.print(table)
    console.print(f"List prices of {prices.DATE}, {prices.SOURCE}, {LEFT_OUT}.", style="dim")
    for note in bill.notes:
        console.print(note, style="dim")
    if bill.unknown:
        console.print(f"No list price is known for: {'; '.join(bill.unknown)} (infra/prices.py).", style="yellow")


def _shown(value: float | None) -> str:
    return "?" if value is None else f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.4f}"


def main(arguments: list[str] | None = None) -> int:
    # The program imports this module for its outputs, and needs no recording.
    from infra.recording import stack_file_values, stacks

    parser = argparse.ArgumentParser(prog="python -m infra.cost", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("stack", help=f"one of {', '.join(stacks())}")
    parser.add_argument("--hours", type=float, help="also what this many hours at full size cost")
    chosen = parser.parse_args(arguments)
    if chosen.stack not in stacks():
        print(f"error: no stack '{chosen.stack}'; there are: {', '.join(stacks())}", file=sys.stderr)
        return 2
    try:
        config = parse(stack_file_values(chosen.stack), chosen.stack)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    bill = estimate(config)
    if bill is None:
        print(f"Stack {chosen.stack} makes no cluster: whoever runs the cluster pays for it.")
        return 0
    show(chosen.stack, bill, chosen.hours)
    return 0


if __name__ == "__main__":
    sys.exit(main())
