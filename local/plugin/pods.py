"""Explain why a pod is not ready, in one line that a user can act on."""

from __future__ import annotations

from typing import Any

from .client import Client
from .errors import PluginError

# Waiting reasons of a container that pass by themselves.
_NORMAL_WAITS = {"ContainerCreating", "PodInitializing", ""}
MAX_PODS, LOG_LINES = 5, 5


def condition(obj: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the condition of this type in an object's status; empty if it has none."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), {})


def explain_unready(client: Client, obj: dict[str, Any]) -> list[str]:
    """Explain in one line each unready pod of a workload (at most five), or list the events of one without pods.

    For a Job, whose pods are ready while they work, also give the last log line of each running pod.
    """
    selector = ((obj.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    if not selector:
        return []
    query = {"labelSelector": ",".join(f"{key}={value}" for key, value in selector.items())}
    namespace = obj["metadata"].get("namespace") or "default"
    try:
        pods = client.list("v1", "Pod", namespace, **query)
        if not pods:
            sets = client.list("apps/v1", "ReplicaSet", namespace, **query) if obj["kind"] == "Deployment" else []
            owners = [obj, *({**item, "kind": "ReplicaSet"} for item in sets)]
            return [line for owner in owners for line in _warnings(client, owner)]
        lines = [f"pod {pod['metadata']['name']}: {explain(client, pod)}" for pod in pods if not _is_fine(pod)]
        if obj["kind"] == "Job":
            lines += [line for pod in pods if (line := _last_line(client, pod))]
    except PluginError:  # an explanation that fails must not replace the error that it explains
        return []
    return lines if len(lines) <= MAX_PODS else [*lines[:MAX_PODS], f"and {len(lines) - MAX_PODS} more pods"]


def _is_fine(pod: dict[str, Any]) -> bool:
    return condition(pod, "Ready").get("status") == "True" or (pod.get("status") or {}).get("phase") == "Succeeded"


def _events(client: Client, obj: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    selector = f"involvedObject.name={obj['metadata']['name']},involvedObject.kind={obj['kind']},type={kind}"
    return client.list("v1", "Event", obj["metadata"].get("namespace") or "default", fieldSelector=selector)


def _pulls(client: Client, pod: dict[str, Any]) -> bool:
    """Whether the node is pulling an image of the pod, which takes minutes the first time."""
    reasons = [event.get("reason") for event in _events(client, pod, "Normal")]
    return reasons.count("Pulling") > reasons.count("Pulled")


def _last_line(client: Client, pod: dict[str, Any]) -> str:
    """Return the last log line of a running pod."""
    meta = pod["metadata"]
    if (pod.get("status") or {}).get("phase") != "Running" or not _is_fine(pod):
        return ""
    container = str(pod["spec"]["containers"][0]["name"])
    said = client.logs(meta.get("namespace") or "default", meta["name"], container, 1, previous=False).strip()
    return f"pod {meta['name']}: {_one_line(said)[:200]}" if said else ""


def _warnings(client: Client, obj: dict[str, Any]) -> list[str]:
    """Return the last two warning events about an object, e.g. why its pods cannot be created."""
    events = _events(client, obj, "Warning")
    return list(dict.fromkeys(f"{event.get('reason')}: {_one_line(event.get('message'))}" for event in events))[-2:]


def explain(client: Client, pod: dict[str, Any]) -> str:
    """Explain why one pod is not ready: scheduling, image, crash with its last log lines, or a failing probe."""
    status = pod.get("status") or {}
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return f"cannot be scheduled: {_one_line(scheduled.get('message'))}"
    if status.get("phase") == "Pending" and not scheduled:
        return "waits for the scheduler"
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        if problem := _container_problem(client, pod, container):
            return problem
    if status.get("message"):
        return f"{status.get('reason') or status.get('phase')}: {_one_line(status['message'])}"
    if pod["metadata"].get("deletionTimestamp"):
        return "is being deleted"
    pod = {**pod, "kind": "Pod"}
    if _pulls(client, pod):
        return "its node pulls the image"
    if events := _warnings(client, pod):
        return events[-1]
    unready = condition(pod, "Ready").get("message")
    return _one_line(unready) if unready else f"is {status.get('phase') or 'new'}"


def _container_problem(client: Client, pod: dict[str, Any], container: dict[str, Any]) -> str:
    name, state = str(container.get("name")), container.get("state") or {}
    waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
    before = (container.get("lastState") or {}).get("terminated") or {}
    reason = str(waiting.get("reason") or "")
    # For a restarted container that is not ready, its last exit says more than its readiness probe now.
    again = not container.get("ready") and before.get("exitCode")
    if reason == "CrashLoopBackOff" or terminated.get("exitCode") or (again and not reason):
        ended = terminated or before
        restarts = container.get("restartCount") or 0
        restarted = f", restarted {restarts} times" if restarts else ""
        how = f"{ended.get('reason') or 'Error'} (exit code {ended.get('exitCode')}{restarted})"
        return f"container {name} ended with {how}{_last_words(client, pod, name, ended, previous=not terminated)}"
    if reason not in _NORMAL_WAITS:
        return f"container {name}: {reason}: {_one_line(waiting.get('message'))}"
    return ""


def _last_words(client: Client, pod: dict[str, Any], container: str, ended: dict[str, Any], previous: bool) -> str:
    """Return the termination message, else the end of the log."""
    text = str(ended.get("message") or "")
    if not text.strip():
        meta = pod["metadata"]
        text = client.logs(meta.get("namespace") or "default", meta["name"], container, LOG_LINES, previous)
    lines = [line.strip() for line in text.splitlines() if line.strip()][-LOG_LINES:]
    return ": " + " | ".join(lines)[-600:] if lines else ""


def _one_line(text: Any) -> str:
    return " ".join(str(text or "no message").split())
