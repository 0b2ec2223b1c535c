"""Waiting: until an object is ready, until it is gone; with a progress line, a deadline and an ear for Ctrl-C.

The API server is polled, not watched: a stack awaits a handful of objects, and a poll cannot miss an event.
"""

from __future__ import annotations

import time
from typing import Any

from .client import Client, wait
from .engine import Engine
from .errors import CancelledError, InitFailedError, PluginError, UnreachableError
from .naming import SKIP_AWAIT, TIMEOUT_SECONDS, annotated_true, annotation, describe, metadata
from .pods import explain_unready
from .readiness import readiness

DEFAULT_TIMEOUT = 600.0
# Defaults of the real plugin for kinds that a controller settles quickly.
KIND_TIMEOUTS = {"PersistentVolume": 300.0, "PersistentVolumeClaim": 300.0, "ResourceQuota": 60.0, "Secret": 5.0}
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds; each pause is half as long again as the one before
EXPLAIN_EVERY = 10.0
# Kinds whose deletion is not awaited with pulumi.com/skipAwait: a controller takes their pods away.
DELETED_IN_BACKGROUND = {"Namespace", "Pod", "ReplicationController", "DaemonSet", "Deployment", "StatefulSet", "Job"}


def timeout_seconds(inputs: dict[str, Any], requested: float, default: float = DEFAULT_TIMEOUT) -> float:
    """customTimeouts, else the annotation `pulumi.com/timeoutSeconds`, else the default."""
    if requested:
        return requested
    text = annotation(inputs, TIMEOUT_SECONDS)
    return float(text) if text.isdigit() else default


def until_ready(
    client: Client, engine: Engine, urn: str, inputs: dict[str, Any], live: dict[str, Any], requested: float
) -> dict[str, Any]:
    """The live object once it is ready.

    Raises:
        InitFailedError: it failed, the time is up, or the user interrupted; with the reasons and the last live object.
    """
    if annotated_true(inputs, SKIP_AWAIT):
        return live
    seconds = timeout_seconds(inputs, requested, KIND_TIMEOUTS.get(live["kind"], DEFAULT_TIMEOUT))
    started = time.monotonic()
    deadline, pause, explained = started + seconds, FIRST_PAUSE, started
    while True:
        state = readiness(client, inputs, live)
        if state.ready:
            engine.status(urn, "")
            return live
        if state.failed:
            raise _init_failed(client, live, state.failed)
        hint = ""
        if time.monotonic() - explained > EXPLAIN_EVERY:
            explained = time.monotonic()
            hint = "; ".join(explain_unready(client, live)[:1])
        engine.status(urn, f"{state.waits_for}; {hint}" if hint else state.waits_for)
        try:
            if not wait(client.cancelled, pause, deadline):
                raise _init_failed(client, live, f"not ready after {_duration(seconds)}: {state.waits_for}")
        except CancelledError:
            raise InitFailedError(
                f"{describe(live)}: interrupted: {state.waits_for}", [state.waits_for], live
            ) from None
        pause = min(pause * 1.5, LONGEST_PAUSE)
        live = _refreshed(client, live)


def _refreshed(client: Client, live: dict[str, Any]) -> dict[str, Any]:
    """The object as it is now; a server that is away for a moment is asked again at the next turn."""
    try:
        now = client.get(live)
    except UnreachableError:
        return live
    if now is None:
        raise PluginError(f"{describe(live)} was deleted by someone else while it was awaited")
    return now


def _init_failed(client: Client, live: dict[str, Any], summary: str) -> InitFailedError:
    reasons = [summary, *explain_unready(client, live)]
    return InitFailedError(f"{describe(live)}: " + "\n  ".join(reasons), reasons, live)


def unready_reasons(client: Client, inputs: dict[str, Any], live: dict[str, Any]) -> list[str]:
    """Why the object is not ready now; empty where it is. For refresh."""
    if annotated_true(inputs, SKIP_AWAIT):
        return []
    state = readiness(client, inputs, live)
    return [] if state.ready else [state.failed or state.waits_for, *explain_unready(client, live)]


def until_gone(
    client: Client, engine: Engine, urn: str, inputs: dict[str, Any], live: dict[str, Any], requested: float
) -> None:
    """Return once the object does not exist any more (or another one has taken its name).

    Raises:
        InitFailedError: the time is up; with what holds the object, so that the state keeps it.
    """
    if annotated_true(inputs, SKIP_AWAIT) and live["kind"] in DELETED_IN_BACKGROUND:
        return
    seconds = timeout_seconds(inputs, requested)
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE
    uid = metadata(live).get("uid")
    while True:
        try:
            now = client.get(live)
        except UnreachableError:
            now = live
        if now is None or (uid and metadata(now).get("uid") != uid):
            engine.status(urn, "")
            return
        live = now
        engine.status(urn, _held_by(live))
        try:
            if not wait(client.cancelled, pause, deadline):
                message = f"{describe(live)} still exists {_duration(seconds)} after its deletion: {_held_by(live)}"
                raise InitFailedError(message, [message], live)
        except CancelledError:
            raise InitFailedError(f"{describe(live)}: interrupted while it is deleted", ["interrupted"], live) from None
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _held_by(live: dict[str, Any]) -> str:
    """What keeps an object that is being deleted."""
    finalizers = list(metadata(live).get("finalizers") or []) + list((live.get("spec") or {}).get("finalizers") or [])
    conditions = (live.get("status") or {}).get("conditions") or []
    remaining = [
        c.get("message", "") for c in conditions if c.get("status") == "True" and "Remain" in c.get("type", "")
    ]
    if remaining:
        return "; ".join(remaining)
    return f"waits for finalizers: {', '.join(finalizers)}" if finalizers else "waits for its removal"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 60} min {whole % 60} s"
        if whole >= 60 and whole % 60
        else (f"{whole // 60} min" if whole >= 60 else f"{whole} s")
    )
