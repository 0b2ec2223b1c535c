"""List the stacks of this machine: what runs, since when, at what cost.

Those whose state is in .local, and those of the backend that Pulumi is logged in to. A stack whose cluster cannot be
asked is listed with the reason.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from cli import CommandError
from cli.progress import age
from cli.status import all_of
from cli.table import cells, table, wide
from cli.target import STOPPED, ask_pulumi, configuration, is_local, targets_of
from infra import state
from infra.cost import dollars, estimate
from infra.stackfiles import NODE_CONTEXT, stacks
from trainer.plain import plain


def ps() -> None:
    # A look at a stack of this machine enters its environment, whose backend knows no other stacks: those come first.
    elsewhere = _of_backend()
    names = list(dict.fromkeys([*sorted(elsewhere or (), key=is_local), *_of_this_machine()]))
    if elsewhere is None:
        print("what stacks elsewhere have is not known: Pulumi is missing or not logged in (`pulumi login`)")
    if not names:
        here = " of this machine" if elsewhere is None else ""
        print(f"no stack{here} has anything; `trainyard init NAME` writes the file of one, `trainyard up` brings it up")
        return
    shown = table("stack", "where", "training", "state", "since", "USD an hour", right=("USD an hour",))
    reasons = []
    for name in names:
        try:
            rows = look(name, datetime.now(UTC))
        except (CommandError, OSError) as error:  # such as a kubeconfig that only root may read
            word = "node stopped" if str(error).startswith(STOPPED) else "unknown"
            rows = [("this machine" if is_local(name) else "", "", word, "", cost(name, None))]
            reasons.append(Text(plain(f"{name}: {error}")))
        for at, row in enumerate(rows):
            shown.add_row(*cells("" if at else name, *row))
    wide().print(shown, *reasons, sep="\n")


def look(stack: str, now: datetime) -> list[tuple[str, ...]]:
    """A stack's rows, one a training; place and cost are the stack's, in the first. Raises CommandError."""
    targets = targets_of(stack)
    found = all_of(targets)
    here = targets[0].context == NODE_CONTEXT
    place = "this machine" if here else targets[0].context
    price = "0" if here else cost(stack, sum(each.active for each in found))
    rows: list[tuple[str, ...]] = []
    for each in found:
        since = each.ended or each.started
        ago = age((now - since).total_seconds()) if since else ""
        rows.append((place, each.training or each.job, each.condition, ago, price))
        place = price = ""
    return rows


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
        done = ask_pulumi("stack", "ls", "--json")
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
