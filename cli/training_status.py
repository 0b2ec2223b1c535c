"""How a training is doing: from the Job's conditions, its pods and the run's record. Plain data, no printing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cli.cluster import TrainingJob, end_of, ends, held_up, holding, index, launcher_words, moment, why_waiting
from cli.target import Target
from trainer.contract import EXIT_DONE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED, EXITS, STATUS
from trainer.record import Record, newest
from trainer.record import read as read_record
from workloads.layout import DATA
from workloads.scheduling import waiting

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
    """Running, Complete, Failed, Suspended, Stopped, Queued, Waiting or Gone."""
    why: str = ""
    started: datetime | None = None
    """When the training began, however often it was stopped since."""
    ended: datetime | None = None
    wanted: int = 0
    active: int = 0
    failed: int = 0
    """Pods that failed; not those that left when asked, lost their node or were ended for another's failure."""
    record: Record = field(default_factory=Record)
    result: dict[str, Any] = field(default_factory=dict)
    """The last words of the launcher that decides: the DONE record, or why it failed."""
    waiting: str = ""
    """About the workers that wait for a node while others have one."""
    pods: tuple[PodState, ...] = ()
    incidents: tuple[Incident, ...] = ()
    """Oldest first."""
    training: str = ""
    """Its name, of several of the stack."""
    nodes: dict[str, int] = field(default_factory=dict)
    """Kind of node -> how many of them train."""
    resumed: datetime | None = None
    """When its Job was started last; Kubernetes 1.36 forgets it of a suspended one."""
    ended_for_it: int = 0
    """Pods that were ended for another's failure."""
    cost: float | None = None
    """USD so far by list prices, for its nodes; None: nobody knows."""

    @property
    def figures(self) -> dict[str, Any]:
        """step, steps, loss, validation_loss, tokens_per_second, eta_seconds, world_size: those that are known."""
        return self.record.figures

    @property
    def has_ended(self) -> bool:
        return self.condition in ("Complete", "Failed", "Stopped")

    @property
    def silent_nodes(self) -> dict[str, datetime]:
        """Nodes with its pods that do not answer -> since when."""
        return {pod.node: pod.silent for pod in self.pods if pod.silent}

    @property
    def headline(self) -> str:
        """The condition, and why."""
        if self.condition == "Waiting":
            return f"Waiting: {self.why}".replace("Waiting: waiting ", "Waiting ")
        return f"{self.condition} ({self.why})" if self.why else self.condition

    def lasted(self, now: datetime) -> float:
        """Seconds of training, without the time for which it was stopped.

        The Job's own time has the start of the pods too, but begins again at each resume.
        """
        of_job = ((self.ended or now) - self.resumed).total_seconds() if self.resumed else 0.0
        return max(of_job, self.record.trained_seconds())


def look(
    job: TrainingJob, price: float | None = None, known: Record | None = None, seconds: int | None = None
) -> TrainingStatus:
    """Ask the cluster; `price` is USD per hour of a node. Raises CommandError.

    known: the newest record so far, where only what the pods have written in the last `seconds` is read.
    """
    found, pods = job.read()
    record = newest([known, status_file(job.target), *job.records(pods, seconds).values()])
    status = summarize(found, pods, record, "" if pods else job.refusal(), job.silent_nodes(pods), price)
    gone = status.condition == "Complete" and (folder := run_here(job.target)) and not folder.exists()
    return replace(status, why="run removed") if gone else status


def run_here(target: Target) -> Path | None:
    """The run's folder, where this machine sees the shared volume."""
    if not target.data_folder or not target.run_directory or not target.run_directory.startswith(f"{DATA}/"):
        return None
    return Path(target.data_folder + target.run_directory.removeprefix(DATA))


def status_file(target: Target) -> Record | None:
    """The record in status.json, where this machine sees it."""
    folder = run_here(target)
    try:
        return read_record(json.loads((folder / STATUS).read_text("utf-8"))) if folder else None
    except (OSError, ValueError):
        return None


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
    record = newest([record, *map(_of_done, pods)])
    told, end, result = job.get("status") or {}, end_of(job), _result(pods)
    runs = any(pod["status"].get("phase") in ("Running", "Succeeded") for pod in pods)
    waits = holding(job, pods, price) or ("" if runs else why_waiting(pods, refusal))
    condition, why = _condition(end, result, waits)
    ordered = sorted(pods, key=lambda pod: (index(pod), pod["metadata"].get("creationTimestamp") or ""))
    happened = [
        Incident(when, f"worker {each.worker}" if each.worker.isdecimal() else each.worker, each.cause)
        for each in record.incidents
        if (when := moment_of(each.time))
    ]
    resumed, began = moment(told.get("startTime")), moment_of(record.started) if record.started else None
    failed = sum(map(_has_failed, pods))
    counted = told.get("failed") or 0
    fatal = end.get("type") == "Failed" and failed > 0
    return TrainingStatus(
        job=job["metadata"]["name"],
        condition=condition,
        why=why,
        started=min(filter(None, (resumed, began)), default=None),
        ended=moment(end.get("lastTransitionTime")) if end.get("type") != "Suspended" else None,
        wanted=job["spec"].get("parallelism") or 0,
        active=told.get("active") or 0,
        # Up to Kubernetes 1.35 a Job counts a failure minutes late; at its own end it counts all that it ends.
        failed=failed if fatal else max(failed, counted),
        ended_for_it=max(0, counted - failed) if fatal else 0,
        resumed=resumed,
        record=record,
        result=result,
        waiting=waiting(pods) or held_up(pods) if runs else "",
        pods=tuple(_pod(pod, record, silent or {}) for pod in ordered),
        incidents=tuple(sorted([*happened, *ends_of_pods(pods)], key=lambda incident: incident.time)),
    )


def _condition(end: dict[str, Any], result: dict[str, Any], waits: str) -> tuple[str, str]:
    """The training's condition, and why; `waits` is for what no pod of it trains."""
    kind, why = end.get("type", ""), end.get("message") or end.get("reason") or "no reason given"
    if kind == "Failed":
        # The launcher knows more than Kubernetes; but where the time is up, the pods were merely asked to end.
        late = end.get("reason") == "DeadlineExceeded"
        return kind, "the time of job.maxHours is up" if late else str(result.get("message") or why)
    if kind:
        return kind, "" if kind == "Complete" else why
    return ("Waiting", waits) if waits else ("Running", "")


def _result(pods: list[dict[str, Any]]) -> dict[str, Any]:
    """The last words of a pod that is done, else of one that failed for good, else of the latest."""
    ended = [end for pod in pods for end in ends(pod)]
    ended.sort(key=lambda end: end.get("finishedAt") or "", reverse=True)
    ended.sort(key=lambda end: {EXIT_DONE: 0, EXIT_FATAL: 1}.get(end["exitCode"], 2))
    return next(filter(None, map(launcher_words, ended)), {})


def _of_done(pod: dict[str, Any]) -> Record | None:
    """What a pod that found the run done says of it: it has written no record."""
    for end in ends(pod):
        if end["exitCode"] == EXIT_DONE and (words := launcher_words(end)) and (when := moment(end.get("finishedAt"))):
            return read_record({**words, "checkpoint": None, "updated": when.timestamp()})
    return None


def _pod(pod: dict[str, Any], record: Record, silent: Mapping[str, datetime]) -> PodState:
    status = pod["status"]
    phase = status.get("phase") or "Unknown"
    node = (pod.get("spec") or {}).get("nodeName") or ""
    since, text = moment(status.get("startTime")), status.get("reason") or phase
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
        name, status = pod["metadata"]["name"], pod["status"]
        takings = [each for each in status.get("conditions") or [] if each["type"] == "DisruptionTarget"]
        if status.get("reason") and not ends(pod):  # the kubelet has refused it, such as for a broken accelerator
            takings = takings or [{**status, "status": "True", "lastTransitionTime": status.get("startTime")}]
        for each in takings:
            if each["status"] == "True" and (when := moment(each.get("lastTransitionTime"))):
                found.append(Incident(when, name, f"{each.get('reason')}: {each.get('message', '')}"))
        for ended in ends(pod):
            code, when = ended["exitCode"], moment(ended.get("finishedAt"))
            if when and code != EXIT_DONE:
                found.append(Incident(when, name, f"ended with {code}: {_why_ended(ended)}"))
    return found


def _why_ended(ended: dict[str, Any]) -> str:
    """The launcher's last words, else those of the node, else what the exit code means."""
    if told := launcher_words(ended).get("message"):
        return str(told)
    reason, code = ended.get("reason"), ended["exitCode"]
    if reason in (None, "Error"):  # of any exit code but 0
        return EXITS.get(code, ("", "an error of its own"))[1]
    return ": ".join(filter(None, (reason, ended.get("message"))))


def moment_of(seconds: float) -> datetime | None:
    """A time of the record, which may say anything."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
