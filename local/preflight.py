"""Checks whether this machine can be the local node, before anything is changed.

One function gathers the facts and another judges them, so that every refusal can be tested on any machine.
"""

import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from local import cgroups, leftovers, network, paths, processes, toolchain

ALTERNATIVE = "or use a cluster you have: trainyard local use kind-kind --registry localhost:5001"

# Debian package -> the program on PATH, or the file, that shows that it is installed.
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "buildah": "buildah",
    "netavark": "/usr/lib/podman/netavark",  # without it, buildah 1.39 does nothing
    "mmdebstrap": "mmdebstrap",
    "docker-registry": "docker-registry",
    "rsync": "rsync",
    "catatonit": "/usr/bin/catatonit",
    "iproute2": "ip",
    "util-linux": "nsenter",
    "procps": "sysctl",
    "kmod": "modprobe",
    "debian-archive-keyring": "/usr/share/keyrings/debian-archive-keyring.gpg",
}

# Disk in GB, measured in the first `make up` of a fresh clone, 2026-11-27: Go's caches 6.1, programs 0.6.
TOOL_DISK = {"kubernetes": 3.7}
OTHER_TOOL_DISK = 0.6
# The trainer's image for processors takes 6.4: builder 2.8, unpacked 2.8, registry 0.6, base 0.2. While buildah writes
# the layer of its packages, which is there four times, 8.9 were taken (2026-11-27).
IMAGE_DISK = 9.0
# One more image with the same packages, and checkpoints.
LATER_DISK = 5.0
# Minutes in the same run on 2 cores: Kubernetes; each other tool, built in parallel; the image with the first training,
# alone and beside the compilers.
KUBERNETES_MINUTES = 7.5
TOOL_MINUTES = 1.6
IMAGE_MINUTES, IMAGE_BESIDE_MINUTES = 4, 2
# What the local stack's pods request, 5.5 GiB, or two of them would wait for a node. Measured: the node 0.7 GB, two
# trainers of a small model 2 GB, two Go builds in parallel 4 GB.
MEMORY = 6.0  # GB

# Bits of the effective capability set, capabilities(7).
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_CHROOT": 18, "CAP_SYS_ADMIN": 21}


@dataclass(frozen=True)
class Facts:
    """What `gather` found out about the machine."""

    system: str
    uid: int
    capabilities_missing: tuple[str, ...]
    cgroups_missing: tuple[str, ...]
    overlay: bool
    folder: str  # the checkout's path
    disk_free: float  # GB, where .local lies
    cache_free: float | None  # GB, where the tools are built; None: on the same disk
    new_image: bool  # the trainer's packages are in no image yet
    memory: float  # GB, total
    unbuilt: tuple[str, ...]  # tools to build
    go: bool  # a Go is there, or can be installed
    packages_missing: tuple[str, ...]
    apt: bool
    address_taken: str | None  # "198.18.0.1 on eth1"
    other_checkout: str | None  # path of another checkout whose node runs


def packages_missing() -> tuple[str, ...]:
    return tuple(
        package
        for package, sign in PACKAGES.items()
        if not (Path(sign).exists() if sign.startswith("/") else shutil.which(sign))
    )


def go_available() -> bool:
    """Whether there is a Go to build with, or uv to install one."""
    return toolchain.go_on_path() is not None or toolchain.cached_go().exists() or find_spec("uv") is not None


def other_checkout() -> str | None:
    if network.is_ours() or not processes.in_namespace(network.NAMESPACE):
        return None
    return network.owner()


def gather(tools: tuple[str, ...] = (*toolchain.NODE_TOOLS, *toolchain.PULUMI_TOOLS, toolchain.PLUGIN)) -> Facts:
    system = platform.system()
    linux = system == "Linux"
    unbuilt = tuple(name for name in tools if not toolchain.is_built(toolchain.BY_NAME[name]))
    return Facts(
        system=system,
        uid=os.geteuid(),
        capabilities_missing=_capabilities_missing() if linux else (),
        cgroups_missing=tuple(cgroups.missing()) if linux else (),
        overlay=not linux or "overlay" in Path("/proc/filesystems").read_text() or shutil.which("modprobe") is not None,
        folder=str(paths.ROOT),
        disk_free=free(paths.ROOT),
        cache_free=None if existing(paths.cache()).stat().st_dev == paths.ROOT.stat().st_dev else free(paths.cache()),
        new_image=not leftovers.has_packages(),
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9 if linux else 0.0,
        unbuilt=unbuilt,
        go=not unbuilt or go_available(),
        packages_missing=packages_missing() if linux else (),
        apt=shutil.which("apt-get") is not None,
        address_taken=network.conflicts() if linux else None,
        other_checkout=other_checkout() if linux else None,
    )


def existing(folder: Path) -> Path:
    return folder if folder.exists() else existing(folder.parent)


def free(folder: Path) -> float:
    """Return the free GB of the disk that has, or will have, the folder."""
    return shutil.disk_usage(existing(folder)).free / 1e9


def _capabilities_missing() -> tuple[str, ...]:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return tuple(name for name, bit in CAPABILITIES.items() if not effective >> bit & 1)
    return ()


def toolchain_problems(facts: Facts) -> list[str]:
    """List why this machine cannot build the programs it lacks. Needs neither root nor Linux."""
    if facts.unbuilt and not facts.go:
        need = ".".join(map(str, toolchain.OLDEST_GO))
        instead = "" if set(facts.unbuilt) - {*toolchain.PULUMI_TOOLS, toolchain.PLUGIN} else ", or Pulumi itself"
        return [
            f"no Go {need} or newer to build {', '.join(facts.unbuilt)} with, and {sys.executable} has no uv to "
            f"install one with; install Go{instead}"
        ]
    return []


def disks(facts: Facts) -> list[tuple[Path, float, dict[str, float]]]:
    """List (folder, GB free, purpose -> GB needed) of each disk."""
    tools = {"to build the toolchain": sum(TOOL_DISK.get(name, OTHER_TOOL_DISK) for name in facts.unbuilt)}
    image = {"for new layers and runs": LATER_DISK}
    if facts.new_image:
        image = {"for the trainer's image": IMAGE_DISK}
    if facts.cache_free is None:
        return [(paths.ROOT, facts.disk_free, (tools if facts.unbuilt else {}) | image)]
    return [(paths.ROOT, facts.disk_free, image), (paths.cache(), facts.cache_free, tools if facts.unbuilt else {})]


def listed(need: dict[str, float]) -> str:
    return ", ".join(f"{size:.0f} {what}" for what, size in need.items())


def announcement(facts: Facts) -> str | None:
    """Say how long a run that builds something big will take; None for one that does not."""
    if not facts.unbuilt and not facts.new_image:
        return None
    kubernetes = "kubernetes" in facts.unbuilt
    minutes = max(KUBERNETES_MINUTES * kubernetes, TOOL_MINUTES * (len(facts.unbuilt) - kubernetes))
    minutes += (IMAGE_BESIDE_MINUTES if kubernetes else IMAGE_MINUTES) * facts.new_image
    disk = " and ".join(
        f"{sum(need.values()):.0f} GB of disk at {folder} ({there:.0f} are free)"
        for folder, there, need in disks(facts)
        if need
    )
    return (
        f"this run builds what later ones find: about {minutes:.0f} minutes on 2 idle cores, more "
        f"on slower or busy ones (what is left is shown), and {disk}; "
        "`make clean` gives the disk back"
    )


def node_problems(facts: Facts) -> list[str]:
    """List why this machine cannot be the node: one line each, with what to do instead."""
    if facts.system != "Linux":
        return [f"the local node needs Linux, this is {facts.system}; use a Linux machine, {ALTERNATIVE}"]
    if facts.uid != 0:
        return [f"the local node needs root (user id 0, not {facts.uid}); run it with sudo, {ALTERNATIVE}"]
    found = []
    if facts.capabilities_missing:
        names = ", ".join(facts.capabilities_missing)
        found.append(f"root lacks {names} here, as in an unprivileged container; use a virtual machine, {ALTERNATIVE}")
    if facts.cgroups_missing:
        names = ", ".join(facts.cgroups_missing)
        found.append(f"/sys/fs/cgroup lacks the controllers {names}; mount them, {ALTERNATIVE}")
    if not facts.overlay:
        found.append(f"the kernel has no overlay file system; use a kernel with CONFIG_OVERLAY_FS, {ALTERNATIVE}")
    # In the configuration of overlay mounts, PATH and YAML the others mean something.
    if strange := re.sub(r"[\w /.@+~=-]", "", facts.folder):
        found.append(
            f"the checkout's path {facts.folder} has {' '.join(dict.fromkeys(strange))}; move it to a path of letters, "
            f"digits, spaces and . @ + ~ = - _, {ALTERNATIVE}"
        )
    found += [
        f"{there:.0f} GB of disk are free at {folder}, {sum(need.values()):.0f} GB are needed ({listed(need)}); "
        f"free some, {ALTERNATIVE}"
        for folder, there, need in disks(facts)
        if there < sum(need.values())
    ]
    if facts.memory < MEMORY:
        found.append(
            f"{facts.memory:.1f} GB of memory, {MEMORY:.0f} GB are needed; use a larger machine, {ALTERNATIVE}"
        )
    if facts.packages_missing and not facts.apt:
        names = " ".join(facts.packages_missing)
        found.append(f"missing, and there is no apt-get to install them: {names}; install them, {ALTERNATIVE}")
    if facts.address_taken:
        found.append(
            f"the host has an address of the node's network already ({facts.address_taken}); remove it, {ALTERNATIVE}"
        )
    if facts.other_checkout:
        found.append(
            f"the local node of another checkout runs on this machine; stop it first: "
            f"cd {facts.other_checkout} && .venv/bin/trainyard local down, {ALTERNATIVE}"
        )
    return found + toolchain_problems(facts)
