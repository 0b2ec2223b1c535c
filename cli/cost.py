"""Show what a stack costs per hour by list prices."""

from __future__ import annotations

import math
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from cli.target import StackName, configuration
from infra.cost import HOURS_PER_MONTH, LEFT_OUT, Estimate, dollars, estimate
from infra.trainings import at_once, plan


def cost(
    stack: StackName = "",
    hours: Annotated[
        float | None, typer.Option(min=0, help="The cost of this many hours at full size. Default: job.maxHours.")
    ] = None,
) -> None:
    config = configuration(stack)
    bill = estimate(config)
    if bill is None:
        print(f"Stack {stack} uses an existing cluster: its owner pays.")
    else:
        # One after the other where not all fit at once.
        rounds = math.ceil(len(config.each_training) / max(1, at_once(config)))
        show(
            stack, bill, config.job.max_hours * rounds if hours is None else hours, hours is None, len(config.trainings)
        )
    for line in plan(config):
        print(line)


def show(stack: str, bill: Estimate, hours: float | None, by_limit: bool = False, trainings: int = 0) -> None:
    """`by_limit`: these hours are the most that the stack's training, or so many, can take, by job.maxHours."""
    table = Table(box=box.SIMPLE_HEAD, title=f"{stack}: USD per hour, {bill.region}", title_justify="left")
    table.add_column("item")
    table.add_column("at rest", justify="right")
    table.add_column("at full size", justify="right")
    for line in bill.lines:
        table.add_row(line.what, dollars(line.at_rest), dollars(line.at_full))
    table.add_section()
    table.add_row("total", dollars(bill.at_rest), dollars(bill.at_full), style="bold")
    if bill.at_rest is not None:
        table.add_row("a month at rest", dollars(bill.at_rest * HOURS_PER_MONTH), "")
    if hours is not None and bill.at_full is not None:
        who = f"all {trainings} trainings" if trainings else "one training"
        most = f", the most for {who} (job.maxHours)" if by_limit else ""
        table.add_row(f"{hours:g} hours at full size{most}", "", dollars(bill.at_full * hours))
    console = Console(width=100, highlight=False)
    console.print(table)
    console.print(f"List prices of {bill.date}, {bill.source}, {LEFT_OUT}.", style="dim")
    for note in bill.notes:
        console.print(note, style="dim")
    if bill.unknown:
        console.print(f"No list price is known for: {'; '.join(bill.unknown)} (prices.yaml).", style="yellow")
