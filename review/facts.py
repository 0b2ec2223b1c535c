"""Every fact of the outside world with its age, the oldest first: what to look at again before a release.

Prices, quotas, versions, limits of clouds and reasons from other projects' sources have the date on which they were
read, in comments, docstrings and data files.
"""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from infra.stackfiles import ROOT

FILES = [
    f"{folder}/*.{kind}"
    for folder in ("cli", "infra", "local", "requirements", "review", "trainer", "workloads")
    for kind in ("py", "yaml", "in")
]
#: A day since this project reads; not an API's version (iam 2010-05-08), nor a time (2026-11-01T00:00:00Z).
DAY = re.compile(r"\b20(?:2[5-9]|[3-9]\d)-\d\d-\d\d\b(?!T)")


def facts(
    days: Annotated[int, typer.Option(metavar="DAYS", min=0, help="Only those that are at least so old.")] = 0,
) -> None:
    """Print a line a fact: its age in days, where it stands, and its own words."""
    today = datetime.now(UTC).date()
    for read, place, words in found(ROOT):
        if (age := (today - read).days) >= days:
            print(f"{age:5} days  {place}  {words}")


def found(root: Path) -> list[tuple[date, str, str]]:
    """(When it was read, FILE:LINE, the line) of each fact in the tracked files, the oldest first.

    A day to come is no reading but a fact's own: the end of a version's support.
    """
    command = ["git", "grep", "--line-number", "-I", "-E", "20[2-9][0-9]-[0-9][0-9]-[0-9][0-9]", "--", *FILES]
    dated, today = [], datetime.now(UTC).date()
    for told in subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.splitlines():
        name, number, line = told.split(":", 2)
        days = [day for text in DAY.findall(line) if (day := date.fromisoformat(text)) <= today]
        dated += [(max(days), f"{name}:{number}", " ".join(line.split()))] if days else []
    return sorted(dated)
