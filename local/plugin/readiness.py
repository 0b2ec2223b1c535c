"""When an object counts as ready, kind by kind: the real plugin's conditions.

Kinds that are not listed are ready as soon as they exist.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .client import Client
from .errors import ApiError, PluginError
from .naming import WAIT_FOR, annotation
from .pods import is_ready

# An Endpoints list that stays empty this long belongs to a Service whose pods do not exist (yet): not waited for.
SETTLE_SECONDS = 10.0


@dataclass(frozen=True)
class Readiness:
    """`waits_for` says what is missing, for the progress line; `failed` that waiting is useless."""

    ready: bool
    waits_for: str = ""
    failed: str = ""


READY = Readiness(True)
Check = Callable[[Client, dict[str, Any]], Readiness]


def _number(status: dict[str, Any], key: str) -> int:
    return int(status.get(key) or 0)


def _observed(obj: dict[str, Any]) -> bool:
    status = obj.get("status") or {}
    return _number(status, "observedGeneration") >= int(obj["metadata"].get("generation") or 0)


def _conditions(obj: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {c.get("type", ""): c for c in (obj.get("status") or {}).get("conditions") or []}


def _deployment(_client: Client, obj: dict[str, Any]) -> Readiness:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    wanted = int(spec["replicas"]) if spec.get("replicas") is not None else 1
    progress = f"{_number(status, 'readyReplicas')} of {wanted} pods ready"
    if not _observed(obj):
        return Readiness(False, "the Deployment controller has not seen it yet")
    if _number(status, "updatedReplicas") < wanted:
        return Readiness(False, f"{progress}, {_number(status, 'updatedReplicas')} updated")
    if _number(status, "replicas") > _number(status, "updatedReplicas"):
        old = _number(status, "replicas") - _number(status, "updatedReplicas")
        return Readiness(False, f"{progress}, {old} old to be removed")
    available = _conditions(obj).get("Available", {}).get("status") == "True"
    if not available or _number(status, "availableReplicas") < wanted:
        return Readiness(False, progress)
    return READY


def _stateful_set(_client: Client, obj: dict[str, Any]) -> Readiness:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    wanted = int(spec["replicas"]) if spec.get("replicas") is not None else 1
    strategy = spec.get("updateStrategy") or {}
    progress = f"{_number(status, 'readyReplicas')} of {wanted} pods ready"
    if not _observed(obj):
        return Readiness(False, "the StatefulSet controller has not seen it yet")
    if _number(status, "readyReplicas") < wanted:
        return Readiness(False, progress)
    if strategy.get("type") == "OnDelete":
        return READY
    partition = int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
    revision_done = status.get("currentRevision") == status.get("updateRevision")
    updated = _number(status, "updatedReplicas")
    if (partition and updated < wanted - partition) or (not partition and not revision_done and updated < wanted):
        return Readiness(False, f"{progress}, {updated} updated")
    return READY


def _daemon_set(_client: Client, obj: dict[str, Any]) -> Readiness:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    wanted = _number(status, "desiredNumberScheduled")
    if not _observed(obj):
        return Readiness(False, "the DaemonSet controller has not seen it yet")
    progress = f"{_number(status, 'numberReady')} of {wanted} pods ready"
    rolling = (spec.get("updateStrategy") or {}).get("type") != "OnDelete"
    if rolling and _number(status, "updatedNumberScheduled") < wanted:
        return Readiness(False, f"{progress}, {_number(status, 'updatedNumberScheduled')} updated")
    if _number(status, "numberAvailable") < wanted or _number(status, "numberReady") < wanted:
        return Readiness(False, progress)
    return READY


def _job(_client: Client, obj: dict[str, Any]) -> Readiness:
    status, conditions = obj.get("status") or {}, _conditions(obj)
    failed, complete = conditions.get("Failed", {}), conditions.get("Complete", {})
    if failed.get("status") == "True":
        return Readiness(False, failed=f"the Job failed: {failed.get('reason')}: {failed.get('message')}")
    if complete.get("status") == "True":
        return READY
    if conditions.get("Suspended", {}).get("status") == "True":
        return Readiness(False, "the Job is suspended")
    counts = ", ".join(f"{_number(status, key)} {key}" for key in ("active", "succeeded", "failed"))
    return Readiness(False, f"the Job runs: pods {counts}" if status.get("startTime") else "the Job has not started")


def _pod(_client: Client, obj: dict[str, Any]) -> Readiness:
    phase = (obj.get("status") or {}).get("phase")
    if phase == "Succeeded" or is_ready(obj):
        return READY
    if phase == "Failed":
        return Readiness(False, failed="the pod failed")
    return Readiness(False, f"the pod is {phase or 'new'}")


def _service(client: Client, obj: dict[str, Any]) -> Readiness:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if spec.get("type") == "LoadBalancer" and not (status.get("loadBalancer") or {}).get("ingress"):
        return Readiness(False, "no address has been allocated for the load balancer")
    if spec.get("type") == "ExternalName" or spec.get("clusterIP") == "None" or not spec.get("selector"):
        return READY
    meta = obj["metadata"]
    slices = client.list(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        meta["namespace"],
        labelSelector=f"kubernetes.io/service-name={meta['name']}",
    )
    endpoints = [endpoint for item in slices for endpoint in item.get("endpoints") or []]
    unready = [e for e in endpoints if (e.get("conditions") or {}).get("ready") is False]
    if endpoints and not unready:
        return READY
    if unready:
        return Readiness(
            False, f"{len(endpoints) - len(unready)} of {len(endpoints)} pods behind the Service are ready"
        )
    if slices and _age_seconds(obj) > SETTLE_SECONDS:
        return READY
    return Readiness(False, "the Service targets no pods: their labels may not match spec.selector")


def _age_seconds(obj: dict[str, Any]) -> float:
    """Seconds since this process first saw this version of the object (clocks of server and client may differ)."""
    key = (obj["metadata"].get("uid"), obj["metadata"].get("resourceVersion"))
    return time.monotonic() - _first_seen.setdefault(key, time.monotonic())


_first_seen: dict[tuple[Any, Any], float] = {}


def _claim(client: Client, obj: dict[str, Any]) -> Readiness:
    """Bound; a claim whose class binds at the first consumer only has to be there (its pod comes later)."""
    phase = (obj.get("status") or {}).get("phase")
    if phase == "Bound":
        return READY
    name = (obj.get("spec") or {}).get("storageClassName")
    if name and phase == "Pending":
        like = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
        storage_class = client.get(like) or {}
        if storage_class.get("volumeBindingMode") == "WaitForFirstConsumer":
            return READY
    return Readiness(False, f"the claim is {phase or 'new'}, no volume is bound to it")


def _volume(_client: Client, obj: dict[str, Any]) -> Readiness:
    phase = (obj.get("status") or {}).get("phase")
    return READY if phase in ("Available", "Bound") else Readiness(False, f"the volume is {phase or 'new'}")


def _replication_controller(_client: Client, obj: dict[str, Any]) -> Readiness:
    wanted = int((obj.get("spec") or {}).get("replicas") or 0)
    have = _number(obj.get("status") or {}, "availableReplicas")
    return READY if have == wanted else Readiness(False, f"{have} of {wanted} pods available")


def _quota(_client: Client, obj: dict[str, Any]) -> Readiness:
    same = (obj.get("spec") or {}).get("hard") == (obj.get("status") or {}).get("hard")
    return READY if same else Readiness(False, "the quota controller has not seen it yet")


def _token_secret(_client: Client, obj: dict[str, Any]) -> Readiness:
    if obj.get("type") != "kubernetes.io/service-account-token" or obj.get("data"):
        return READY
    return Readiness(False, "the token has not been issued yet")


CHECKS: dict[tuple[str, str], Check] = {
    ("apps/v1", "Deployment"): _deployment,
    ("apps/v1", "StatefulSet"): _stateful_set,
    ("apps/v1", "DaemonSet"): _daemon_set,
    ("batch/v1", "Job"): _job,
    ("v1", "Pod"): _pod,
    ("v1", "Service"): _service,
    ("v1", "PersistentVolumeClaim"): _claim,
    ("v1", "PersistentVolume"): _volume,
    ("v1", "ReplicationController"): _replication_controller,
    ("v1", "ResourceQuota"): _quota,
    ("v1", "Secret"): _token_secret,
}
# Kinds that a refresh reports as unready.
CHECKED_ON_READ = {"Deployment", "StatefulSet", "DaemonSet", "Job", "Pod", "Service"}


def readiness(client: Client, inputs: dict[str, Any], obj: dict[str, Any]) -> Readiness:
    """Whether a live object is ready: by its `pulumi.com/waitFor` annotation, else by its kind."""
    if wait_for := annotation(inputs, WAIT_FOR):
        return _wait_for(wait_for, obj)
    check = CHECKS.get((obj["apiVersion"], obj["kind"]))
    try:
        return check(client, obj) if check else READY
    except ApiError as error:
        return Readiness(False, str(error))


def _wait_for(text: str, obj: dict[str, Any]) -> Readiness:
    """`condition=Type[=Status]`, `jsonpath={.a.b}[=value]`, or a JSON list of these, all of which must hold."""
    try:
        expressions = json.loads(text) if text.lstrip().startswith("[") else [text]
    except ValueError:
        expressions = [text]
    for expression in expressions:
        kind, _, rest = str(expression).partition("=")
        if kind == "condition":
            name, _, wanted = rest.partition("=")
            if _conditions(obj).get(name, {}).get("status", "").lower() != (wanted or "True").lower():
                return Readiness(False, f"waits for condition {rest}")
        elif kind == "jsonpath" and (match := re.fullmatch(r"\{?\.?([\w.\-\[\]]+)\}?(?:=(.*))?", rest)):
            value: Any = obj
            for part in re.findall(r"[\w\-]+", match[1]):
                value = (
                    value[int(part)]
                    if isinstance(value, list) and part.isdigit() and int(part) < len(value)
                    else (value.get(part) if isinstance(value, dict) else None)
                )
            if value is None or (match[2] is not None and str(value) != match[2].strip("'\"")):
                return Readiness(False, f"waits for {rest}")
        else:
            raise PluginError(
                f"the annotation {WAIT_FOR} is {expression!r}; it must be condition=TYPE[=STATUS] or "
                "jsonpath={.field.path}[=VALUE]"
            )
    return READY
