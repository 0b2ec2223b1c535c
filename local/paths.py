"""The paths of the local node. No other file joins a path to the repository root.

Three places with three lifetimes: the user's cache (built binaries, shared by all checkouts), `.local/` in the checkout
(state of this node), and a directory in /run for sockets: a unix socket's path may have 107 bytes, and a checkout's
path may be longer.
"""

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".local"

LOGS = STATE / "log"
PROCESSES = STATE / "processes"
CERTIFICATES = STATE / "certificates"
CONFIGURATION = STATE / "etc"
ETCD_DATA = STATE / "etcd"
CONTAINERD_DATA = STATE / "containerd"
KUBELET_DATA = STATE / "kubelet"
REGISTRY_DATA = STATE / "registry"
STORAGE = STATE / "storage"
IMAGES = STATE / "images"
BUILDAH = STATE / "buildah"
BIN = STATE / "bin"
PULUMI_HOME = STATE / "pulumi"
PULUMI_STATE = STATE / "state"
KUBECONFIG = STATE / "kubeconfig"

# Eight hex digits of the hash of the checkout's path: two checkouts never share sockets, and the name stays short.
RUN = Path("/run") / f"trainyard-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"
# The kubelet makes its sockets below its root directory. That is a link in /run, for short paths, to KUBELET_DATA in
# the checkout, where pods' files have room. And it takes no logs below a path that is not ASCII.
CONTAINERD_SOCKET = RUN / "containerd.sock"
KUBELET_ROOT = RUN / "kubelet"
POD_LOGS = KUBELET_ROOT / "log"


def cache() -> Path:
    """Return the user's cache directory (XDG base directory specification) for binaries of all checkouts."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trainyard"
