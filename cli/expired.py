"""List the stacks whose `cluster.ttlHours` have passed.

Each `pulumi up` restarts a stack's time. The workflow ttl.yml runs this every hour and destroys what it lists.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cli import CommandError
from cli.target import configuration
from infra.stackfiles import ROOT, stacks

#: What asks the backend for the project's stacks, with the time of their last update and what they have.
COMMAND = ("pulumi", "stack", "ls", "--json")


def past_their_time(listed: Iterable[Mapping[str, Any]], now: datetime) -> list[str]:
    """The stacks among those that the backend lists that have resources and are past their time.

    Raises:
        CommandError: a stack file is not valid.
    """
    found = []
    for entry in listed:
        name = entry["name"].rsplit("/", 1)[-1]
        if name not in stacks() or entry.get("updateInProgress") or not entry.get("resourceCount", 1):
            continue
        hours = configuration(name).cluster.ttl_hours
        updated = entry.get("lastUpdate")
        if hours and updated and now - datetime.fromisoformat(updated) > timedelta(hours=hours):
            found.append(name)
    return sorted(found)


def expired() -> None:
    try:
        listed = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        found = past_their_time(json.loads(listed), datetime.now(UTC))
    except FileNotFoundError:
        raise CommandError("pulumi is not on PATH; install it", code=2) from None
    except subprocess.CalledProcessError as error:
        raise CommandError(f"{' '.join(COMMAND)}: {error.stderr.strip().splitlines()[-1]}", code=2) from None
    # One line, as GitHub takes a step's outputs.
    print(f"stacks={json.dumps(found)}")
