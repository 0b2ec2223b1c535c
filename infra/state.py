"""What in a stack's exported state is protected. Every destroy of ours asks this before it changes anything.

Pulumi refuses to delete a protected resource in the preview of a destroy. Without a preview (`--skip-preview`, and so
the Automation API and pulumi/actions) it deletes on until it meets the first one: registry and network are gone by
then, and what goes with the cluster (`deleted_with`) has left the state although it lives (pulumi 3.200.0).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

#: A resource's own input that makes the cloud refuse its deletion.
KEY = "deletionProtection"


def protection(exported: Mapping[str, Any], stack: str) -> list[str]:
    """Why a stack may not be destroyed, from what `pulumi stack export` printed: a line a cause; none where it may be.

    A cluster that only the cloud protects counts too: the cloud would refuse as late as Pulumi does.
    """
    listed = (exported.get("deployment") or {}).get("resources") or []
    resources = [each for each in listed if not each.get("external")]  # those are only read
    by_key = [each for each in resources if (each.get("inputs") or {}).get(KEY) is True]
    by_hand = [each for each in resources if each.get("protect") and each not in by_key]
    lines = []
    if by_key:
        lines.append(
            f"cluster.{KEY}: stack {stack} was brought up with true, which protects {_names(by_key)}; nothing was "
            f"destroyed; set it to false, run `trainyard up --stack {stack}`, then the same command again"
        )
    if by_hand:
        urns = [each["urn"] for each in by_hand]
        what = shlex.quote(urns[0]) if len(urns) == 1 else "--all"
        lines.append(
            f"stack {stack}: its state protects {_names(by_hand)} (`pulumi state protect`); nothing was destroyed; "
            f"run `pulumi state unprotect --stack {stack} {what}`, then the same command again"
        )
    return lines


def _names(resources: list[Mapping[str, Any]], shown: int = 3) -> str:
    names = [f"{each['type']} {each['urn'].rpartition('::')[2]}" for each in resources]
    more = [f"{len(names) - shown} more"] if len(names) > shown else []
    return ", ".join([*names[:shown], *more])
