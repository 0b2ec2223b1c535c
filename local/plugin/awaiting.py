"""Wait until an object is ready or gone, with a progress line and a deadline; Ctrl-C ends the wait.

The conditions are the real plugin's for the kinds that the program awaits: Deployments, StatefulSets and Jobs. Other
kinds are ready as soon as they exist. This polls the API server instead of watching it: a stack awaits a handful of
objects, and a poll cannot miss an event.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .client import RETRY_CODES, Client
from .engine import Engine
from .errors import ApiError, CancelledError, InitFailedError, PluginError, UnreachableError
from .naming import SKIP_AWAIT, TIMEOUT_SECONDS, annotated_true, annotation, describe, metadata
from .pods import condition, explain_unready

DEFAULT_TIMEOUT = 600.0
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds; each pause is 1.5 times the one before
EXPLAIN_EVERY = 15.0  # seconds; in a log of Pulumi, each new explanation is a line
# Kinds whose deletion pulumi.com/skipAwait does not await: a controller removes their pods.
DELETED_IN_BACKGROUND = {"Namespace", "Pod", "DaemonSet", "Deployment", "StatefulSet", "Job"}


@dataclass(frozen=True)
class Readiness:
    """`waits_for`: what is missing, for the progress line. `failed`: why waiting is useless."""

    ready: bool
    waits_for: str = ""
    failed: str = ""


READY = Readiness(True)


def readiness(obj: dict[str, Any]) -> Readiness:
    """Whether a live object is ready."""
    if obj["kind"] == "Job" and obj["apiVersion"] == "batch/v1":
        return _job_readiness(obj)
    if obj["kind"] not in ("Deployment", "StatefulSet") or obj["apiVersion"] != "apps/v1":
        return READY
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    wanted = int(spec.get("replicas", 1))
    have = {key: int(status.get(key) or 0) for key in ("replicas", "updatedReplicas", "readyReplicas")}
    progress = f"{have['readyReplicas']} of {wanted} pods ready"
    if int(status.get("observedGeneration") or 0) < int(obj["metadata"].get("generation") or 0):
        return Readiness(False, f"the {obj['kind']} controller has not seen it yet")
    if have["updatedReplicas"] < wanted:
        return Readiness(False, f"{progress}, {have['updatedReplicas']} updated")
    if have["replicas"] > have["updatedReplicas"]:
        return Readiness(False, f"{progress}, {have['replicas'] - have['updatedReplicas']} old to be removed")
    available = have["readyReplicas"] if obj["kind"] == "StatefulSet" else int(status.get("availableReplicas") or 0)
    is_available = obj["kind"] == "StatefulSet" or condition(obj, "Available").get("status") == "True"
    return READY if is_available and available >= wanted else Readiness(False, progress)


def _job_readiness(obj: dict[str, Any]) -> Readiness:
    status, failed = obj.get("status") or {}, condition(obj, "Failed")
    if failed.get("status") == "True":
        return Readiness(False, failed=f"the Job failed: {failed.get('reason')}: {failed.get('message')}")
    if condition(obj, "Complete").get("status") == "True":
        return READY
    counts = ", ".join(f"{int(status.get(key) or 0)} {key}" for key in ("active", "succeeded", "failed"))
    return Readiness(False, f"the Job runs: pods {counts}" if status.get("startTime") else "the Job has not started")


def unready_reasons(client: Client, inputs: dict[str, Any], live: dict[str, Any]) -> list[str]:
    """Why the object is not ready now; empty if it is. For refresh."""
    state = readiness(live)
    if state.ready or annotated_true(inputs, SKIP_AWAIT):
        return []
    return [state.failed or state.waits_for, *explain_unready(client, live)]


@dataclass(frozen=True)
class Awaited:
    """One object to wait for. `requested` is the program's customTimeouts in seconds, or 0."""

    client: Client
    engine: Engine
    urn: str
    inputs: dict[str, Any]
    requested: float

    @property
    def seconds(self) -> float:
        """The timeout: customTimeouts, else the annotation `pulumi.com/timeoutSeconds`, else ten minutes."""
        text = annotation(self.inputs, TIMEOUT_SECONDS)
        return self.requested or (float(text) if text.isdigit() else DEFAULT_TIMEOUT)

    def until_ready(self, live: dict[str, Any]) -> dict[str, Any]:
        """Return the live object once it is ready.

        Raises:
            InitFailedError: the object failed or cannot be read, the time is up, or the user interrupted.
        """
        if annotated_true(self.inputs, SKIP_AWAIT):
            return live
        turns, explained, hint = _Turns(self.client, self.seconds), time.monotonic(), ""
        while not (state := readiness(live)).ready:
            if state.failed:
                raise self._failed(live, state.failed)
            if time.monotonic() - explained > EXPLAIN_EVERY:
                explained = time.monotonic()
                hint = "; ".join(explain_unready(self.client, live)[:1])
            self.engine.status(self.urn, f"{state.waits_for}; {hint}" if hint else state.waits_for)
            if not turns.pause(live, f"interrupted: {state.waits_for}"):
                raise self._failed(live, f"not ready after {_duration(self.seconds)}: {state.waits_for}")
            now = self._get(live)
            if now is None:
                raise PluginError(f"{describe(live)} was deleted by someone else while it was awaited")
            live = now
        self.engine.status(self.urn, "")
        return live

    def until_gone(self, live: dict[str, Any]) -> None:
        """Return once the object no longer exists, or another one has its name.

        Raises:
            InitFailedError: the time is up, the object cannot be read, or the user interrupted. It carries the object,
                so that the state keeps it.
        """
        if annotated_true(self.inputs, SKIP_AWAIT) and live["kind"] in DELETED_IN_BACKGROUND:
            return
        turns, uid = _Turns(self.client, self.seconds), metadata(live).get("uid")
        while now := self._get(live):
            if uid and metadata(now).get("uid") != uid:
                break
            live = now
            held = _explain_hold(live)
            self.engine.status(self.urn, held)
            if not turns.pause(live, "interrupted while it is deleted"):
                message = f"{describe(live)} still exists {_duration(self.seconds)} after its deletion: {held}"
                raise InitFailedError(message, [message], live)
        self.engine.status(self.urn, "")

    def _get(self, live: dict[str, Any]) -> dict[str, Any] | None:
        """Return the object as it is now. While the server is busy or does not answer, return the last one known.

        Raises:
            InitFailedError: the server refuses to show the object.
        """
        try:
            return self.client.get(live)
        except (UnreachableError, CancelledError):  # the next pause ends an interrupted wait
            return live
        except ApiError as error:
            if error.code in RETRY_CODES:
                return live
            raise InitFailedError(str(error), [str(error)], live) from None

    def _failed(self, live: dict[str, Any], summary: str) -> InitFailedError:
        reasons = [summary, *explain_unready(self.client, live)]
        return InitFailedError(f"{describe(live)}: " + "\n  ".join(reasons), reasons, live)


class _Turns:
    """The pauses between polls, until a deadline."""

    def __init__(self, client: Client, seconds: float) -> None:
        self._client, self._deadline, self._pause = client, time.monotonic() + seconds, FIRST_PAUSE

    def pause(self, live: dict[str, Any], if_cancelled: str) -> bool:
        """Pause; return False once the deadline has passed. Raises InitFailedError if the user interrupts."""
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            return False
        try:
            self._client.sleep(min(self._pause, remaining))
        except CancelledError:
            raise InitFailedError(f"{describe(live)}: {if_cancelled}", [if_cancelled], live) from None
        self._pause = min(self._pause * 1.5, LONGEST_PAUSE)
        return True


def _explain_hold(live: dict[str, Any]) -> str:
    """Explain why an object that is being deleted still exists."""
    conditions = (live.get("status") or {}).get("conditions") or []
    # A Namespace has NamespaceContentRemaining and NamespaceFinalizersRemaining.
    remain = [c.get("message", "") for c in conditions if c.get("status") == "True" and "Remain" in c.get("type", "")]
    finalizers = [*(metadata(live).get("finalizers") or []), *((live.get("spec") or {}).get("finalizers") or [])]
    if remain or not finalizers:
        return "; ".join(remain) or "waits for its removal"
    return f"waits for finalizers: {', '.join(finalizers)}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return " ".join(f"{count} {unit}" for count, unit in ((minutes, "min"), (rest, "s")) if count) or "0 s"
