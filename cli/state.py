"""The state of a training: from the Job's conditions, its pods, the end of their logs, and status.json where this
machine sees the shared volume. Plain data, no printing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cli.cluster import end_of, ends, index, moment, record_of, why_waiting
from cli.progress import figures, parse_logfmt
from trainer.contract import EXIT_DONE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED
from trainer.plain import counted

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
ROUND_SECONDS = 120
"""Workers that report a round of the same number within this time are in one round."""


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
    silent: datetime | None = None
    """Since when its node has not answered."""


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
    """Counted by time: the launcher's own count begins again when the rendezvous store has lost its data."""
    figures: dict[str, Any] = field(default_factory=dict)
    """step, steps, loss, validation_loss, tokens_per_second, eta_seconds, world_size: those that are known."""
    told: dict[str, datetime] = field(default_factory=dict)
    """Figure -> when it was true."""
    checkpoint: int | None = None
    """Step of the newest checkpoint in the logs."""
    pods: tuple[PodState, ...] = ()
    incidents: tuple[Incident, ...] = ()
    """Oldest first."""
    training: str = ""
    """Its name, of several of the stack."""
    nodes: dict[str, int] = field(default_factory=dict)
    """Kind of node -> how many of them train."""
    cost: float | None = None
    """USD so far by list prices, for its nodes; None: nobody knows."""


def state(
    job: dict[str, Any],
    pods: list[dict[str, Any]],
    logs: dict[str, str],
    status: dict[str, Any] | None = None,
    refusal: str = "",
    silent: Mapping[str, datetime] | None = None,
) -> State:
    """Combine the API's answers into one state.

    `logs` are the ends of the pods' logs, with time stamps; `status` is the run's status.json, or None; `refusal` is
    why the cluster makes no pod; `silent` are nodes that do not answer, and since when.
    """
    events = {name: list(_events(text)) for name, text in logs.items()}
    rounds = _rounds(events)
    newest_of = {pod: each for each in rounds for pod in each.ranks}
    values, when = _figures(events, status)
    checkpoint, saved = _checkpoint(events)
    told, end = job.get("status") or {}, end_of(job)
    ordered = sorted(pods, key=lambda pod: (index(pod), pod["metadata"].get("creationTimestamp") or ""))
    return State(
        job=job["metadata"]["name"],
        condition=_condition(end, pods, refusal),
        started=moment(told.get("startTime")),
        ended=moment(end.get("lastTransitionTime")) if end.get("type") != "Suspended" else None,
        wanted=job["spec"].get("parallelism") or 0,
        active=told.get("active") or 0,
        failed=told.get("failed") or 0,
        round=_newest(rounds, status or {}),
        figures=values,
        told=when | ({"checkpoint": saved} if saved else {}),
        checkpoint=checkpoint,
        pods=tuple(_pod(pod, newest_of.get(pod["metadata"]["name"]), silent or {}) for pod in ordered),
        incidents=tuple(sorted(_incidents(pods, events, rounds), key=lambda incident: incident.time)),
    )


def first_pod(pods: list[dict[str, Any]], logs: dict[str, str]) -> str | None:
    """The pod that has, or had, rank 0 of the newest round."""
    names = [pod["metadata"]["name"] for pod in pods]
    rounds = _rounds({name: list(_events(logs.get(name, ""))) for name in names})
    return next((pod for each in reversed(rounds) for pod, rank in each.ranks.items() if rank == 0), None)


def _condition(end: dict[str, Any], pods: list[dict[str, Any]], refusal: str) -> str:
    if end:
        why = ": ".join(filter(None, (end.get("reason"), end.get("message"))))
        return f"{end['type']} ({why})" if why and end["type"] != "Complete" else end["type"]
    if any(pod["status"].get("phase") == "Running" for pod in pods):
        return "Running"
    return f"Waiting: {why_waiting(pods, refusal)}".replace("Waiting: waiting ", "Waiting ")


def _pod(pod: dict[str, Any], seen: Round | None, silent: Mapping[str, datetime]) -> PodState:
    status = pod["status"]
    phase = status.get("phase") or "Unknown"
    node = (pod.get("spec") or {}).get("nodeName") or ""
    since, text = moment(status.get("startTime")), phase
    container = next(iter(status.get("containerStatuses") or []), {}).get("state", {})
    if ended := "terminated" in container:
        code, since = container["terminated"]["exitCode"], moment(container["terminated"].get("finishedAt"))
        text = f"ended with {code}: {MEANING.get(code, container['terminated'].get('reason') or 'an error of its own')}"
    elif node in silent:
        text, since = "its node does not answer", silent[node]
    elif pod["metadata"].get("deletionTimestamp"):
        text = "leaving"
    elif phase == "Pending":
        text = why_waiting([pod])
    elif "running" in container:
        since = moment(container["running"].get("startedAt"))
    name = pod["metadata"]["name"]
    number, rank = (seen.count, seen.ranks[name]) if seen else (0, None)
    return PodState(name, index(pod), node, text, since, rank, number, None if ended else silent.get(node))


def _incidents(pods: list[dict[str, Any]], events: dict[str, Lines], known: list[Round]) -> list[Incident]:
    found: list[Incident] = []
    for pod in pods:
        name = pod["metadata"]["name"]
        for condition in pod["status"].get("conditions") or []:
            if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
                when = moment(condition.get("lastTransitionTime"))
                if when:
                    found.append(Incident(when, name, f"{condition.get('reason')}: {condition.get('message', '')}"))
        for ended in ends(pod):
            when = moment(ended.get("finishedAt"))
            if when and ended["exitCode"] != 0:
                found.append(Incident(when, name, _last_words(ended)))
    # Every pod of a round reports its end: keep the earliest report, which has the reason.
    rounds: dict[int, list[Incident]] = {}
    for name, lines in events.items():
        for when, fields in lines:
            kind = fields.get("event")
            number = max((each.count for each in known if name in each.ranks and each.began <= when), default=0)
            if kind == "workers_ended":
                cause = fields.get("reason", "").strip("'\"") or f"exit codes {fields.get('codes')}"
                rounds.setdefault(number, []).append(Incident(when, name, f"round {number} ended: {cause}"))
            elif kind == "new_round" and (lost := figures({"step": fields.get("lost_members")}).get("step")):
                cause = f"{counted(lost, 'member')} lost"
                rounds.setdefault(number, []).append(Incident(when, name, f"round {number} ended: {cause}"))
            elif kind == "worker_stopped":
                found.append(Incident(when, name, f"a worker was stopped for {fields.get('seconds')} s, and replaced"))
    return found + [min(told, key=lambda incident: incident.time) for told in rounds.values()]


def _last_words(ended: dict[str, Any]) -> str:
    """The launcher's termination message, else the reason that Kubernetes gives."""
    code = ended["exitCode"]
    message = record_of(ended).get("message") or MEANING.get(code) or ended.get("reason") or ""
    return f"ended with {code}: {message}"


def _figures(events: dict[str, Lines], status: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, datetime]]:
    """Figures, and when each was true: the newer of rank 0's log lines and, where this machine sees it, status.json."""
    values: dict[str, Any] = {}
    when: dict[str, datetime] = {}
    for at, fields in sorted((line for lines in events.values() for line in lines), key=lambda line: line[0]):
        known = figures(fields)
        if "step" in known and ("loss" in known or "validation_loss" in known) and "event" not in fields:
            values |= known
            when |= dict.fromkeys(known, at)
    told = status or {}
    for key, value in figures(told).items():
        # A worker that resumed repeats figures of its checkpoint, whose time nobody knows.
        written = _moment(told["times"].get(key) if isinstance(told.get("times"), dict) else told.get("updated"))
        if key not in values or (written or datetime.max.replace(tzinfo=UTC)) >= when[key]:
            values[key] = value
            when = {name: at for name, at in when.items() if name != key} | ({key: written} if written else {})
    return values, when


def _checkpoint(events: dict[str, Lines]) -> tuple[int | None, datetime | None]:
    """Step and time of the newest checkpoint in the logs."""
    lines = [
        (when, figures(fields)) for lines in events.values() for when, fields in lines if _is(fields, "checkpoint")
    ]
    when, step = max(((when, known["step"]) for when, known in lines if "step" in known), default=(None, None))
    return step, when


def _is(fields: dict[str, str], event: str) -> bool:
    return fields.get("event") == event


def _events(text: str) -> Lines:
    """Time and fields of the trainer's lines in a log with time stamps."""
    found = []
    for raw in text.split("\n"):
        stamp, _, line = raw.partition(" ")
        when, fields = moment(stamp), parse_logfmt(line)
        if when and fields:
            found.append((when, fields))
    return found


@dataclass
class Round:
    number: int
    """The launcher's own."""
    count: int
    began: datetime
    ranks: dict[str, int] = field(default_factory=dict)
    """Pod -> the least rank of its workers."""
    workers: set[tuple[str, int]] = field(default_factory=set)


def _rounds(events: dict[str, Lines]) -> list[Round]:
    """The rounds that the logs tell of, in the order in which they began."""
    found: list[Round] = []
    lines = [
        (when, pod, figures(fields)) for pod, told in events.items() for when, fields in told if _is(fields, "round")
    ]
    for when, pod, known in sorted(lines, key=lambda line: line[:2]):
        if not known.keys() >= {"round", "rank"}:
            continue
        worker, near = (pod, known["rank"]), when - timedelta(seconds=ROUND_SECONDS)
        same = [each for each in found if each.number == known["round"] and worker not in each.workers]
        if not same or same[-1].began < near:
            same = [_after(found, known["round"], when)]
            found += same
        same[-1].workers.add(worker)
        same[-1].ranks[pod] = min(known["rank"], same[-1].ranks.get(pod, known["rank"]))
    return found


def _after(rounds: list[Round], number: int, began: datetime) -> Round:
    """The next round; a number that does not grow is that of a store that began again."""
    last = rounds[-1] if rounds else Round(0, 0, began)
    return Round(number, last.count + (number - last.number if number > last.number else 1), began)


def _newest(rounds: list[Round], status: dict[str, Any]) -> int:
    """The count of the newest round; status.json may know of one whose beginning the logs no longer have."""
    number, updated = figures(status).get("round", 0), _moment(status.get("updated"))
    if number and not (rounds and (number == rounds[-1].number or (updated and updated < rounds[-1].began))):
        return _after(rounds, number, datetime.now(UTC)).count
    return rounds[-1].count if rounds else 0


def _moment(seconds: Any) -> datetime | None:
    """A time in seconds since 1970, from a file that anybody may have written."""
    known = figures({"updated": seconds}).get("updated")
    try:
        return None if known is None else datetime.fromtimestamp(known, UTC)
    except (ValueError, OverflowError, OSError):
        return None
