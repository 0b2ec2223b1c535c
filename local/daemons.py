"""The node's daemons, which daemons.yaml lists, and their configuration files, which are templates in etc/."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from local import api, certs, cgroups, credentials, kubeconfig, network, paths
from local.processes import Daemon
from local.toolchain import program

TEMPLATES = Path(__file__).with_name("etc")


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def daemon(name: str, health: Callable[[], str | None] | None = None, pause: str = "") -> Daemon:
    """Return the daemon as it would start now, and write its configuration. `pause`: containerd's sandbox image."""
    row = table()[name]
    files = [configure(file, pause=pause) for file in row.get("configuration", ())]
    files += [credentials.htpasswd()] if name == "registry" else []
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
    """Fill in a template of etc/ and write it to `path`, by default into the configuration folder."""
    return write(path or paths.CONFIGURATION / name, _filled((TEMPLATES / name).read_text(), pause))


def write(path: Path, text: str) -> Path:
    """Write a configuration file if its content changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def _filled(text: str, pause: str = "") -> str:
    return text.format(certs=certs, cgroups=cgroups, network=network, paths=paths, pause=pause)
