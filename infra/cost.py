"""What a stack costs per hour by list prices, at rest and at full size; a bill has a line for each item.

At rest, between trainings, a stack has its control plane, one small node and its storage. At full size every pool has
its maximum number of nodes. Each cloud's folder has the items in cost.py and the prices, with their date, in
prices.yaml. The figures leave out discounts, taxes, traffic and logs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from infra.clouds import cloud_of
from infra.config import StackConfig
from infra.parse import parse
from infra.stackfiles import stack_file_values, stacks

#: Months are billed as this many hours (cloud.google.com/compute/disks-image-pricing; AWS's calculator does the same).
HOURS_PER_MONTH = 730
#: The trainer's image with CUDA's libraries is 3.2 GB compressed; BuildKit's cache is as large, and old images stay for
#: a while.
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
    date: str
    """Date of the prices."""
    source: str
    """The list that has them."""
    notes: tuple[str, ...] = ()

    @property
    def at_rest(self) -> float | None:
        return _total([line.at_rest for line in self.lines])

    @property
    def at_full(self) -> float | None:
        return _total([line.at_full for line in self.lines])

    @property
    def unknown(self) -> list[str]:
        """Items without a known price."""
        return [line.what for line in self.lines if line.at_rest is None or line.at_full is None]


def _total(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def always(what: str, each: float | None) -> Line:
    """An item that costs the same at rest and at full size; USD per hour."""
    return Line(what, each, each)


def counted(what: str, fewest: int, most: int, each: float | None) -> Line:
    """Several of a kind, of which `fewest` run at rest; `each` in USD per hour."""
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    if each is None:
        return Line(f"{count} x {what}", 0 if not fewest else None, None if most else 0)
    return Line(f"{count} x {what}", fewest * each, most * each)


def monthly(amount: float, each: float | None) -> float | None:
    """USD per hour of `amount` units (GiB, keys) at `each` USD a month."""
    return amount * each / HOURS_PER_MONTH if each is not None else None


def estimate(config: StackConfig) -> Estimate | None:
    """The bill of a configuration; None for a cluster that the stack does not make."""
    bill = cloud_of(config).bill
    return bill(config, 0 if config.image.builder == "prebuilt" else IMAGES_GIB) if bill else None


def output(config: StackConfig) -> dict[str, Any] | None:
    """The estimate as a stack output: US dollars per hour, rounded to cents, with date and source of the prices."""
    bill = estimate(config)
    if bill is None:
        return None
    result: dict[str, Any] = {
        "atRest": _cents(bill.at_rest),
        "atFullSize": _cents(bill.at_full),
        "unit": "USD per hour",
        "prices": f"list prices of {bill.date} in {bill.region}, {bill.source}, {LEFT_OUT}",
    }
    if bill.unknown:
        result["unknown"] = f"no list price for {'; '.join(bill.unknown)}"
    return result


def _cents(value: float | None) -> float | str:
    return "unknown" if value is None else round(value, 2)


def comparison() -> str:
    """Every stack that makes its cluster, on demand and as Spot, as a Markdown table for docs/costs.md."""
    rows: list[str] = []
    lists: list[str] = []
    for stack in stacks():
        config = parse(stack_file_values(stack), stack)
        if config.nodes is None:
            continue
        for mode in ("on_demand", "spot"):
            # Not parsed anew: a stack's own fallback or reservation does not go with every mode.
            nodes = config.nodes.model_copy(update={"consumption": mode, "fallback": "none"})
            bill = estimate(replace(config, nodes=nodes))
            if bill is None or bill.at_rest is None:
                continue
            workers = f"{nodes.max} x {nodes.machine_type}, {mode.replace('_', ' ')}"
            month = f"{bill.at_rest * HOURS_PER_MONTH:,.0f}"
            lists.append(f"{bill.source} of {bill.date}")
            rows.append(
                f"| {stack} | {workers} | {bill.region} | {bill.at_rest:.2f} | {month} | {dollars(bill.at_full)} |"
            )
    head = [
        f"USD by list prices ({'; '.join(dict.fromkeys(lists))}), {LEFT_OUT}:",
        "",
        "| stack | workers | region | an hour at rest | a month at rest | an hour at full size |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(head + rows)


def dollars(value: float | None) -> str:
    return "?" if value is None else f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.4f}"
