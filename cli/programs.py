"""The programs of this machine that carry files to and from the shared volume: rsync and kubectl."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from cli import CommandError

FACTS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
CHANGELOG = Path("/usr/share/doc/rsync/changelog.Debian.gz")
PACKAGED = "/usr/bin/rsync"


def find(name: str) -> str:
    """The path of a program. Raises CommandError."""
    path = shutil.which(name)
    if path is None:
        raise CommandError(f"{name} is needed to carry files, and is not on PATH: {FACTS[name]['get']}")
    return path


def find_rsync() -> str:
    """The path of an rsync that may talk to an end which is not trusted. Raises CommandError."""
    facts, path = FACTS["rsync"], find("rsync")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"rsync +version v?(\d+)\.(\d+)\.(\d+)", said)
    if not found:  # macOS has an openrsync of this name
        name = (said.splitlines() or ["nothing"])[0][:60]
        raise CommandError(f"{path} is not rsync {facts['version']} or newer, it says: {name}; {facts['get']}")
    version = ".".join(found.groups())
    if tuple(map(int, found.groups())) < tuple(map(int, facts["version"].split("."))) and not _mended(path):
        raise CommandError(
            f"{path} is version {version}, through whose holes a hostile volume writes to this machine "
            f"({facts['holes'][0]}, {facts['holes'][-1]}); needed: {facts['version']} or a package with the fixes: "
            f"{facts['get']}"
        )
    return path


def _mended(path: str) -> bool:
    """Whether the distribution has closed the holes in an older version."""
    try:
        changes = gzip.decompress(CHANGELOG.read_bytes()).decode("utf-8", "replace") if path == PACKAGED else ""
    except (OSError, EOFError):
        return False
    return FACTS["rsync"]["holes"][-1] in changes
