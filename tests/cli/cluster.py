"""A cluster as commands ask it, with Jobs and pods as a real one returned them (shortened)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from kubernetes.client.exceptions import ApiException

from cli.cluster import INDEX
from cli.target import Target

TARGET = Target("trainyard-local", "trainyard", "train-small-1", None, {})


def job(conditions: list[dict[str, Any]] | None = None, **status: Any) -> dict[str, Any]:
    told = {"startTime": "2026-11-21T12:00:00Z", "active": 2, "failed": 1, **status, "conditions": conditions or []}
    return {"metadata": {"name": "train-small-1"}, "spec": {"parallelism": 3}, "status": told}


def ended_job(kind: str, **further: str) -> dict[str, Any]:
    return job([{"type": kind, "status": "True", "lastTransitionTime": "2026-11-21T12:10:00Z", **further}])


def marked_job(mark: str, value: str, **status: Any) -> dict[str, Any]:
    found = job([{"type": "Suspended", "status": "True"}], **status)
    found["metadata"]["annotations"], found["spec"]["suspend"] = {mark: value}, True
    return found


def pod(
    index: int, phase: str = "Running", ended: dict[str, Any] | None = None, name: str = "", **status: Any
) -> dict[str, Any]:
    state = {"terminated": ended} if ended else {"running": {"startedAt": "2026-11-21T12:20:00Z"}}
    if phase == "Pending":
        state = {"waiting": {"reason": "ContainerCreating"}}
    return {
        "metadata": {
            "name": name or f"train-small-1-{index}-abcde",
            "labels": {INDEX: str(index)},
            "creationTimestamp": "2026-11-21T12:19:00Z",
        },
        "spec": {"nodeName": f"node-{index}"},
        "status": {
            "phase": phase,
            "startTime": "2026-11-21T12:19:30Z",
            "containerStatuses": [{"state": state}],
            **status,
        },
    }


def answer(content: dict[str, Any] | None) -> Any:
    """What the client returns where it parses nothing; None: there is no such object."""
    if content is None:
        raise ApiException(status=404, reason="Not Found")
    return SimpleNamespace(data=json.dumps(content))


class Cluster:
    """Both API groups: a Job, its pods and what each of them logs. Nobody may read nodes."""

    api_client = None

    def __init__(self, job: dict[str, Any] | None = None, pods: list[dict[str, Any]] | None = None, log: str = ""):
        self.job, self.pods, self.log = job, pods or [], log

    def read_namespaced_job(self, name: str, *_: Any, **__: Any) -> Any:
        return answer(self.job)

    def list_namespaced_pod(self, *_: Any, **__: Any) -> Any:
        return answer({"items": self.pods})

    def list_namespaced_event(self, *_: Any, **__: Any) -> Any:
        return answer({"items": []})

    def logged(self, pod: str) -> str:
        return self.log

    def read_namespaced_pod_log(self, name: str, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(data=self.logged(name).encode(), stream=lambda **_: [self.logged(name).encode()])

    def read_node(self, *_: Any, **__: Any) -> Any:
        raise ApiException(status=403, reason="Forbidden")

    list_node = read_node
