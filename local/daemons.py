"""The node's daemons, which daemons.yaml lists, and their configuration: the files of etc/ with addresses and paths."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from local import api, certs, cgroups, kubeconfig, network, paths
from local.processes import Daemon
from local.toolchain import program

TABLE = Path(__file__).with_suffix(".yaml")
TEMPLATES = Path(__file__).with_name("etc")


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(TABLE.read_text())


def daemon(name: str, health: Callable[[], str | None] | None = None, pause: str = "") -> Daemon:
    """The daemon as it would be started now; writes its configuration. `pause`: the sandbox image, for containerd."""
    row = table()[name]
    files = [configure(file, pause=pause) for file in row.get("configuration", ())]
    files += [kubeconfig.component(name)] if row.get("identity") else []
    files += [Path(_filled(file)) for file in row.get("files", ())]
    return Daemon(
        name,
        [row.get("program") or program(name), *map(_filled, row["flags"])],
        health or api.http_health(_filled(row["health"])),
        tuple(files),
        row.get("environment", {}),
    )


def configure(name: str, path: Path | None = None, pause: str = "") -> Path:
    """Writes a file of etc/, at its place among the configuration where no other is given."""
    return write(path or paths.CONFIGURATION / name, _filled((TEMPLATES / name).read_text(), pause))


def write(path: Path, text: str) -> Path:
    """Writes a configuration file only when it differs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def _filled(text: str, pause: str = "") -> str:
    return text.format(certs=certs, cgroups=cgroups, network=network, paths=paths, pause=pause)
