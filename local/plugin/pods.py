"""Why a pod is not ready, in one line a person can act on."""

from __future__ import annotations

from typing import Any

from .client import Client
from .errors import ApiError, UnreachableError

# Reasons that a container waits with which go away by themselves.
_NORMAL_WAITS = {"ContainerCreating", "PodInitializing", ""}
MAX_PODS, LOG_LINES = 5, 5


def selector_text(selector: dict[str, Any] | None) -> str:
    """A labelSelector query from matchLabels and matchExpressions."""
    parts = [f"{key}={value}" for key, value in ((selector or {}).get("matchLabels") or {}).items()]
    for expression in (selector or {}).get("matchExpressions") or []:
        key, operator, values = expression["key"], expression["operator"], ",".join(expression.get("values") or [])
        parts.append(
            {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}.get(operator, f"!{key}")
        )
    return ",".join(parts)


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether the pod's Ready condition is true."""
    return _condition(pod, "Ready").get("status") == "True"


def _condition(pod: dict[str, Any], kind: str) -> dict[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), {})


def explain_unready(client: Client, obj: dict[str, Any]) -> list[str]:
    """One line for each unready pod of a workload (at most five), and for the events of a workload without pods."""
    namespace = obj["metadata"].get("namespace") or "default"
    try:
        pods = owned_pods(client, obj)
        lines = [f"pod {pod['metadata']['name']}: {explain(client, pod)}" for pod in pods if not _finished_well(pod)]
        if len(lines) > MAX_PODS:
            lines = [*lines[:MAX_PODS], f"and {len(lines) - MAX_PODS} more pods"]
        if not pods:
            lines = _warnings(client, namespace, obj)
            for replica_set in _replica_sets(client, obj):
                lines += _warnings(client, namespace, replica_set)
        return lines
    except (ApiError, UnreachableError):
        return []


def _finished_well(pod: dict[str, Any]) -> bool:
    return is_ready(pod) or (pod.get("status") or {}).get("phase") == "Succeeded"


def owned_pods(client: Client, obj: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of a workload: itself, or those that its selector finds."""
    if obj["kind"] == "Pod":
        return [obj]
    spec = obj.get("spec") or {}
    if obj["kind"] == "Service" or obj["kind"] == "ReplicationController":
        selector = selector_text({"matchLabels": spec.get("selector")})
    else:
        selector = selector_text(spec.get("selector"))
    if not selector:
        return []
    return client.list("v1", "Pod", obj["metadata"].get("namespace") or "default", labelSelector=selector)


def _replica_sets(client: Client, obj: dict[str, Any]) -> list[dict[str, Any]]:
    if obj["kind"] != "Deployment":
        return []
    namespace = obj["metadata"].get("namespace") or "default"
    found = client.list("apps/v1", "ReplicaSet", namespace, labelSelector=selector_text(obj["spec"]["selector"]))
    return [{**item, "kind": "ReplicaSet"} for item in found]


def _warnings(client: Client, namespace: str, obj: dict[str, Any]) -> list[str]:
    """The last warning events about an object, e.g. why no pod may be created."""
    selector = f"involvedObject.name={obj['metadata']['name']},involvedObject.kind={obj['kind']},type=Warning"
    events = client.list("v1", "Event", namespace, fieldSelector=selector)
    seen = {f"{event.get('reason')}: {_one_line(event.get('message'))}": None for event in events}
    return list(seen)[-2:]


def explain(client: Client, pod: dict[str, Any]) -> str:
    """Why one pod is not ready: scheduling, image, crash with its last words, or a failing probe."""
    status = pod.get("status") or {}
    scheduled = _condition(pod, "PodScheduled")
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
    events = _warnings(client, pod["metadata"].get("namespace") or "default", {**pod, "kind": "Pod"})
    if events:
        return events[-1]
    unready = _condition(pod, "Ready").get("message")
    return _one_line(unready) if unready else f"is {status.get('phase') or 'new'}"


def _container_problem(client: Client, pod: dict[str, Any], container: dict[str, Any]) -> str:
    name, state = container.get("name"), container.get("state") or {}
    waiting, terminated = state.get("waiting") or {}, state.get("terminated") or {}
    last = (container.get("lastState") or {}).get("terminated") or {}
    reason = str(waiting.get("reason") or "")
    if reason == "CrashLoopBackOff" or (terminated and terminated.get("exitCode")):
        ended = terminated or last
        words = _last_words(client, pod, str(name), ended, previous=not terminated)
        restarts = container.get("restartCount") or 0
        again = f", restarted {restarts} times" if restarts else ""
        how = f"{ended.get('reason') or 'Error'} (exit code {ended.get('exitCode')}{again})"
        return f"container {name} ended with {how}{words}"
    if reason not in _NORMAL_WAITS:
        return f"container {name}: {reason}: {_one_line(waiting.get('message'))}"
    return ""


def _last_words(client: Client, pod: dict[str, Any], container: str, ended: dict[str, Any], previous: bool) -> str:
    """The termination message, else the end of the log."""
    text = str(ended.get("message") or "")
    if not text.strip():
        meta = pod["metadata"]
        text = client.logs(meta.get("namespace") or "default", meta["name"], container, LOG_LINES, previous)
    lines = [line.strip() for line in text.splitlines() if line.strip()][-LOG_LINES:]
    return ": " + " | ".join(lines)[-600:] if lines else ""


def _one_line(text: Any) -> str:
    return " ".join(str(text or "no message").split())
