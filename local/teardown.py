"""Stops the node and leaves no process, mount, control group or network device of it.

The registry, containerd's images, etcd's data and the shared storage stay, so that the next start is fast. This also
cleans up after a node that was killed: each step removes whatever it finds.
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from infra.state import files, lives, resources
from local import cgroups, kubeconfig, network, node, paths, processes, toolchain
from local.shell import LocalError

# Stop order: first what would restart pods, last what the others write to.
ORDER = (
    "kubelet",
    "kube-scheduler",
    "kube-controller-manager",
    "kube-proxy",
    "kube-router",
    "coredns",
    "containerd",
    "kube-apiserver",
    "etcd",
    "registry",
)
# Seconds between SIGTERM and SIGKILL. A trainer saves in a few. A container's process 1 without a handler ignores
# SIGTERM.
POD_SECONDS = 10.0
# libcni and the kubelet always write to these directories, which lie outside ours.
CNI_RESULTS = Path("/var/lib/cni/results")
LOG_LINKS = Path("/var/log/containers")
MOUNTS = Path("/proc/self/mountinfo")


def stop_node() -> None:
    """Stop everything, in order. Raises LocalError if something could not be removed."""
    # Remove the context first: a client then fails at once, instead of waiting for an address that does not answer.
    kubeconfig.remove_user()
    processes.stop("kubelet")
    stop_pods()
    for name in ORDER:
        processes.stop(name)
    ours = network.is_ours()
    left = shims()
    if ours:
        left += [*cgroups.processes(), *(processes.in_namespace(network.NAMESPACE) if network.exists() else ())]
    processes.end_all(set(left), 2.0)
    unmount_all()
    remove_log_links()
    remaining = remove_cgroups() if ours else []
    if ours:
        network.remove()
    shutil.rmtree(paths.RUN, ignore_errors=True)
    if remaining:
        raise LocalError(f"control groups are still in use: {', '.join(map(str, remaining[:3]))}; run down again")


def ctr(*arguments: str) -> str:
    command = ["ctr", "--address", str(paths.CONTAINERD_SOCKET), "--namespace", "k8s.io", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def stop_pods() -> None:
    """Send SIGTERM to every container, SIGKILL after POD_SECONDS, then delete the containers' records."""
    if not processes.is_alive(processes.read_record("containerd")) or node.containerd_health():
        return
    containers = ctr("containers", "ls", "-q").split()
    sandboxes = set(ctr("containers", "ls", "-q", 'labels."io.cri-containerd.kind"==sandbox').split())
    running = running_tasks()
    for name in sorted(running - sandboxes):
        ctr("tasks", "kill", "--signal", "SIGTERM", name)
    deadline = time.monotonic() + POD_SECONDS
    while running_tasks() - sandboxes and time.monotonic() < deadline:
        time.sleep(0.1)
    for name in [*(n for n in containers if n not in sandboxes), *sandboxes]:
        ctr("tasks", "rm", "--force", name)
        ctr("containers", "rm", name)
    for name in sandboxes:
        for result in CNI_RESULTS.glob(f"*-{name}-*"):
            result.unlink(missing_ok=True)


def running_tasks() -> set[str]:
    lines = (line.split() for line in ctr("tasks", "ls").splitlines()[1:])
    return {fields[0] for fields in lines if len(fields) >= 3 and fields[2] == "RUNNING"}


def shims() -> list[int]:
    """Find containerd's shims, which outlive it, by our socket in their command line."""
    wanted = str(paths.CONTAINERD_SOCKET).encode()

    def is_shim(entry: Path) -> bool:
        arguments = (entry / "cmdline").read_bytes().split(b"\0")
        return b"shim" in arguments[0] and wanted in arguments

    return [pid for pid in processes.find(is_shim) if pid != os.getpid()]


def mounts() -> list[str]:
    """List mount points below our directories, innermost first, without a disk that the user mounted as storage."""
    tops = (f"{paths.RUN}/", f"{paths.STATE}/")
    found = [point for point in mount_points() if point.startswith(tops) and not is_storage(point)]
    return sorted(found, key=lambda point: -point.count("/"))


def storage_mounts() -> list[str]:
    """List the mount points of disks that the user mounted on the shared storage."""
    return [point for point in mount_points() if is_storage(point)]


def is_storage(point: str) -> bool:
    return f"{point}/".startswith(f"{paths.STORAGE}/")


def mount_points() -> list[str]:
    """List all mount points of this machine. The kernel writes spaces and other special characters in octal."""
    points = [line.split()[4] for line in MOUNTS.read_bytes().splitlines()]
    return [os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), point)) for point in points]


def unmount_all() -> None:
    # Several rounds, because mounts may be stacked.
    for _ in range(5):
        for point in mounts():
            if subprocess.run(["umount", point], capture_output=True).returncode:
                subprocess.run(["umount", "--lazy", point], capture_output=True)
    if left := mounts():
        raise LocalError(f"cannot unmount {', '.join(left[:3])}; see who uses it: fuser -vm {left[0]}")


def remove_log_links() -> None:
    """Remove the kubelet's links to our containers' logs."""
    for link in LOG_LINKS.glob("*.log"):
        if link.is_symlink() and os.readlink(link).startswith(f"{paths.POD_LOGS}/"):
            link.unlink(missing_ok=True)


def remove_cgroups() -> list[Path]:
    """Remove the control groups; return those left. The kernel frees a group a moment after its processes end."""
    left: list[Path] = []
    for _ in range(50):
        left = cgroups.remove()
        if not left:
            break
        time.sleep(0.1)
    return left


def living_stacks() -> list[str]:
    """List the stacks in .local's state that have resources outside the local node. Raises LocalError."""
    try:
        return [file.stem for file in files(paths.PULUMI_STATE) if lives(resources(file)) == "elsewhere"]
    except ValueError as error:
        raise LocalError(f"{error}, or delete it if the stack has nothing outside this node") from None


def remove_state() -> None:
    """Remove .local (images, the cluster's objects, Pulumi's state, the trained models) and Go's caches."""
    toolchain.remove_go_caches()
    shutil.rmtree(paths.STATE, ignore_errors=True)
    if paths.STATE.exists():
        shutil.rmtree(paths.STATE)
