"""Writes kubeconfig files: one for each part of the node that speaks to the API server, and the user's.

The user's cluster entry carries an extension that says what else this cluster offers (a registry, a host directory for
storage, two images), so that no path or address of this machine stands in a stack file.
"""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from local import certs, network, paths

CONTEXT = "trainyard-local"
EXTENSION = "trainyard"
LISTS = ("clusters", "users", "contexts")


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def build(identity: str, extension: dict[str, Any] | None = None) -> dict[str, Any]:
    """A kubeconfig with everything in it: it may be copied, and its content changes when a certificate does."""
    cluster: dict[str, Any] = {"server": network.API_SERVER, "certificate-authority-data": _encoded(certs.CA)}
    if extension is not None:
        cluster["extensions"] = [{"name": EXTENSION, "extension": extension}]
    user = {
        "client-certificate-data": _encoded(certs.certificate(identity)),
        "client-key-data": _encoded(certs.key(identity)),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": user}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Replaces the file in one step; it holds a key, so nobody else may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps(content, indent=1) + "\n")  # JSON is YAML
    temporary.replace(path)


def component(identity: str) -> Path:
    """The kubeconfig of one part of the node."""
    path = paths.CONFIGURATION / f"{identity}.kubeconfig"
    write(path, build(identity))
    return path


def write_user(base_image: str, etcd_image: str) -> None:
    """The user's kubeconfig, .local/kubeconfig. Called when the node serves: before that there is no such context."""
    extension = {
        "registry": network.REGISTRY,
        "registryInsecure": True,
        "builder": "buildah",
        "storagePath": str(paths.STORAGE),
        "baseImage": base_image,
        "etcdImage": etcd_image,
    }
    content, others = build("admin", extension), foreign()
    write(paths.KUBECONFIG, content | {name: [*content[name], *others[name]] for name in LISTS})


def remove_user() -> None:
    """Takes our context out of the user's kubeconfig, and the file away where nothing else is in it."""
    others = foreign()
    if any(others.values()):
        write(paths.KUBECONFIG, {"apiVersion": "v1", "kind": "Config", **others})
    else:
        paths.KUBECONFIG.unlink(missing_ok=True)


def foreign() -> dict[str, list[Any]]:
    """What others wrote there: it is first in $KUBECONFIG, where `aws eks update-kubeconfig` and kind put contexts."""
    try:
        there = yaml.safe_load(paths.KUBECONFIG.read_text())
    except (OSError, yaml.YAMLError):
        there = None
    there = there if isinstance(there, dict) else {}
    return {name: [each for each in there.get(name) or () if each["name"] != CONTEXT] for name in LISTS}
