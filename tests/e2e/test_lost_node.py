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
from cli.status import screen
from cli.target import Target
from cli.training_status import read
from faults.fault import until
from workloads.training_job import UNREACHABLE_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def names() -> dict[str, str]:
    """What status advises, and the name of the Node, the namespace and the Job whose user follows it."""
    return {advice: f"lost-{advice}-{uuid.uuid4().hex[:8]}" for advice in ("taint", "delete")}


@pytest.fixture
def api(control_plane: Path, names: dict[str, str]) -> Iterator[Any]:
    """The API; each Job's pod runs, by its status, on a Node whose kubelet has never been there."""
    core: Any = client.CoreV1Api(
        config.new_client_from_config(config_file=str(control_plane), context="trainyard-local")
    )
    batch: Any = client.BatchV1Api(core.api_client)
    tolerations = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
        for taint in ("unreachable", "not-ready")
    ]
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    for name in names.values():
        core.create_namespace({"metadata": {"name": name}})
        # Each in a zone of its own: where most nodes of one are silent, the controller deletes no pods.
        core.create_node({"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": name}}})
        pod = {
            "restartPolicy": "Never",
            "nodeName": name,
            "tolerations": tolerations,
            "containers": [{"name": "train", "image": "none"}],
        }
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
    for name in {each.metadata.name for each in core.list_node().items} & set(names.values()):
        core.delete_node(name)
    for name in names.values():
        batch.delete_namespaced_job(name, name, propagation_policy="Foreground")
    until(
        lambda: not any(batch.list_namespaced_job(name).items for name in names.values()),
        120,
        "the Jobs are gone",
        pause=1,
    )
    for name in names.values():
        core.delete_namespace(name)


def pods(api: Any, name: str) -> dict[str, Any]:
    return {pod.metadata.uid: pod for pod in api.list_namespaced_pod(name).items}


def first_pod(api: Any, name: str) -> str:
    """The uid of the Job's pod, which says that it runs."""
    (uid, pod), *_ = until(lambda: list(pods(api, name).items()), 60, "a pod")
    body = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    api.patch_namespaced_pod_status(pod.metadata.name, name, body)
    return uid


def shown(kubeconfig: Path, name: str) -> str:
    """What `trainyard status` prints."""
    console, target = Console(width=400, record=True), Target("trainyard-local", name, name, None, {})
    console.print(screen(read(target, str(kubeconfig)), target, datetime.now(UTC)))
    return console.export_text()


def test_status_names_a_node_that_is_off_and_its_advice_frees_the_job(
    api: Any, control_plane: Path, names: dict[str, str]
) -> None:
    assert UNREACHABLE_SECONDS < 60, "the pods of trainings are deleted as soon"
    uids = {name: first_pod(api, name) for name in names.values()}

    def all_are(found: Callable[[str, str], Any]) -> Callable[[], bool]:
        return lambda: all(found(name, uid) for name, uid in uids.items())

    deleted = all_are(lambda name, uid: pods(api, name)[uid].metadata.deletion_timestamp)
    until(deleted, 150, "the taint manager deletes the pods", pause=1)
    time.sleep(30)
    for name, uid in uids.items():
        assert list(pods(api, name)) == [uid], "the Job waits for the pod's end"
        told = shown(control_plane, name)
        assert f"node {name} has not answered for " in told
        assert "its node does not answer" in told
        assert f"kubectl taint nodes {name} {OUT_OF_SERVICE}" in told
        assert f"kubectl delete node {name}" in told
    key, _, rest = OUT_OF_SERVICE.partition("=")
    value, _, effect = rest.partition(":")
    kept = [{"key": each.key, "effect": each.effect} for each in api.read_node(names["taint"]).spec.taints or []]
    body = {"spec": {"taints": [*kept, {"key": key, "value": value, "effect": effect}]}}
    api.patch_node(names["taint"], body)
    api.delete_node(names["delete"])
    failed = all_are(lambda name, uid: uid not in pods(api, name) or pods(api, name)[uid].status.phase == "Failed")
    until(failed, 120, "the pods count as failed", pause=1)
    until(all_are(lambda name, uid: pods(api, name).keys() - {uid}), 60, "each Job makes its next pod")
