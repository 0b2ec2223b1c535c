"""What the trainer's pods rely on, on the real node, and no training shows: refusals, limits, early pulls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from local import node
from tests.fixtures_cluster import Kubectl, namespace

pytestmark = pytest.mark.cluster

SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def kubectl(node_environment: dict[str, str]) -> Iterator[Kubectl]:
    """With restricted Pod Security, as the stack's namespace."""
    with namespace(node_environment, **{"pod-security.kubernetes.io/enforce": "restricted"}) as call:
        yield call


def pod_spec(image: str, command: list[str], **more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": command, "securityContext": SECURITY, **more}
    return {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}


def pod(name: str, spec: dict[str, Any], **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def test_a_restricted_namespace_refuses_a_privileged_pod(kubectl: Kubectl, base_image: str) -> None:
    spec = pod_spec(base_image, ["true"])
    spec["containers"][0]["securityContext"] = {"privileged": True}
    said = kubectl("apply", "-f", "-", document=pod("privileged", spec), check=False)
    assert 'violates PodSecurity "restricted:latest"' in said
    assert "privileged" not in kubectl("get", "pods", "-o", "name")


def test_an_image_is_there_before_a_pod_asks_for_it(kubectl: Kubectl, base_image: str) -> None:
    node.pull(base_image)
    spec = pod_spec(base_image, ["python3", "--version"], imagePullPolicy="Never")
    kubectl("apply", "-f", "-", document=pod("there", spec))
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/there", "--timeout=200s")
    with pytest.raises(OSError, match="not found"):
        node.pull(f"{base_image.partition('@')[0]}@sha256:{'0' * 64}")


def test_a_pod_may_not_use_more_memory_than_its_limit(kubectl: Kubectl, base_image: str) -> None:
    """The control groups work: the kernel kills the greedy pod and spares the node."""
    code = "print(len(bytearray(300_000_000)))"
    spec = pod_spec(base_image, ["python3", "-c", code], resources={"limits": {"memory": "64Mi", "cpu": "500m"}})
    kubectl("apply", "-f", "-", document=pod("greedy", spec))
    kubectl("wait", "--for=jsonpath={.status.phase}=Failed", "pod/greedy", "--timeout=200s")
    path = "jsonpath={.status.containerStatuses[0].state.terminated.reason}"
    assert kubectl("get", "pod", "greedy", "-o", path) == "OOMKilled"
