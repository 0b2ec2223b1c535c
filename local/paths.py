"""Where everything of the local node lives. No other file joins a path to the repository root by itself.

Three places with three lives: the cache of the user (built binaries, shared by all checkouts), `.local/` in the
checkout (state of this node), and a directory in /run (sockets: a unix socket path may have 107 bytes, and a checkout
may lie deeper than that).
"""

import hashlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".local"

LOGS = STATE / "log"
POD_LOGS = LOGS / "pods"
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
TIMINGS = STATE / "timings.json"

# Eight hex digits of the checkout's path: two checkouts never share sockets, and the name stays short.
RUN = Path("/run") / f"trainyard-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"
# Short paths: a unix socket's may have 107 bytes. kubelet makes its sockets below its root directory, so it gets one in
# /run that is a link to the one in the checkout, where pods' files have room.
CONTAINERD_SOCKET = RUN / "containerd.sock"
KUBELET_ROOT = RUN / "kubelet"


def cache() -> Path:
    """The user's cache directory (XDG base directory specification), where binaries of all checkouts live."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trainyard"
