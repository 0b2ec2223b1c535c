"""Names the stacks that somebody forgot: `python -m cli.expired` prints those whose `cluster.ttlHours` are over.

A stack's time begins anew with each `pulumi up`. The workflow ttl.yml asks every hour, and destroys what is named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from infra.config import ConfigError, parse
from infra.stackfiles import ROOT, stack_file_values, stacks

#: What asks the backend for the project's stacks, with the time of their last update and what they have.
COMMAND = ("pulumi", "stack", "ls", "--json")


def expired(listed: Iterable[Mapping[str, Any]], now: datetime) -> list[str]:
    """The stacks among those that the backend lists that have resources and are past their time.

    Raises:
        ConfigError: a stack file is not valid.
    """
    found = []
    for entry in listed:
        name = entry["name"].rsplit("/", 1)[-1]
        if name not in stacks() or entry.get("updateInProgress") or not entry.get("resourceCount", 1):
            continue
        hours = parse(stack_file_values(name), name).cluster.ttl_hours
        updated = entry.get("lastUpdate")
        if hours and updated and now - datetime.fromisoformat(updated) > timedelta(hours=hours):
            found.append(name)
    return sorted(found)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cli.expired", description=(__doc__ or "").split("\n\n")[0])
    parser.parse_args(arguments)
    try:
        listed = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        # One line, as GitHub takes a step's outputs.
        print(f"stacks={json.dumps(expired(json.loads(listed), datetime.now(UTC)))}")
    except FileNotFoundError:
        print("error: pulumi is not on PATH; `make node`, or install it", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(COMMAND)}: {error.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return 2
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
