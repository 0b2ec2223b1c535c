"""When each kind counts as ready, on objects as the API server returns them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from local.plugin import pods
from local.plugin.awaiting import Awaited, readiness
from local.plugin.client import Client
from local.plugin.engine import Engine
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


AVAILABLE = {"conditions": [{"type": "Available", "status": "True"}]}
ROLLED_OUT = {"replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3, **AVAILABLE}
STATEFUL = {"replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}


@pytest.mark.parametrize(
    ("kind", "replicas", "status", "waits_for"),
    [
        ("Deployment", 3, ROLLED_OUT, ""),
        ("Deployment", 3, {**ROLLED_OUT, "observedGeneration": 1}, "the Deployment controller has not seen it yet"),
        ("Deployment", 3, {**ROLLED_OUT, "updatedReplicas": 2}, "3 of 3 pods ready, 2 updated"),
        ("Deployment", 3, {**ROLLED_OUT, "replicas": 4}, "3 of 3 pods ready, 1 old to be removed"),
        ("Deployment", 3, {**ROLLED_OUT, "availableReplicas": 2}, "3 of 3 pods ready"),
        ("Deployment", 3, {**ROLLED_OUT, "conditions": []}, "3 of 3 pods ready"),
        ("Deployment", 0, AVAILABLE, ""),
        ("StatefulSet", 2, STATEFUL, ""),
        ("StatefulSet", 2, {**STATEFUL, "updatedReplicas": 1}, "2 of 2 pods ready, 1 updated"),
        ("StatefulSet", 2, {**STATEFUL, "readyReplicas": 1}, "1 of 2 pods ready"),
    ],
)
def test_replicas(kind: str, replicas: int, status: dict[str, Any], waits_for: str) -> None:
    state = readiness(workload(kind, {"replicas": replicas}, status))
    assert (state.ready, state.waits_for) == (not waits_for, waits_for)


def job(condition: str | None, reason: str = "", message: str = "") -> dict[str, Any]:
    conditions = [{"type": condition, "status": "True", "reason": reason, "message": message}] if condition else []
    return workload("Job", {}, {"startTime": "t", "active": 1, "conditions": conditions}, "batch/v1")


def test_job() -> None:
    assert readiness(job("Complete")).ready
    assert readiness(job(None)).waits_for == "the Job runs: pods 1 active, 0 succeeded, 0 failed"
    failed = readiness(job("Failed", "BackoffLimitExceeded", "too many"))
    assert failed.failed == "the Job failed: BackoffLimitExceeded: too many"


@pytest.mark.parametrize("kind", ["ConfigMap", "DaemonSet", "PersistentVolumeClaim", "Service"])
def test_other_kinds_are_ready_at_once(kind: str) -> None:
    assert readiness(workload(kind, {}, {}, "v1")).ready


def test_timeouts() -> None:
    def seconds(inputs: dict[str, Any], requested: float) -> float:
        return Awaited(CLIENT, Engine(None), "urn", inputs, requested).seconds

    annotated = {"metadata": {"annotations": {"pulumi.com/timeoutSeconds": "30"}}}
    assert (seconds(annotated, 5), seconds(annotated, 0), seconds({}, 0)) == (5, 30, 600)


def container(**state: Any) -> dict[str, Any]:
    last = state.pop("last", {})
    return {"name": "main", "restartCount": 2, "state": state, "lastState": {"terminated": last} if last else {}}


LAST = {"exitCode": 42, "reason": "Error", "message": "bad config\nuse x\n"}


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
            {"containerStatuses": [container(waiting={"reason": "CrashLoopBackOff"}, last=LAST)]},
            "container main ended with Error (exit code 42, restarted 2 times): bad config | use x",
        ),
        (
            {"containerStatuses": [container(running={"startedAt": "now"}, last=LAST)]},
            "container main ended with Error (exit code 42, restarted 2 times): bad config | use x",
        ),
    ],
)
def test_why_a_pod_is_not_ready(status: dict[str, Any], expected: str) -> None:
    pod = {"kind": "Pod", "metadata": {"name": "x-0", "namespace": "demo"}, "status": status}
    assert pods.explain(CLIENT, pod) == expected


class Node:
    """Stands in for a client and the module `time`: a Job of 60 s, whose pod waits 20 s for its image."""

    def __init__(self) -> None:
        self.seconds = 0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += 1

    def get(self, job: dict[str, Any]) -> dict[str, Any]:
        complete = [{"type": "Complete", "status": "True"}] if self.seconds > 60 else []
        return {**job, "status": {"startTime": "now", "active": 1, "conditions": complete}}

    def list(self, api_version: str, kind: str, namespace: str, **query: str) -> list[dict[str, Any]]:
        pulled = [{"reason": "Pulled"}] if self.seconds > 20 else []
        if kind == "Event":
            return [{"reason": "Pulling"}, *pulled] if "type=Normal" in query["fieldSelector"] else []
        conditions = [{"type": "PodScheduled", "status": "True"}]
        conditions += [{"type": "Ready", "status": "True" if pulled else "False", "message": "unready: [main]"}]
        status = {"phase": "Running" if pulled else "Pending", "conditions": conditions}
        return [{"metadata": {"name": "x-0"}, "spec": {"containers": [{"name": "main"}]}, "status": status}]

    def logs(self, namespace: str, pod: str, container: str, lines: int, previous: bool) -> str:
        return f"event=preparing pieces={self.seconds // 40}/2\n"


def test_what_a_job_waits_for_is_said_once_and_stays_until_there_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    engine = Engine(None)
    monkeypatch.setattr(engine, "_log", lambda urn, message, severity, ephemeral=False: told.append(message))
    client: Any = Node()
    monkeypatch.setattr("local.plugin.awaiting.time", client)
    job = workload("Job", {"selector": {"matchLabels": {"a": "b"}}}, {"startTime": "now", "active": 1}, "batch/v1")
    Awaited(client, engine, "urn", {}, 0).until_ready(job)
    runs = "the Job runs: pods 1 active, 0 succeeded, 0 failed"
    assert told == [
        runs,
        f"{runs}; pod x-0: its node pulls the image",
        f"{runs}; pod x-0: event=preparing pieces=0/2",
        f"{runs}; pod x-0: event=preparing pieces=1/2",
        "",
    ]


def test_an_object_that_is_ready_at_once_has_no_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    engine = Engine(None)
    monkeypatch.setattr(engine, "_log", lambda urn, message, severity, ephemeral=False: told.append(message))
    ready = workload("Deployment", {"replicas": 3}, ROLLED_OUT)
    Awaited(CLIENT, engine, "urn", {}, 0).until_ready(ready)
    assert told == []
