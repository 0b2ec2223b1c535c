"""The state of a training: from the Job's conditions, its pods, the end of their logs, and status.json where this
machine sees the shared volume. Plain data, no printing."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cli.cluster import INDEX, ending, ends, record_of, why_waiting
from cli.progress import parse_logfmt
from trainer.contract import EXIT_DONE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED

MEANING = {
    EXIT_DONE: "the training is done",
    EXIT_FATAL: "failed for good, not retried",
    EXIT_RESTART: "asks to be started again",
    137: "killed",
    EXIT_TERMINATED: "asked to leave",
}
"""Meaning of the launcher's exit codes (trainer/contract.py); 137 is the kubelet's SIGKILL."""


Lines = list[tuple[datetime, dict[str, str]]]
"""Time and fields of a pod's log lines."""


@dataclass(frozen=True)
class PodState:
    name: str
    index: int
    node: str
    state: str
    since: datetime | None
    rank: int | None = None
    """Rank of its first worker in the newest round that it took part in."""
    round: int = 0


@dataclass(frozen=True)
class Incident:
    """Why a pod or a round ended."""

    time: datetime
    pod: str
    cause: str


@dataclass(frozen=True)
class State:
    job: str
    condition: str
    """Running, Complete, Failed, Suspended or Waiting, and why."""
    started: datetime | None
    ended: datetime | None
    wanted: int
    active: int
    failed: int
    round: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    """step, steps, loss, validation_loss, tokens_per_second, eta_seconds, world_size: those that are known."""
    checkpoint: int | None = None
    """Step of the newest checkpoint in the logs."""
    pods: tuple[PodState, ...] = ()
    incidents: tuple[Incident, ...] = ()
    """Oldest first."""


def state(
    job: dict[str, Any],
    pods: list[dict[str, Any]],
    logs: dict[str, str],
    status: dict[str, Any] | None = None,
    refusal: str = "",
) -> State:
    """Combine the API's answers into one state.

    `logs` are the ends of the pods' logs, with time stamps; `status` is the run's status.json, or None; `refusal` is
    why the cluster makes no pod.
    """
    events = {name: list(_events(text)) for name, text in logs.items()}
    rounds = {name: _last_round(found) for name, found in events.items()}
    told, end = job.get("status") or {}, ending(job)
    ordered = sorted(pods, key=lambda pod: (_index(pod), pod["metadata"].get("creationTimestamp") or ""))
    newest = max([number for number, _ in rounds.values()], default=0)
    return State(
        job=job["metadata"]["name"],
        condition=_condition(end, pods, refusal),
        started=_time(told.get("startTime")),
        ended=_time(end.get("lastTransitionTime")) if end.get("type") != "Suspended" else None,
        wanted=job["spec"].get("parallelism") or 0,
        active=told.get("active") or 0,
        failed=told.get("failed") or 0,
        round=max(newest, int((status or {}).get("round") or 0)),
        figures=_figures(events, status),
        checkpoint=_checkpoint(events),
        pods=tuple(_pod(pod, rounds.get(pod["metadata"]["name"])) for pod in ordered),
        incidents=tuple(sorted(_incidents(pods, events), key=lambda incident: incident.time)),
    )


def first_pod(pods: list[dict[str, Any]], logs: dict[str, str]) -> str | None:
    """The pod that has, or had, rank 0 of the newest round."""
    found = [(*_last_round(list(_events(logs.get(pod["metadata"]["name"], "")))), pod) for pod in pods]
    first = [(number, pod["metadata"]["name"]) for number, rank, pod in found if rank == 0]
    return max(first)[1] if first else None


def _condition(end: dict[str, Any], pods: list[dict[str, Any]], refusal: str) -> str:
    if end:
        why = ": ".join(filter(None, (end.get("reason"), end.get("message"))))
        return f"{end['type']} ({why})" if why and end["type"] != "Complete" else end["type"]
    if any(pod["status"].get("phase") == "Running" for pod in pods):
        return "Running"
    return f"Waiting: {why_waiting(pods, refusal)}".replace("Waiting: waiting ", "Waiting ")


def _pod(pod: dict[str, Any], seen: tuple[int, int | None] | None) -> PodState:
    status = pod["status"]
    phase = status.get("phase") or "Unknown"
    since, text = _time(status.get("startTime")), phase
    container = next(iter(status.get("containerStatuses") or []), {}).get("state", {})
    if "terminated" in container:
        code, since = container["terminated"]["exitCode"], _time(container["terminated"].get("finishedAt"))
        text = f"ended with {code}: {MEANING.get(code, container['terminated'].get('reason') or 'an error of its own')}"
    elif pod["metadata"].get("deletionTimestamp"):
        text = "leaving"
    elif phase == "Pending":
        text = why_waiting([pod])
    elif "running" in container:
        since = _time(container["running"].get("startedAt"))
    number, rank = seen or (0, None)
    node = (pod.get("spec") or {}).get("nodeName") or ""
    return PodState(pod["metadata"]["name"], _index(pod), node, text, since, rank, number)


def _incidents(pods: list[dict[str, Any]], events: dict[str, Lines]) -> list[Incident]:
    found: list[Incident] = []
    for pod in pods:
        name = pod["metadata"]["name"]
        for condition in pod["status"].get("conditions") or []:
            if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
                when = _time(condition.get("lastTransitionTime"))
                if when:
                    found.append(Incident(when, name, f"{condition.get('reason')}: {condition.get('message', '')}"))
        for ended in ends(pod):
            when = _time(ended.get("finishedAt"))
            if when and ended["exitCode"] != 0:
                found.append(Incident(when, name, _last_words(ended)))
    # Every pod of a round reports its end: keep the earliest report, which has the reason.
    rounds: dict[str, list[Incident]] = {}
    for name, lines in events.items():
        number = "0"
        for when, fields in lines:
            kind = fields.get("event")
            if kind == "round":
                number = fields.get("round", number)
            elif kind == "workers_ended":
                cause = fields.get("reason", "").strip("'\"") or f"exit codes {fields.get('codes')}"
                rounds.setdefault(number, []).append(Incident(when, name, f"round {number} ended: {cause}"))
            elif kind == "new_round" and fields.get("lost_members", "0") != "0":
                lost = fields["lost_members"]
                cause = f"{lost} {'member' if lost == '1' else 'members'} lost"
                rounds.setdefault(number, []).append(Incident(when, name, f"round {number} ended: {cause}"))
            elif kind == "worker_stopped":
                found.append(Incident(when, name, f"a worker was stopped for {fields.get('seconds')} s, and replaced"))
    return found + [min(told, key=lambda incident: incident.time) for told in rounds.values()]


def _last_words(ended: dict[str, Any]) -> str:
    """The launcher's termination message, else the reason that Kubernetes gives."""
    code = ended["exitCode"]
    message = record_of(ended).get("message") or MEANING.get(code) or ended.get("reason") or ""
    return f"ended with {code}: {message}"


def _figures(events: dict[str, Lines], status: dict[str, Any] | None) -> dict[str, Any]:
    """Figures from status.json where this machine sees it, else from the newest log lines of rank 0."""
    if status:
        return {key: value for key, value in status.items() if value is not None}
    found: dict[str, Any] = {}
    for _, fields in sorted((line for lines in events.values() for line in lines), key=lambda line: line[0]):
        if "step" in fields and ("loss" in fields or "validation_loss" in fields) and "event" not in fields:
            for key, value in fields.items():
                try:
                    found[key] = float(value) if "." in value or "e" in value else int(value)
                except ValueError:
                    found[key] = value
    return found


def _checkpoint(events: dict[str, Lines]) -> int | None:
    lines = [line for lines in events.values() for line in lines if line[1].get("event") == "checkpoint"]
    return int(max(lines, key=lambda line: line[0])[1]["step"]) if lines else None


def _events(text: str) -> Lines:
    """Time and fields of the trainer's lines in a log with time stamps."""
    found = []
    for raw in text.splitlines():
        stamp, _, line = raw.partition(" ")
        when, fields = _time(stamp), parse_logfmt(line)
        if when and fields:
            found.append((when, fields))
    return found


def _last_round(events: Lines) -> tuple[int, int | None]:
    """The newest round of a pod, and the least rank of its workers in it."""
    ranks: dict[int, int] = {}
    for _, fields in events:
        if fields.get("event") == "round" and fields.get("round", "").isdigit() and fields.get("rank", "").isdigit():
            number, rank = int(fields["round"]), int(fields["rank"])
            ranks[number] = min(rank, ranks.get(number, rank))
    newest = max(ranks, default=0)
    return newest, ranks.get(newest)


def _index(pod: dict[str, Any]) -> int:
    return int((pod["metadata"].get("labels") or {}).get(INDEX, -1))


def _time(text: str | None) -> datetime | None:
    """An API time stamp as UTC; those of log lines are in their node's time zone."""
    try:
        return datetime.fromisoformat(text or "").astimezone(UTC)
    except ValueError:
        return None
