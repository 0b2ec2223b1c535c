"""List the stacks of this machine: what runs, since when, at what cost.

Those whose state is in .local, and those of the backend that Pulumi is logged in to. A stack whose cluster cannot be
asked is listed with the reason.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli import CommandError
from cli.progress import age
from cli.status import all_of
from cli.target import STOPPED, _pulumi, configuration, is_local, targets_of
from cli.volume import WIDE
from infra import state
from infra.cost import dollars, estimate
from infra.stackfiles import NODE_CONTEXT, stacks
from trainer.plain import plain


def ps() -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    # A look at a stack of this machine enters its environment, whose backend knows no other stacks: those come first.
    elsewhere = _of_backend()
    listed = sorted(elsewhere or (), key=is_local)
    names = [*listed, *(name for name in _of_this_machine() if name not in listed)]
    if not names:
        here = ""
        if elsewhere is None:
            print("what stacks elsewhere have is not known: Pulumi is missing or not logged in (`pulumi login`)")
            here = " of this machine"
        print(f"no stack{here} has anything; `trainyard init NAME` writes the file of one, `trainyard up` brings it up")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("stack", "where", "training", "state", "since", "USD an hour"):
        table.add_column(column, overflow="fold", justify="right" if column == "USD an hour" else "left")
    reasons = []
    for name in names:
        rows, reason = look(name, datetime.now(UTC))
        for row in rows:
            table.add_row(*(Text(plain(cell)) for cell in row))
        reasons += [f"{name}: {reason}"] if reason else []
    console.print(table, *map(Text, map(plain, reasons)), sep="\n")


def look(stack: str, now: datetime) -> tuple[list[tuple[str, ...]], str]:
    """A stack's rows, one a training, and why its cluster could not be asked."""
    try:
        targets = targets_of(stack)
        found = all_of(targets)
    except CommandError as error:
        word, where = "node stopped" if str(error).startswith(STOPPED) else "unknown", "this machine"
        return [(stack, where if is_local(stack) else "", "", word, "", cost(stack, None))], str(error)
    here = targets[0].context == NODE_CONTEXT
    active = sum(each.active for each in found)
    rows = []
    for target, each in zip(targets, found, strict=True):
        since = each.ended or each.started
        first = not rows
        rows.append(
            (
                stack if first else "",
                ("this machine" if here else target.context) if first else "",
                target.training or target.job,
                each.condition,
                age((now - since).total_seconds()) if since else "",
                ("0" if here else cost(stack, active)) if first else "",
            )
        )
    return rows, ""


def cost(stack: str, active: int | None) -> str:
    """USD an hour by list prices: at full size where pods train, else at rest; None: from the one to the other."""
    if stack not in stacks():
        return "?"
    with suppress(CommandError):
        config = configuration(stack)
        if config.cluster.context == NODE_CONTEXT:
            return "0"
        if (bill := estimate(config)) is None:
            return "its owner's"
        rest, full = dollars(bill.at_rest), dollars(bill.at_full)
        return f"{rest} to {full}" if active is None else full if active else rest
    return "?"


def _of_backend() -> list[str] | None:
    """The stacks with resources that Pulumi lists here; None where it does not answer, as without a login."""
    try:
        done = _pulumi("stack", "ls", "--json")
        found: list[dict[str, Any]] = json.loads(done.stdout)
    except (OSError, ValueError):
        return None
    return sorted(each["name"] for each in found if each.get("resourceCount")) if done.returncode == 0 else None


def _of_this_machine() -> list[str]:
    names = []
    for file in state.files(state.BACKEND):
        with suppress(ValueError):
            if not state.lives(state.resources(file)):
                continue
        names.append(file.stem)
    return names
