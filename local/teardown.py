"""Stops the node and leaves nothing of it: no process, no mount, no control group, no device.

What the next start is fast by stays: the registry, containerd's images, etcd's data and the shared storage. It does
not matter what is left of a node that was killed: each step takes what it finds.
"""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from local import cgroups, kubeconfig, network, node, paths, processes, toolchain
from local.kubeconfig import CONTEXT
from local.shell import LocalError

# Those that would start pods anew come first, those that others write to come last.
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
# Between SIGTERM and SIGKILL. A trainer saves within seconds; a program without a handler, as process 1, never ends.
POD_SECONDS = 10.0
# Places outside our directories that libcni and the kubelet write to whatever they are told.
CNI_RESULTS = Path("/var/lib/cni/results")
LOG_LINKS = Path("/var/log/containers")
MOUNTS = Path("/proc/self/mountinfo")


def stop_node() -> None:
    """Everything, in order. Raises LocalError when something could not be removed."""
    # First the context: who comes now is told that there is none, and does not wait for an address without an answer.
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
    """SIGTERM to every container, SIGKILL after the grace period, then away with the containers' own records."""
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
    """containerd's shims: they outlive it, and their command line names our socket."""
    wanted = str(paths.CONTAINERD_SOCKET).encode()

    def is_shim(entry: Path) -> bool:
        arguments = (entry / "cmdline").read_bytes().split(b"\0")
        return b"shim" in arguments[0] and wanted in arguments

    return [pid for pid in processes.find(is_shim) if pid != os.getpid()]


def mounts() -> list[str]:
    """Mount points below our directories, inmost first. Not the shared storage's: a user may have mounted that."""
    tops = (f"{paths.RUN}/", f"{paths.STATE}/")
    found = [point for point in mount_points() if point.startswith(tops) and not is_storage(point)]
    return sorted(found, key=lambda point: -point.count("/"))


def storage_mounts() -> list[str]:
    """Disks that the user gave the shared storage."""
    return [point for point in mount_points() if is_storage(point)]


def is_storage(point: str) -> bool:
    return f"{point}/".startswith(f"{paths.STORAGE}/")


def mount_points() -> list[str]:
    """All of this machine. The kernel writes a space and its like in octal."""
    points = [line.split()[4] for line in MOUNTS.read_bytes().splitlines()]
    return [os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), point)) for point in points]


def unmount_all() -> None:
    # Several rounds: mounts may lie on one another.
    for _ in range(5):
        points = mounts()
        if not points:
            return
        for point in points:
            if subprocess.run(["umount", point], capture_output=True).returncode:
                subprocess.run(["umount", "--lazy", point], capture_output=True)
    raise LocalError(f"cannot unmount {', '.join(mounts()[:3])}; see who uses it: fuser -vm {mounts()[0]}")


def remove_log_links() -> None:
    """The kubelet's links to the logs of containers, as far as they lead to ours."""
    for link in LOG_LINKS.glob("*.log"):
        if link.is_symlink() and os.readlink(link).startswith(f"{paths.POD_LOGS}/"):
            link.unlink(missing_ok=True)


def remove_cgroups() -> list[Path]:
    """The kernel takes a moment to let go of processes that just ended."""
    left: list[Path] = []
    for _ in range(50):
        left = cgroups.remove()
        if not left:
            break
        time.sleep(0.1)
    return left


def living_stacks() -> list[str]:
    """Stacks with resources elsewhere than on the node, and with their state in .local alone."""
    found = []
    for path in (paths.PULUMI_STATE / ".pulumi/stacks").glob("*/*.json"):
        latest = json.loads(path.read_text())["checkpoint"]["latest"] or {}
        resources = latest.get("resources") or []
        # infra/existing.py gives the provider its context; a cluster that a stack makes has none before.
        on_node = any((each.get("inputs") or {}).get("context") == CONTEXT for each in resources)
        if not on_node and any(not each["type"].startswith("pulumi:") for each in resources):
            found.append(path.stem)
    return sorted(found)


def remove_state() -> None:
    """All of .local: images, the cluster's objects, Pulumi's state, the trained models. And what Go keeps of builds."""
    toolchain.remove_go_caches()
    shutil.rmtree(paths.STATE, ignore_errors=True)
    if paths.STATE.exists():
        shutil.rmtree(paths.STATE)
