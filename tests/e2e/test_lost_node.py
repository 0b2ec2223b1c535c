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

NAME = f"lost-{uuid.uuid4().hex[:8]}"


def wait(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(1)
    return found


@pytest.fixture(scope="module")
def api(node: Path) -> Iterator[Any]:
    """The API; the Job's pod runs, by its status, on a Node whose kubelet has never been there."""
    core: Any = client.CoreV1Api(config.new_client_from_config(config_file=str(node), context="trainyard-local"))
    batch: Any = client.BatchV1Api(core.api_client)
    core.create_namespace({"metadata": {"name": NAME}})
    core.create_node({"metadata": {"name": NAME}})
    tolerations = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        for taint in ("unreachable", "not-ready")
    ]
    pod = {
        "restartPolicy": "Never",
        "nodeName": NAME,
        "tolerations": tolerations,
        "containers": [{"name": "train", "image": "none"}],
    }
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    spec = {
        **{"completionMode": "Indexed", "completions": 1, "parallelism": 1, "backoffLimitPerIndex": 5},
        **{"podReplacementPolicy": "Failed", "podFailurePolicy": {"rules": [ignored]}, "template": {"spec": pod}},
    }
    batch.create_namespaced_job(NAME, {"metadata": {"name": NAME}, "spec": spec})
    yield core
    core.delete_node(NAME) if NAME in {each.metadata.name for each in core.list_node().items} else None
    batch.delete_namespaced_job(NAME, NAME, propagation_policy="Foreground")
    wait(lambda: not batch.list_namespaced_job(NAME).items, 120, "the Job is gone")
    core.delete_namespace(NAME)


def pods(api: Any) -> dict[str, Any]:
    return {pod.metadata.uid: pod for pod in api.list_namespaced_pod(NAME).items}


def lost(api: Any, node: Path) -> tuple[str, str]:
    """The pod that is not replaced, once its node has been found silent; and what status shows."""
    (uid, pod), *_ = wait(
        lambda: [each for each in pods(api).items() if not each[1].metadata.deletion_timestamp], 60, "a pod"
    )
    body = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    api.patch_namespaced_pod_status(pod.metadata.name, NAME, body)
    wait(lambda: pods(api)[uid].metadata.deletion_timestamp, 150, "the taint manager deletes the pod")
    time.sleep(30)
    assert list(pods(api)) == [uid], "the Job waits for the pod's end"
    console = Console(width=400, record=True)
    console.print(
        screen(
            read(Target("trainyard-local", NAME, NAME, None, {}), str(node)),
            Target("c", NAME, NAME, None, {}),
            datetime.now(UTC),
        )
    )
    return uid, console.export_text()


@pytest.mark.parametrize("advice", ["the taint", "the Node's deletion"])
def test_status_names_a_node_that_is_off_and_its_advice_frees_the_job(api: Any, node: Path, advice: str) -> None:
    assert UNREACHABLE_SECONDS < 60, "the pods of trainings are deleted as soon"
    uid, told = lost(api, node)
    assert f"node {NAME} has not answered for " in told
    assert "its node does not answer" in told
    if advice == "the taint":
        assert f"kubectl taint nodes {NAME} {OUT_OF_SERVICE}" in told
        key, _, rest = OUT_OF_SERVICE.partition("=")
        value, _, effect = rest.partition(":")
        taints = [taint.to_dict() for taint in api.read_node(NAME).spec.taints or []]
        kept = [{"key": each["key"], "effect": each["effect"]} for each in taints]
        api.patch_node(NAME, {"spec": {"taints": [*kept, {"key": key, "value": value, "effect": effect}]}})
    else:
        assert f"kubectl delete node {NAME}" in told
        api.delete_node(NAME)
    wait(lambda: uid not in pods(api) or pods(api)[uid].status.phase == "Failed", 120, "the pod counts as failed")
    wait(lambda: pods(api).keys() - {uid}, 60, "the Job makes the next pod")
    if advice == "the taint":
        api.patch_node(NAME, {"spec": {"taints": kept}})
