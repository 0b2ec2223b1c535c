"""When each kind counts as ready, on objects as the API server returns them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from local.plugin import awaiting, pods
from local.plugin.client import Client
from local.plugin.errors import PluginError
from local.plugin.readiness import readiness
from local.plugin.settings import Settings

CLIENT = Client(Settings({}, None, "default"), threading.Event())


def workload(kind: str, spec: dict[str, Any], status: dict[str, Any], api_version: str = "apps/v1") -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "x", "namespace": "demo", "generation": 2},
        "spec": spec,
        "status": {"observedGeneration": 2, **status},
    }


def ready(obj: dict[str, Any], annotations: dict[str, str] | None = None) -> bool:
    return readiness(CLIENT, {"metadata": {"annotations": annotations or {}}}, obj).ready


AVAILABLE = {"conditions": [{"type": "Available", "status": "True"}]}
ROLLED_OUT = {"replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3, **AVAILABLE}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (ROLLED_OUT, True),
        ({**ROLLED_OUT, "observedGeneration": 1}, False),
        ({**ROLLED_OUT, "updatedReplicas": 2}, False),
        ({**ROLLED_OUT, "replicas": 4}, False),  # an old pod is still there
        ({**ROLLED_OUT, "availableReplicas": 2}, False),
        ({**ROLLED_OUT, "conditions": []}, False),
    ],
)
def test_deployment(status: dict[str, Any], expected: bool) -> None:
    assert ready(workload("Deployment", {"replicas": 3}, status)) is expected


def test_a_deployment_of_none_is_ready() -> None:
    assert ready(workload("Deployment", {"replicas": 0}, AVAILABLE))


def test_progress_counts_pods() -> None:
    state = readiness(CLIENT, {}, workload("Deployment", {"replicas": 3}, {**ROLLED_OUT, "availableReplicas": 2}))
    assert state.waits_for == "3 of 3 pods ready"
    state = readiness(CLIENT, {}, workload("StatefulSet", {"replicas": 3}, {"readyReplicas": 2}))
    assert state.waits_for == "2 of 3 pods ready"


def test_stateful_set() -> None:
    done = {"readyReplicas": 2, "updatedReplicas": 2, "currentRevision": "b", "updateRevision": "b"}
    spec = {"replicas": 2}
    assert ready(workload("StatefulSet", spec, done))
    rolling = {**done, "currentRevision": "a", "updatedReplicas": 1}
    assert not ready(workload("StatefulSet", spec, rolling))
    assert ready(workload("StatefulSet", {**spec, "updateStrategy": {"type": "OnDelete"}}, rolling))
    partition = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    assert ready(workload("StatefulSet", {**spec, "updateStrategy": partition}, rolling))


def test_daemon_set_with_no_node_to_run_on_is_ready() -> None:
    assert ready(workload("DaemonSet", {}, {"desiredNumberScheduled": 0}))
    status = {"desiredNumberScheduled": 1, "numberReady": 1, "numberAvailable": 1, "updatedNumberScheduled": 1}
    assert ready(workload("DaemonSet", {}, status))
    assert not ready(workload("DaemonSet", {}, {**status, "updatedNumberScheduled": 0}))


def job(condition: str | None, reason: str = "", message: str = "") -> dict[str, Any]:
    conditions = [{"type": condition, "status": "True", "reason": reason, "message": message}] if condition else []
    return workload("Job", {}, {"startTime": "t", "active": 1, "conditions": conditions}, "batch/v1")


def test_job() -> None:
    assert ready(job("Complete"))
    assert readiness(CLIENT, {}, job(None)).waits_for == "the Job runs: pods 1 active, 0 succeeded, 0 failed"
    failed = readiness(CLIENT, {}, job("Failed", "BackoffLimitExceeded", "too many"))
    assert failed.failed == "the Job failed: BackoffLimitExceeded: too many"


def test_kinds_without_a_rule_are_ready() -> None:
    assert ready(workload("Thing", {}, {}, "example.com/v1"))
    assert ready(workload("ConfigMap", {}, {}, "v1"))


@pytest.mark.parametrize(
    "spec", [{"clusterIP": "None", "selector": {"a": "b"}}, {"type": "ExternalName"}, {"ports": []}]
)
def test_services_without_pods_of_their_own_are_ready(spec: dict[str, Any]) -> None:
    assert ready(workload("Service", spec, {}, "v1"))


def test_claims_and_volumes() -> None:
    assert ready(workload("PersistentVolumeClaim", {}, {"phase": "Bound"}, "v1"))
    assert not ready(workload("PersistentVolumeClaim", {}, {"phase": "Pending"}, "v1"))
    assert ready(workload("PersistentVolume", {}, {"phase": "Available"}, "v1"))


def test_wait_for_annotation() -> None:
    thing = workload(
        "Thing", {}, {"phase": "Up", "conditions": [{"type": "Synced", "status": "True"}]}, "example.com/v1"
    )
    for expression, expected in (
        ("condition=Synced", True),
        ("condition=Synced=False", False),
        ("jsonpath={.status.phase}=Up", True),
        ("jsonpath={.status.phase}=Down", False),
        ("jsonpath={.status.missing}", False),
        ('["condition=Synced", "jsonpath={.status.phase}=Down"]', False),
    ):
        assert ready(thing, {"pulumi.com/waitFor": expression}) is expected, expression
    with pytest.raises(PluginError, match="waitFor"):
        ready(thing, {"pulumi.com/waitFor": "phase=Up"})


def test_timeouts() -> None:
    annotated = {"metadata": {"annotations": {"pulumi.com/timeoutSeconds": "30"}}}
    assert awaiting.timeout_seconds(annotated, 5) == 5
    assert awaiting.timeout_seconds(annotated, 0) == 30
    assert awaiting.timeout_seconds({}, 0) == 600


def pod(**status: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "x-0", "namespace": "demo"}, "status": status}


def container(**state: Any) -> dict[str, Any]:
    last = state.pop("last", {})
    return {"name": "main", "restartCount": 2, "state": state, "lastState": {"terminated": last} if last else {}}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: insufficient cpu"}]},
            "cannot be scheduled: 0/1 nodes: insufficient cpu",
        ),
        ({"phase": "Pending"}, "waits for the scheduler"),
        (
            {"containerStatuses": [container(waiting={"reason": "ImagePullBackOff", "message": "no such image"})]},
            "container main: ImagePullBackOff: no such image",
        ),
        (
            {
                "containerStatuses": [
                    container(
                        waiting={"reason": "CrashLoopBackOff"},
                        last={"exitCode": 42, "reason": "Error", "message": "bad config\nuse x\n"},
                    )
                ]
            },
            "container main ended with Error (exit code 42, restarted 2 times): bad config | use x",
        ),
    ],
)
def test_why_a_pod_is_not_ready(status: dict[str, Any], expected: str) -> None:
    assert pods.explain(CLIENT, pod(**status)) == expected


def test_selectors() -> None:
    assert pods.selector_text({"matchLabels": {"a": "b", "c": "d"}}) == "a=b,c=d"
    expressions = [{"key": "k", "operator": "In", "values": ["x", "y"]}, {"key": "l", "operator": "DoesNotExist"}]
    assert pods.selector_text({"matchExpressions": expressions}) == "k in (x,y),!l"
