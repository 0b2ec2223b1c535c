"""Writes the user's kubeconfig, and one for each component that uses the API server.

The user's cluster entry has an extension that lists what else this cluster offers (a registry, a host directory for
storage, two images), so that a stack file needs no path or address of this machine.
"""

import base64
import json
from pathlib import Path
from typing import Any

import yaml

from infra.stackfiles import NODE_CONTEXT as CONTEXT
from local import certs, credentials, network, paths

EXTENSION = "trainyard"
LISTS = ("clusters", "users", "contexts")


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def content_for(identity: str, extension: dict[str, Any] | None = None) -> dict[str, Any]:
    """Build a self-contained kubeconfig: it can be copied, and its content changes when a certificate does."""
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
    """Replace the file atomically, readable by its owner alone: it contains a key."""
    certs.write_private(path, (json.dumps(content, indent=1) + "\n").encode())  # JSON is YAML


def component(identity: str) -> Path:
    """Write the kubeconfig of one component."""
    path = paths.CONFIGURATION / f"{identity}.kubeconfig"
    write(path, content_for(identity))
    return path


def write_user(base_image: str, etcd_image: str) -> None:
    """Write the user's kubeconfig, .local/kubeconfig. Only a node that serves may have a context there."""
    extension = {
        "registry": network.REGISTRY,
        "registryInsecure": True,
        "registryAuth": str(credentials.file()),
        "builder": "buildah",
        "storagePath": str(paths.STORAGE),
        "baseImage": base_image,
        "etcdImage": etcd_image,
    }
    content, others = content_for("admin", extension), foreign()
    write(paths.KUBECONFIG, content | {name: [*content[name], *others[name]] for name in LISTS})


def remove_user() -> None:
    """Remove our context from the user's kubeconfig, and the file if it has no other entries."""
    others = foreign()
    if any(others.values()):
        write(paths.KUBECONFIG, {"apiVersion": "v1", "kind": "Config", **others})
    else:
        paths.KUBECONFIG.unlink(missing_ok=True)


def foreign() -> dict[str, list[Any]]:
    """Return other programs' entries: `aws eks update-kubeconfig` and kind write to the first file of $KUBECONFIG."""
    try:
        there = yaml.safe_load(paths.KUBECONFIG.read_text())
    except (OSError, yaml.YAMLError):
        there = None
    there = there if isinstance(there, dict) else {}
    return {name: [each for each in there.get(name) or () if each["name"] != CONTEXT] for name in LISTS}
