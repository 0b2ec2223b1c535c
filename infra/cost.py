"""What a stack costs per hour by list prices, at rest and at full size.

At rest, between trainings, a stack has its control plane, one small node and its storage. At full size every pool has
its maximum number of nodes. Each cloud's folder has the items in cost.py and the prices, with their date, in
prices.yaml. The figures leave out discounts, taxes, traffic and logs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from infra.bill import HOURS_PER_MONTH, Estimate
from infra.clouds import cloud_of
from infra.config import StackConfig
from infra.parse import parse
from infra.stackfiles import stack_file_values, stacks

#: The trainer's image with CUDA's libraries is 3.2 GB compressed; BuildKit's cache is as large, and old images stay for
#: a while.
IMAGES_GIB = 10
LEFT_OUT = "without discounts, taxes, traffic, logs and metrics"


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
