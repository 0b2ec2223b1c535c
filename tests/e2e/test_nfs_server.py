"""The NFS server's image, built from its own Dockerfile, as the pod that the GCP stacks declare, on a real kubelet.

The kernel here has no NFS client, so libnfs, a client in user space, reads and writes. Only the disk differs
from the stack's: a directory of the node instead of a persistent disk.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from infra.buildah import BuildahProvider
from infra.image import NFS_SERVER, ROOT, content_hash, stage
from local import credentials
from local.network import NODE_ADDRESS, POD_SUBNET, REGISTRY
from tests.fixtures_cluster import Kubectl, namespace
from tests.infra.recorded import recorded
from trainer.contract import TRAINER_ID
from workloads.nfs import configuration

pytestmark = pytest.mark.cluster

# Writes 128 kB in pieces (libnfs 4.0 has a small buffer), flushes, renames, and reads it back.
CLIENT = """
import ctypes, os
lib = ctypes.CDLL("libnfs.so.13")
lib.nfs_init_context.restype = ctypes.c_void_p
lib.nfs_get_error.restype = ctypes.c_char_p
nfs = ctypes.c_void_p(lib.nfs_init_context())
def call(name, *arguments):
    result = getattr(lib, name)(nfs, *arguments)
    assert result >= 0, (name, result, lib.nfs_get_error(nfs))
    return result
lib.nfs_set_version(nfs, 4)
call("nfs_mount", b"127.0.0.1", b"/data")
file = ctypes.c_void_p()
call("nfs_open2", b"/half", os.O_CREAT | os.O_RDWR, 0o644, ctypes.byref(file))
data = os.urandom(128 * 1024)
for start in range(0, len(data), 2048):
    assert call("nfs_write", file, ctypes.c_uint64(2048), data[start : start + 2048]) == 2048
call("nfs_fsync", file)
call("nfs_close", file)
call("nfs_rename", b"/half", b"/whole")
with open("/disk/data/whole", "rb") as stored:
    assert stored.read() == data
owner = os.stat("/disk/data/whole")
print("stored", owner.st_uid, owner.st_gid)
"""


@pytest.fixture(scope="module")
def image(node_environment: dict[str, str], base_image: str) -> str:
    """The image in the node's registry, by digest."""
    arguments = {"BASE_IMAGE": base_image}
    version = content_hash(NFS_SERVER, arguments)
    properties = {
        "target": f"{REGISTRY}/{NFS_SERVER.repository}:{version}",
        "context": stage(NFS_SERVER, version),
        "compression": "zstd",
        "dockerfile": NFS_SERVER.dockerfile,
        "buildArgs": arguments,
        "insecure": True,
        "authfile": str(credentials.file()),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in node_environment.items():
            patch.setenv(name, value)
        patch.chdir(ROOT)
        made = BuildahProvider().create(properties)
    # The provider hides tracebacks in its process, which was this one: undo that.
    sys.__dict__.pop("tracebacklimit", None)
    assert made.outs
    return made.outs["reference"]


@pytest.fixture
def kubectl(node_environment: dict[str, str]) -> Iterator[Kubectl]:
    """With the labels that the stack gives the server's namespace."""
    labels = recorded("gcp-a100").one("Namespace", "storage").inputs["metadata"]["labels"]
    with namespace(node_environment, **labels) as call:
        yield call


def pod(image: str, settings: str) -> dict[str, Any]:
    """The server's pod as it is declared, with a directory for a disk."""
    spec = recorded("gcp-a100").one("Deployment", "nfs-server").inputs["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    # The node of the tests is small.
    container = {**container, "image": image, "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}}
    replaced = {"disk": {"emptyDir": {}}, "settings": {"configMap": {"name": settings}}}
    volumes = [
        {"name": item["name"], **replaced[item["name"]]} if item["name"] in replaced else item
        for item in spec["volumes"]
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "server"},
        # The stack declares the priority class, and there is no stack here.
        "spec": {**spec, "containers": [container], "volumes": volumes, "priorityClassName": ""},
    }


def start(kubectl: Kubectl, image: str, text: str) -> None:
    data = {"ganesha.conf": text}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": data}
    kubectl("apply", "-f", "-", document=settings)
    kubectl("apply", "-f", "-", document=pod(image, "settings"))


def test_what_a_client_writes_is_on_the_disk_as_the_trainers(kubectl: Kubectl, image: str) -> None:
    start(kubectl, image, configuration(("10.0.0.0/20",)))
    kubectl("wait", "--for=condition=Ready", "pod/server", "--timeout=200s")
    assert kubectl("exec", "server", "--", "python3", "-c", CLIENT).strip() == f"stored {TRAINER_ID} {TRAINER_ID}"


def test_a_server_without_an_export_is_never_ready(kubectl: Kubectl, image: str) -> None:
    """ganesha keeps listening when it cannot serve its export."""
    start(kubectl, image, configuration(("10.0.0.0/20",)).replace("/disk/data", "/disk/absent"))
    deadline = time.monotonic() + 200
    while "Startup probe failed" not in (events := kubectl("get", "events", "--output", "wide")):
        assert time.monotonic() < deadline, events
        time.sleep(1)
    assert "true" not in kubectl("get", "pod", "server", "--output", "jsonpath={.status.containerStatuses[*].ready}")


#: The networks of the GCP stacks, and what this node has in their place; it has one /24 of pods.
HERE = {"10.0.0.0/20": f"{NODE_ADDRESS}/32", "10.16.0.0/14": POD_SUBNET, "10.1[6-9].*.1": "10.24[4].*.1"}


def client(name: str, image: str, *, of_node: bool) -> dict[str, Any]:
    """A pod that does nothing, without a capability; `of_node`: on its node's network, as a kubelet's mount."""
    container: dict[str, Any] = {"name": "main", "image": image, "command": ["sleep", "1000"]}
    container["securityContext"] = {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}}
    spec = {"containers": [container], "hostNetwork": of_node, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def test_a_node_reads_and_writes_and_a_pod_does_neither(kubectl: Kubectl, image: str) -> None:
    """By the configuration of the GCP stacks. The node connects from the first address of its pods' range."""
    text = recorded("gcp-a100").one("ConfigMap", "nfs-server").inputs["data"]["ganesha.conf"]
    for there, here in HERE.items():
        text = text.replace(there, here)
    start(kubectl, image, text)
    for name in ("node", "pod"):
        kubectl("apply", "-f", "-", document=client(name, image, of_node=name == "node"))
    kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=200s")
    server = kubectl("get", "pod", "server", "--output", "jsonpath={.status.podIP}")

    def reached(who: str) -> list[bool]:
        """Whether it lists the export, and makes a file there."""
        address = f"nfs://{server}/data/"
        listed = kubectl("exec", who, "--", "nfs-ls", f"{address}?version=4", check=False)
        copied = kubectl("exec", who, "--", "nfs-cp", "/etc/hosts", f"{address}{who}?version=4", check=False)
        files = kubectl("exec", "server", "--", "ls", "/disk/data")
        return ["Failed" not in listed, who in files.split(), "copied" in copied]

    assert reached("node") == [True, True, True]
    assert reached("pod") == [False, False, False]
