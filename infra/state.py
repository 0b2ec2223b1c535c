"""What in a stack's exported state is protected. Every destroy of ours asks this before it changes anything.

Pulumi refuses to delete a protected resource in the preview of a destroy. Without a preview (`--skip-preview`, and so
the Automation API and pulumi/actions) it deletes on until it meets the first one: registry and network are gone by
then, and what goes with the cluster (`deleted_with`) has left the state although it lives (pulumi 3.200.0).
"""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.stackfiles import NODE_CONTEXT, PROJECT, ROOT

#: The backend of this machine's stacks; a stack's file is in .pulumi/stacks/PROJECT.
BACKEND = ROOT / ".local" / "state"
#: A resource's own input that makes the cloud refuse its deletion.
KEY = "deletionProtection"
#: The components that record what a stack was built with (infra/changes.py).
BUILT = "trainyard:infra:Built"


def protection(exported: Mapping[str, Any], stack: str, given: Mapping[str, Any]) -> list[str]:
    """Why a stack may not be destroyed, from what `pulumi stack export` printed: a line a cause; none where it may be.

    A cluster that only the cloud protects counts too: the cloud would refuse as late as Pulumi does. `given`: the
    values of the stack's file; a destroy goes by the state, and not by what the file says since the last `up`.
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
    told = [(each.get("outputs") or {}).get("values") or "{}" for each in listed if each["type"] == BUILT]
    built = {key: value for text in told for key, value in json.loads(text).items()}
    for section, name in (("cluster", KEY), ("storage", "retain")):
        said = given.get(section)
        if isinstance(said, Mapping) and said.get(name) is True and built.get(f"{section}.{name}") is False:
            lines.append(
                f"{section}.{name}: true in Pulumi.{stack}.yaml, but stack {stack} was brought up with false, which "
                f"counts; nothing was destroyed; run `trainyard up --stack {stack}`, or set it to false, then the same "
                "command again"
            )
    return lines


def files(backend: Path) -> list[Path]:
    """The file of each stack in a backend's folder, in the order of their names."""
    return sorted((backend / ".pulumi" / "stacks").glob("*/*.json"), key=lambda file: file.stem)


def resources(file: Path) -> list[dict[str, Any]]:
    """What a stack's file in a backend's folder lists. Raises ValueError when Pulumi was killed while it wrote it."""
    try:
        checkpoint = json.loads(file.read_text("utf-8"))["checkpoint"]
        # `pulumi stack init` writes "Latest", and `pulumi up` "latest" (3.200.0).
        latest = {key.lower(): value for key, value in checkpoint.items()}["latest"] or {}
        return [dict(each) for each in latest.get("resources") or []]
    except (ValueError, KeyError, TypeError, AttributeError):
        unknown = f"damaged, so what stack {file.stem} still has is unknown"
        raise ValueError(f"{file}: {unknown}; restore it from {file.name}.bak beside it") from None


def lives(listed: list[dict[str, Any]]) -> str:
    """Where a stack has resources: `node`, this machine's; `elsewhere`; empty: nowhere."""
    # infra/existing.py sets the provider's context to the node's; a stack with a cluster of its own sets none.
    if any((each.get("inputs") or {}).get("context") == NODE_CONTEXT for each in listed):
        return "node"
    return "elsewhere" if any(not each["type"].startswith("pulumi:") for each in listed) else ""


def on_node() -> Iterator[str]:
    """The stacks that live on this machine's node; one whose state is damaged may."""
    for file in files(BACKEND):
        try:
            found = lives(resources(file))
        except ValueError:
            found = "node"
        if found == "node":
            yield file.stem


def lock(stack: str) -> str:
    """Who holds the lock of a stack of this machine, and what to do; empty: nobody. Pulumi names no more than a file.

    A Pulumi that was killed leaves its lock (pkg/backend/diy/lock.go, v3.200.0).
    """
    for file in sorted((BACKEND / ".pulumi" / "locks" / "organization" / PROJECT / stack).glob("*.json")):
        try:
            held = json.loads(file.read_text("utf-8"))
            pid, host = int(held["pid"]), held["hostname"]
            when = datetime.fromisoformat(held["timestamp"]).astimezone(UTC)  # Pulumi writes local time
        except (OSError, ValueError, KeyError, TypeError):
            continue  # Pulumi tells
        who = (
            f"stack {stack} is locked by {held.get('username')}'s pulumi, process {pid} since {when:%Y-%m-%d %H:%M} UTC"
        )
        remove = f"`trainyard local run -- pulumi cancel {stack} --yes` removes its lock"
        if host != socket.gethostname():
            return f"{who} on {host}; wait until it has ended there; if it was killed: {remove}"
        if _is_pulumi(pid):
            return f"{who}; wait until it has ended"
        return f"{who}, which is gone on this machine: it was killed; {remove}; then the same command again"
    return ""


def _is_pulumi(pid: int) -> bool:
    """Whether the process lives; another program may have its number by now."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip() == "pulumi"
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's, or no /proc


def _names(resources: list[Mapping[str, Any]], shown: int = 3) -> str:
    names = [f"{each['type']} {each['urn'].rpartition('::')[2]}" for each in resources]
    more = [f"{len(names) - shown} more"] if len(names) > shown else []
    return ", ".join([*names[:shown], *more])
