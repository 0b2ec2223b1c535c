"""Every fact of the outside world with its age, the oldest first: what to look at again before a release.

Prices, quotas, versions, limits of clouds and reasons from other projects' sources have the date on which they were
read: in comments, docstrings, and under `source` and `date` of the data files.
"""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer

from infra.stackfiles import ROOT

FOLDERS = ("cli", "infra", "local", "requirements", "review", "trainer", "workloads")
#: A day since this project reads; not an API's version (iam 2010-05-08), nor a time (2026-11-01T00:00:00Z).
DAY = re.compile(r"\b(20(?:2[5-9]|[3-9]\d)-\d\d-\d\d)\b(?!T)")


def facts(
    days: Annotated[int, typer.Option(metavar="DAYS", min=0, help="Only those that are at least so old.")] = 0,
) -> None:
    """Print a line a fact: its age in days, where it stands, and its own words."""
    today = datetime.now(UTC).date()
    for read, place, words in found(ROOT):
        if (age := (today - read).days) >= days:
            print(f"{age:5} days  {place}  {words}")


def found(root: Path) -> list[tuple[date, str, str]]:
    """(When it was read, FILE:LINE, the line) of each fact in the tracked files, the oldest first."""
    listed = subprocess.run(["git", "ls-files", *FOLDERS], cwd=root, capture_output=True, text=True, check=True).stdout
    dated = []
    for name in listed.splitlines():
        if not name.endswith((".py", ".yaml", ".in")) or not (root / name).exists():
            continue
        told = _told_in_python if name.endswith(".py") else _told_in_data
        for number, line in told((root / name).read_text("utf-8")):
            days = [date.fromisoformat(day) for day in DAY.findall(line)]
            dated += [(max(days), f"{name}:{number}", " ".join(line.split()))] if days else []
    return sorted(dated)


def _told_in_python(text: str) -> Iterator[tuple[int, str]]:
    """The lines of comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            yield from enumerate(token.string.splitlines(), token.start[0])


def _told_in_data(text: str) -> Iterator[tuple[int, str]]:
    """The lines of comments, of `date`, and of `source` with the lines that continue it."""
    source: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.lstrip("- ")
        indent = len(line) - len(bare)
        if source is not None and (not bare or indent <= source):
            source = None
        if bare.startswith(("source:", "sources:")):
            source = indent
        if source is not None or bare.startswith("date:"):
            yield number, line
        elif "#" in line:
            yield number, line[line.index("#") :]
