"""How the node check's result leaves a cluster, on a real API server.

The account and role that the stack declares may write the one ConfigMap that the stack reads, and change no other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from infra.stackfiles import ROOT
from review.recording import Recording
from tests.fixtures_cluster import Kubectl, namespace
from tests.infra.recorded import recorded

pytestmark = pytest.mark.cluster

# Writes the result twice (a second run of the Job), then tries what it must not do.
PROGRAM = """
from trainer import gpu_check
gpu_check.publish("NAME", {"correct": True, "run": 1})
gpu_check.publish("NAME", {"correct": True, "run": 2})
try:
    gpu_check.publish("another", {"changed": True})
except RuntimeError as error:
    print("refused:", error)
"""


@pytest.fixture(scope="module")
def stack() -> Recording:
    return recorded("gcp-c3", check={"enabled": True})


@pytest.fixture
def kubectl(node_environment: dict[str, str]) -> Iterator[Kubectl]:
    with namespace(node_environment) as call:
        yield call


def declared(stack: Recording, kind: str) -> dict[str, Any]:
    """An object of the stack without its namespace, so that kubectl's own applies."""
    inputs = stack.one(kind, "gpu-check").inputs
    metadata = {key: value for key, value in inputs["metadata"].items() if key != "namespace"}
    return {**inputs, "metadata": metadata}


def test_the_result_is_written_where_the_stack_reads_it(kubectl: Kubectl, stack: Recording, base_image: str) -> None:
    name = stack.one("Role", "gpu-check").inputs["rules"][1]["resourceNames"][0]
    for kind in ("ServiceAccount", "Role"):
        kubectl("apply", "-f", "-", document=declared(stack, kind))
    binding = declared(stack, "RoleBinding")
    for subject in binding["subjects"]:
        subject.pop("namespace")
    namespace = kubectl("get", "serviceaccount", "gpu-check", "--output", "jsonpath={.metadata.namespace}")
    binding["subjects"][0]["namespace"] = namespace
    kubectl("apply", "-f", "-", document=binding)
    container = {
        "name": "check",
        "image": base_image,
        "command": ["python3", "-c", PROGRAM.replace("NAME", name)],
        "env": [{"name": "PYTHONPATH", "value": "/source"}],
        "volumeMounts": [{"name": "source", "mountPath": "/source/trainer", "readOnly": True}],
    }
    spec = {
        "serviceAccountName": "gpu-check",
        "automountServiceAccountToken": True,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "source", "hostPath": {"path": str(ROOT / "trainer")}}],
    }
    kubectl(
        "apply", "-f", "-", document={"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "check"}, "spec": spec}
    )
    deadline = time.monotonic() + 200
    while (phase := kubectl("get", "pod", "check", "--output", "jsonpath={.status.phase}")) in ("Pending", "Running"):
        assert time.monotonic() < deadline, kubectl("describe", "pod", "check")
        time.sleep(0.5)
    log = kubectl("logs", "check")
    assert phase == "Succeeded", log
    assert "refused: ConfigMap" in log
    found = json.loads(kubectl("get", "configmap", name, "--output", "json"))
    assert json.loads(found["data"]["result"]) == {"correct": True, "run": 2}
