"""The node is killed in parts and as a whole; `up` brings it back, `down` leaves nothing.

tests/local/test_processes.py has what a lost or foreign record of a process does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from faults.fault import until
from local import cgroups, images, network, paths, processes, teardown
from tests.fixtures_cluster import bring_up, local

# One of the tests compiles kube-router, unless an earlier run did.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500), pytest.mark.usefixtures("node_alone")]


def pids() -> dict[str, int]:
    """The process id of every daemon that runs."""
    records = {name: processes.read_record(name) for name in teardown.ORDER}
    return {name: record.pid for name, record in records.items() if record and processes.is_alive(record)}


def kill(*names: str) -> None:
    running = pids()
    for name in names:
        os.kill(running[name], signal.SIGKILL)
    until(lambda: not set(names) & pids().keys(), 20, f"the end of {names}")


@pytest.mark.parametrize("name", ["etcd", "base"])
def test_an_image_that_is_made_again_is_the_same(name: str) -> None:
    """The image's record is gone, as in a fresh checkout: a new build must equal what the registry has."""
    before = images.reference(name)
    (paths.IMAGES / f"{name}.json").unlink()
    bring_up()
    assert images.reference(name) == before


def assert_healthy() -> None:
    result = local("status")
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_second_up_changes_nothing_and_is_quick() -> None:
    before, began, used = pids(), time.monotonic(), processor_seconds()
    bring_up()
    assert processor_seconds() - used < 2
    # A busy machine takes longer.
    assert time.monotonic() - began < 10
    assert pids() == before


def processor_seconds() -> float:
    """Processor seconds of all child processes that were waited for."""
    spent = os.times()
    return spent.children_user + spent.children_system


@pytest.mark.parametrize("name", ["kube-router", "etcd"])
def test_up_heals_a_killed_daemon_and_leaves_the_others(name: str) -> None:
    if name == "kube-router":  # it runs only where it is asked for
        assert local("up", "--policies").returncode == 0
    before = pids()
    kill(name)
    assert local("status").returncode == 3
    bring_up()
    after = pids()
    assert after[name] != before[name]
    assert_healthy()
    # Kubernetes' other programs may exit while one that they depend on is away; these three may not.
    assert {n: after[n] for n in ("etcd", "registry", "kubelet") if n != name} == {
        n: before[n] for n in ("etcd", "registry", "kubelet") if n != name
    }


def test_up_heals_everything_killed_at_once() -> None:
    kill(*pids())
    assert pids() == {}
    bring_up()
    assert_healthy()


def test_up_heals_a_deleted_namespace() -> None:
    """What a reboot leaves where /run is a disk: records and directories, but no namespace and no process."""
    subprocess.run(["ip", "netns", "del", network.NAMESPACE], check=True)
    network.NETNS_FILE.touch()
    bring_up()
    assert_healthy()


def test_pods_live_on_when_containerd_and_the_kubelet_are_killed(kubectl_run: str) -> None:
    before = Path(f"/proc/{container_pid(kubectl_run)}/stat").read_text().split()[21]
    kill("containerd", "kubelet")
    bring_up()
    assert Path(f"/proc/{container_pid(kubectl_run)}/stat").read_text().split()[21] == before


def container_pid(pod: str) -> int:
    listed = teardown.ctr("containers", "ls", "-q", f'labels."io.kubernetes.pod.name"=={pod}').split()
    tasks = {line.split()[0]: int(line.split()[1]) for line in teardown.ctr("tasks", "ls").splitlines()[1:]}
    return max(tasks[name] for name in listed if name in tasks)  # not those of an earlier pod of this name


@pytest.fixture
def kubectl_run(node_environment: dict[str, str], base_image: str):
    """A running pod's name."""
    name = f"survivor-{uuid.uuid4().hex[:8]}"  # an interrupted run may have left its pod
    command = ["kubectl", "run", name, f"--image={base_image}", "--restart=Never", "--command", "--", "sleep", "600"]
    subprocess.run(command, check=True, env=node_environment, capture_output=True)
    waiting = ["kubectl", "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=200s"]
    subprocess.run(waiting, check=True, env=node_environment, capture_output=True)
    yield name
    delete = ["kubectl", "delete", "pod", name, "--now", "--timeout=200s"]
    subprocess.run(delete, check=True, env=node_environment, capture_output=True)


def test_down_leaves_nothing_and_the_next_up_is_quick(kubectl_run: str) -> None:
    inside = processes.in_namespace(network.NAMESPACE)
    assert inside
    container = container_pid(kubectl_run)
    result = local("down")
    assert result.returncode == 0, result.stderr
    assert [pid for pid in [*inside, container] if processes.start_time(pid)] == []
    assert teardown.shims() == []
    assert teardown.mounts() == []
    assert not network.exists()
    assert not network.has_device()
    assert not network.NETNS_FILE.exists()
    assert not paths.RUN.exists()
    assert not paths.KUBECONFIG.exists()
    assert [tree for tree in cgroups.hierarchies() if (tree / cgroups.ROOT.lstrip("/")).exists()] == []
    assert local("down").returncode == 0  # again, with nothing there
    began = time.monotonic()
    bring_up()
    assert time.monotonic() - began < 30
    assert_healthy()
