"""Every fact of the outside world with its age, the oldest first: what to look at again before a release.

Prices, quotas, versions, limits of clouds and reasons from other projects' sources have the date on which they were
read, in comments, docstrings and data files.
"""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, date, datetime
from pathlib import Path

from infra.stackfiles import ROOT

FILES = [
    f"{folder}/*{kind}"
    for folder in ("cli", "faults", "infra", "local", "prove", "requirements", "review", "trainer", "workloads")
    for kind in (".py", ".yaml", ".in", "Dockerfile")
]
#: A day or a month since this project reads; not an API's version (iam 2010-05-08), nor a time (2026-11-01T00:00:00Z).
DAY = re.compile(r"\b20(?:2[5-9]|[3-9]\d)-\d\d(?:-\d\d)?\b(?![-T])")


def facts() -> None:
    """Print a line a fact: its age in days, where it stands, and its own words."""
    today = datetime.now(UTC).date()
    for read, place, words in found(ROOT):
        print(f"{(today - read).days:5} days  {place}  {words}")


def found(root: Path) -> list[tuple[date, str, str]]:
    """(When it was read, FILE:LINE, the line) of each fact in the tracked files, the oldest first.

    Beside a reading, a day to come is a fact's own: the end of a version's support. Alone it may be a slip.
    """
    command = ["git", "grep", "--line-number", "-I", "-E", "20[2-9][0-9]-[0-9][0-9]", "--", *FILES]
    dated, today = [], datetime.now(UTC).date()
    for told in subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.splitlines():
        name, number, line = told.split(":", 2)
        days = [_day(text) for text in DAY.findall(line)]
        read = [day for day in days if day <= today] or days
        dated += [(max(read), f"{name}:{number}", " ".join(line.split()))] if read else []
    return sorted(dated)


def _day(text: str) -> date:
    """A day, or the first of a month; what no calendar has is the oldest of all."""
    try:
        return date.fromisoformat(f"{text}-01"[:10])
    except ValueError:
        return date.min
