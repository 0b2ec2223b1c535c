"""How a training is doing: from the Job's conditions, its pods and the run's record. Plain data, no printing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cli.cluster import end_of, ends, holding, index, moment, record_of, why_waiting
from trainer.contract import EXIT_DONE, EXIT_RESTART, EXIT_TERMINATED, EXITS
from trainer.record import Record

ASKED = (EXIT_DONE, EXIT_RESTART, EXIT_TERMINATED)
"""Exit codes of a launcher that left because it was asked to, or is done."""


@dataclass(frozen=True)
class PodState:
    name: str
    index: int
    node: str
    state: str
    since: datetime | None
    rank: int | None = None
    """Least rank of its processes; None: it is in no round."""
    silent: datetime | None = None
    """Since when its node has not answered."""


@dataclass(frozen=True)
class Incident:
    """Why a pod or a round ended."""

    time: datetime
    who: str
    cause: str


@dataclass(frozen=True)
class TrainingStatus:
    job: str
    condition: str
    """Running, Complete, Failed, Suspended, Stopped, Queued or Waiting, and why."""
    started: datetime | None
    """When the training began, however often it was stopped since."""
    ended: datetime | None
    wanted: int
    active: int
    failed: int
    """Pods that failed; not those that left when asked, lost their node or were ended for another's failure."""
    round: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    """step, steps, loss, validation_loss, tokens_per_second, eta_seconds, world_size: those that are known."""
    told: dict[str, datetime] = field(default_factory=dict)
    """Figure -> when it was true."""
    checkpoint: int | None = None
    """Step of the newest checkpoint."""
    pods: tuple[PodState, ...] = ()
    incidents: tuple[Incident, ...] = ()
    """Oldest first."""
    training: str = ""
    """Its name, of several of the stack."""
    nodes: dict[str, int] = field(default_factory=dict)
    """Kind of node -> how many of them train."""
    resumed: datetime | None = None
    """When its Job was started last; Kubernetes 1.36 forgets it of a suspended one."""
    trained_seconds: float = 0.0
    """Seconds in rounds, by the run's record."""
    ended_for_it: int = 0
    """Pods that were ended for another's failure."""
    cost: float | None = None
    """USD so far by list prices, for its nodes; None: nobody knows."""

    def lasted(self, now: datetime) -> float:
        """Seconds of training, without the time for which it was stopped.

        The Job's own time has the start of the pods too, but begins again at each resume.
        """
        of_job = ((self.ended or now) - self.resumed).total_seconds() if self.resumed else 0.0
        return max(of_job, self.trained_seconds)


def summarize(
    job: dict[str, Any],
    pods: list[dict[str, Any]],
    record: Record | None = None,
    refusal: str = "",
    silent: Mapping[str, datetime] | None = None,
    price: float | None = None,
) -> TrainingStatus:
    """Combine the API's answers and the run's record.

    `refusal` is why the cluster makes no pod; `silent` are nodes that do not answer, and since when; `price` is USD per
    hour of a node.
    """
    record = record or Record()
    told, end = job.get("status") or {}, end_of(job)
    ordered = sorted(pods, key=lambda pod: (index(pod), pod["metadata"].get("creationTimestamp") or ""))
    happened = [
        Incident(when, f"worker {each.worker}" if each.worker.isdecimal() else each.worker, each.cause)
        for each in record.incidents
        if (when := _moment(each.time))
    ]
    resumed, began = moment(told.get("startTime")), _moment(record.started) if record.started else None
    failed = sum(map(_has_failed, pods))
    counted = told.get("failed") or 0
    fatal = end.get("type") == "Failed" and failed > 0
    return TrainingStatus(
        job=job["metadata"]["name"],
        condition=_condition(end, pods, refusal, holding(job, pods, price)),
        started=min(filter(None, (resumed, began)), default=None),
        ended=moment(end.get("lastTransitionTime")) if end.get("type") != "Suspended" else None,
        wanted=job["spec"].get("parallelism") or 0,
        active=told.get("active") or 0,
        # Up to Kubernetes 1.35 a Job counts a failure minutes late; at its own end it counts all that it ends.
        failed=failed if fatal else max(failed, counted),
        ended_for_it=max(0, counted - failed) if fatal else 0,
        resumed=resumed,
        trained_seconds=record.trained_seconds(),
        round=record.round,
        figures=record.figures,
        told={name: when for name, seconds in record.times.items() if (when := _moment(seconds))},
        checkpoint=record.checkpoint,
        pods=tuple(_pod(pod, record, silent or {}) for pod in ordered),
        incidents=tuple(sorted([*happened, *ends_of_pods(pods)], key=lambda incident: incident.time)),
    )


def _condition(end: dict[str, Any], pods: list[dict[str, Any]], refusal: str, holds: str) -> str:
    if end:
        why = ": ".join(filter(None, (end.get("reason"), end.get("message"))))
        return f"{end['type']} ({why})" if why and end["type"] != "Complete" else end["type"]
    if holds:
        return f"Waiting ({holds})"
    if any(pod["status"].get("phase") == "Running" for pod in pods):
        return "Running"
    return f"Waiting: {why_waiting(pods, refusal)}".replace("Waiting: waiting ", "Waiting ")


def _pod(pod: dict[str, Any], record: Record, silent: Mapping[str, datetime]) -> PodState:
    status = pod["status"]
    phase = status.get("phase") or "Unknown"
    node = (pod.get("spec") or {}).get("nodeName") or ""
    since, text = moment(status.get("startTime")), phase
    container = next(iter(status.get("containerStatuses") or []), {}).get("state", {})
    if ended := container.get("terminated"):
        since = moment(ended.get("finishedAt"))
        known = EXITS.get(ended["exitCode"])
        meaning = known[1] if known else ended.get("reason") or "an error of its own"
        text = f"ended with {ended['exitCode']}: {meaning}"
    elif node in silent:
        text, since = "its node does not answer", silent[node]
    elif pod["metadata"].get("deletionTimestamp"):
        text = "leaving"
    elif phase == "Pending":
        text = why_waiting([pod])
    elif "running" in container:
        since = moment(container["running"].get("startedAt"))
    # A pod that came after the round began is not the one of its number that is in it.
    member = text == "Running" and (since is None or record.began is None or since.timestamp() <= record.began)
    rank = record.members.get(str(index(pod))) if member else None
    return PodState(pod["metadata"]["name"], index(pod), node, text, since, rank, None if ended else silent.get(node))


def _has_failed(pod: dict[str, Any]) -> bool:
    """Whether a pod failed by itself."""
    status = pod["status"]
    taken = any(
        (each["type"], each["status"]) == ("DisruptionTarget", "True") for each in status.get("conditions") or []
    )
    if status.get("phase") != "Failed" or taken or pod["metadata"].get("deletionTimestamp"):
        return False
    return any(end["exitCode"] not in ASKED for end in ends(pod)) or not ends(pod)


def ends_of_pods(pods: list[dict[str, Any]]) -> list[Incident]:
    """Why pods were taken away, and how they ended, with their launchers' last words."""
    found = []
    for pod in pods:
        name = pod["metadata"]["name"]
        for condition in pod["status"].get("conditions") or []:
            when = moment(condition.get("lastTransitionTime"))
            if when and (condition["type"], condition["status"]) == ("DisruptionTarget", "True"):
                found.append(Incident(when, name, f"{condition.get('reason')}: {condition.get('message', '')}"))
        for ended in ends(pod):
            code, when = ended["exitCode"], moment(ended.get("finishedAt"))
            words = record_of(ended).get("message") or ended.get("reason") or EXITS.get(code, ("", ""))[1]
            if when and code != EXIT_DONE:
                found.append(Incident(when, name, f"ended with {code}: {words}"))
    return found


def _moment(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
