"""The control group above all pods, with cgroups version 1 or 2."""

import os
from pathlib import Path

ROOT = "/trainyard"
MOUNT = Path("/sys/fs/cgroup")
# The controllers by which the kubelet measures and limits pods, with version 1.
NEEDED = ("cpu", "cpuacct", "cpuset", "memory")
# The same with version 2. Where the machine has hugetlb, the kubelet requires it in its group as well (Kubernetes 1.36,
# cgroup_v2_manager_linux.go), and systemd delegates it to no group.
UNIFIED = ("cpu", "cpuset", "memory", "pids")


def is_unified(mount: Path = MOUNT) -> bool:
    """Whether this is version 2: one tree with all controllers."""
    return (mount / "cgroup.controllers").exists()


def missing(mount: Path = MOUNT) -> list[str]:
    """The controllers that the kubelet needs and this machine does not have."""
    if is_unified(mount):
        have = (mount / "cgroup.controllers").read_text().split()
        return [name for name in UNIFIED if name not in have]
    return [name for name in NEEDED if not (mount / name / "cgroup.procs").exists()]


def hierarchies(mount: Path = MOUNT) -> list[Path]:
    """Return the root of every tree: one with version 2, one for each controller with version 1."""
    if is_unified(mount):
        return [mount]
    # Symbolic links (cpu -> cpu,cpuacct) would list a tree twice.
    return sorted(entry for entry in mount.iterdir() if (entry / "cgroup.procs").exists() and not entry.is_symlink())


def ensure(mount: Path = MOUNT) -> None:
    """Make ROOT in every tree: the kubelet refuses to start without it."""
    unified = is_unified(mount)
    for tree in hierarchies(mount):
        if tree.name == "unified":
            continue  # version 2 beside version 1: the kubelet does not need it, and runc makes its own groups there
        group = tree / ROOT.lstrip("/")
        group.mkdir(exist_ok=True)
        if unified:
            _hand_on(tree, group)
            continue
        for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group, which then admits no process
            if (group / name).exists() and not (group / name).read_text().strip():
                (group / name).write_text((tree / name).read_text())


def _hand_on(*groups: Path) -> None:
    """Enable the controllers in the children of each group. systemd takes from the root what no child passes on."""
    have = (groups[0] / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{controller}" for controller in (*UNIFIED, "hugetlb") if controller in have)
    for group in groups:
        (group / "cgroup.subtree_control").write_text(wanted)


def processes() -> list[int]:
    """All processes in a pod's control group."""
    found: set[int] = set()
    for tree in hierarchies():
        for group in (tree / ROOT.lstrip("/")).rglob("cgroup.procs"):
            try:
                found.update(int(line) for line in group.read_text().split())
            except OSError:
                continue  # ended meanwhile
    return sorted(found)


def remove() -> list[Path]:
    """Remove the empty groups, innermost first; return those that were not empty."""
    left = []
    for tree in hierarchies():
        for group, *_ in os.walk(tree / ROOT.lstrip("/"), topdown=False):
            try:
                os.rmdir(group)
            except OSError:
                left.append(Path(group))
    return left
