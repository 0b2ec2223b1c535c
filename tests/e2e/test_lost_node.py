"""A machine that is off while its Node object stays: what status says, and that its advice frees the Job.

The Node is one without a machine, and no cloud controller is here. The controllers are the cluster's own.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from rich.console import Console

from cli.cluster import OUT_OF_SERVICE
from cli.status import read, screen
from cli.target import Target
from workloads.training_job import UNREACHABLE_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def wait(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(1)
    return found


@pytest.fixture
def name() -> str:
    """Of the Node, the namespace and the Job."""
    return f"lost-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def api(node: Path, name: str) -> Iterator[Any]:
    """The API; the Job's pod runs, by its status, on a Node whose kubelet has never been there."""
    core: Any = client.CoreV1Api(config.new_client_from_config(config_file=str(node), context="trainyard-local"))
    batch: Any = client.BatchV1Api(core.api_client)
    core.create_namespace({"metadata": {"name": name}})
    core.create_node({"metadata": {"name": name}})
    tolerations = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        for taint in ("unreachable", "not-ready")
    ]
    pod = {
        "restartPolicy": "Never",
        "nodeName": name,
        "tolerations": tolerations,
        "containers": [{"name": "train", "image": "none"}],
    }
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    spec = {
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        "backoffLimitPerIndex": 5,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": [ignored]},
        "template": {"spec": pod},
    }
    batch.create_namespaced_job(name, {"metadata": {"name": name}, "spec": spec})
    yield core
    if name in {each.metadata.name for each in core.list_node().items}:
        core.delete_node(name)
    batch.delete_namespaced_job(name, name, propagation_policy="Foreground")
    wait(lambda: not batch.list_namespaced_job(name).items, 120, "the Job is gone")
    core.delete_namespace(name)


def pods(api: Any, name: str) -> dict[str, Any]:
    return {pod.metadata.uid: pod for pod in api.list_namespaced_pod(name).items}


def lost(api: Any, node: Path, name: str) -> tuple[str, str]:
    """The pod that is not replaced, once its node has been found silent; and what status shows."""
    (uid, pod), *_ = wait(
        lambda: [each for each in pods(api, name).items() if not each[1].metadata.deletion_timestamp], 60, "a pod"
    )
    body = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    api.patch_namespaced_pod_status(pod.metadata.name, name, body)
    wait(lambda: pods(api, name)[uid].metadata.deletion_timestamp, 150, "the taint manager deletes the pod")
    time.sleep(30)
    assert list(pods(api, name)) == [uid], "the Job waits for the pod's end"
    console, target = Console(width=400, record=True), Target("trainyard-local", name, name, None, {})
    console.print(screen(read(target, str(node)), target, datetime.now(UTC)))
    return uid, console.export_text()


@pytest.mark.parametrize("advice", ["the taint", "the Node's deletion"])
def test_status_names_a_node_that_is_off_and_its_advice_frees_the_job(
    api: Any, node: Path, name: str, advice: str
) -> None:
    assert UNREACHABLE_SECONDS < 60, "the pods of trainings are deleted as soon"
    uid, told = lost(api, node, name)
    assert f"node {name} has not answered for " in told
    assert "its node does not answer" in told
    if advice == "the taint":
        assert f"kubectl taint nodes {name} {OUT_OF_SERVICE}" in told
        key, _, rest = OUT_OF_SERVICE.partition("=")
        value, _, effect = rest.partition(":")
        taints = [taint.to_dict() for taint in api.read_node(name).spec.taints or []]
        kept = [{"key": each["key"], "effect": each["effect"]} for each in taints]
        api.patch_node(name, {"spec": {"taints": [*kept, {"key": key, "value": value, "effect": effect}]}})
    else:
        assert f"kubectl delete node {name}" in told
        api.delete_node(name)
    wait(
        lambda: uid not in pods(api, name) or pods(api, name)[uid].status.phase == "Failed",
        120,
        "the pod counts as failed",
    )
    wait(lambda: pods(api, name).keys() - {uid}, 60, "the Job makes the next pod")
    if advice == "the taint":
        api.patch_node(name, {"spec": {"taints": kept}})  # pyrefly: ignore[unbound-name]
