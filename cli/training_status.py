"""How a training is doing: one value of its Job, its pods and the run's record, which every command shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from cli.cluster import TrainingJob, condition, end_of, ends, held_up, index, launcher_words, moment, why_waiting
from cli.progress import time_to_go
from cli.target import Target
from trainer.contract import EXIT_DONE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED, EXITS, STATUS
from trainer.plain import counted
from trainer.record import Record, newest
from trainer.record import read as read_record
from trainer.requeue import held
from workloads.layout import DATA
from workloads.scheduling import waiting

ASKED = (EXIT_DONE, EXIT_RESTART, EXIT_TERMINATED)
"""Exit codes of a launcher that left because it was asked to, or is done."""
PHASES = {
    **dict.fromkeys(("", "starting", "restarting", "terminated"), "the pods start Python and load the model"),
    "compiling": "compiling the model; the first time takes a minute or more",
}
"""What a training does between its pods' start and its first step, by the state in its record."""
FIRST_STEPS = "the first evaluation and the first steps"
FURTHER = {"bits_per_byte": "{:.3f} bits per byte", "f1": "F1 {:.1f}", "exact_match": "exact match {:.1f}"}
"""Figure of a validation -> how it is told beside the loss."""


@dataclass(frozen=True)
class PodState:
    name: str
    index: int
    node: str
    state: str
    since: datetime | None
    rank: int | None = None
    """Least rank of its processes; None: it is in no round."""


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
    """Why it is so; of one that runs, what some of its workers wait for."""
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
    pods: tuple[PodState, ...] = ()
    incidents: tuple[Incident, ...] = ()
    """Oldest first."""
    training: str = ""
    """Its name, of several of the stack."""
    nodes: dict[str, int] = field(default_factory=dict)
    """Kind of node -> how many of them train."""
    silent_nodes: dict[str, datetime] = field(default_factory=dict)
    """Nodes with its pods that do not answer -> since when."""
    ended_for_it: int = 0
    """Pods that were ended for another's failure."""
    lasted: float = 0.0
    """Seconds of training, without the time for which it was stopped."""
    cost: float | None = None
    """USD so far by list prices, of as many nodes as it wants at once; None: nobody knows."""
    seen: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When all of this was so."""

    @property
    def figures(self) -> dict[str, Any]:
        """step, steps, loss, validation_loss, tokens_per_second, eta_seconds, world_size: those that are known."""
        return self.record.figures

    @property
    def has_ended(self) -> bool:
        return self.condition in ("Complete", "Failed", "Stopped")

    @property
    def running(self) -> int:
        """Pods that run; the Job's own count has those without a node too."""
        return sum(pod.state == "Running" for pod in self.pods)

    @property
    def headline(self) -> str:
        """The condition, and why."""
        if self.condition == "Waiting":
            return f"Waiting: {self.why}".replace("Waiting: waiting ", "Waiting ")
        return f"{self.condition} ({self.why})" if self.why else self.condition

    @property
    def starting(self) -> str:
        """What its pods do before the first step of their round; empty: they make steps, or none runs."""
        if not (self.condition == "Running" and self.running):
            return ""
        if "loss" in self.figures and self.record.state not in PHASES:
            return ""
        return PHASES.get(self.record.state, FIRST_STEPS)

    @property
    def step(self) -> str:
        """The newest step, of how many; empty: there is none."""
        return f"step {self.figures['step']}/{self.figures.get('steps', '?')}" if "step" in self.figures else ""

    @property
    def described(self) -> list[str]:
        """The newest step with loss, validation, speed and time to go, as far as they are known."""
        known = self.figures
        parts = [
            self.step,
            f"loss {known['loss']:.3f}" if "loss" in known else "",
            f"validation {known['validation_loss']:.3f}{further(known)}" if "validation_loss" in known else "",
            f"{known['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in known else "",
            f"{time_to_go(known['eta_seconds'])} to go" if known.get("eta_seconds") else "",
        ]
        return list(filter(None, parts))

    def ago(self, when: datetime | float | None) -> str:
        """How long before this look, as h:mm:ss; empty: nobody knows."""
        then = when if isinstance(when, datetime) else moment(when)
        return time_to_go((self.seen - then).total_seconds()) if then else ""


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
    return replace(status, training=job.target.training, why="run removed" if gone else status.why)


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
    silent: dict[str, datetime] | None = None,
    price: float | None = None,
    now: datetime | None = None,
) -> TrainingStatus:
    """Combine the API's answers and the run's record.

    `refusal` is why the cluster makes no pod; `silent` are nodes that do not answer, and since when; `price` is USD per
    hour of a node.
    """
    told, end, now = job.get("status") or {}, end_of(job), now or datetime.now(UTC)
    result, of_done = _last_words(pods)
    record, kind, wanted = newest([record, of_done]), end.get("type", ""), job["spec"].get("parallelism") or 0
    condition, why = _ended(end, result) if end else _going(job, pods, refusal, price)
    happened = [
        Incident(when, f"worker {each.worker}" if each.worker.isdecimal() else each.worker, each.cause)
        for each in record.incidents
        if (when := moment(each.time))
    ]
    ended = moment(end.get("lastTransitionTime")) if kind != "Suspended" else None
    # The Job's own time has the start of the pods too, but begins again at each resume, and Kubernetes 1.36 forgets it.
    resumed = moment(told.get("startTime"))
    lasted = max(((ended or now) - resumed).total_seconds() if resumed else 0.0, record.trained_seconds())
    failed, counted_by_job = sum(map(_has_failed, pods)), told.get("failed") or 0
    fatal = kind == "Failed" and failed > 0
    ordered = sorted(pods, key=lambda pod: (index(pod), pod["metadata"].get("creationTimestamp") or ""))
    return TrainingStatus(
        job=job["metadata"]["name"],
        condition=condition,
        why=why,
        started=min(filter(None, (resumed, moment(record.started))), default=None),
        ended=ended,
        wanted=wanted,
        active=told.get("active") or 0,
        # Up to Kubernetes 1.35 a Job counts a failure minutes late; at its own end it counts all that it ends.
        failed=failed if fatal else max(failed, counted_by_job),
        record=record,
        result=result,
        pods=tuple(_pod(pod, record, silent or {}) for pod in ordered),
        incidents=tuple(sorted([*happened, *chain.from_iterable(map(_ends_of, pods))], key=lambda each: each.time)),
        silent_nodes=silent or {},
        ended_for_it=max(0, counted_by_job - failed) if fatal else 0,
        lasted=lasted,
        cost=None if price is None else price * wanted * lasted / 3600,
        seen=now,
    )


def _ended(end: dict[str, Any], result: dict[str, Any]) -> tuple[str, str]:
    """The condition of a training that has ended or is suspended, and why."""
    kind, why = end["type"], end.get("message") or end.get("reason") or "no reason given"
    if kind == "Failed":
        # The launcher knows more than Kubernetes; but where the time is up, the pods were merely asked to end.
        late = end.get("reason") == "DeadlineExceeded"
        return kind, "the time of job.maxHours is up" if late else str(result.get("message") or why)
    return kind, "" if kind == "Complete" else why


def _going(job: dict[str, Any], pods: list[dict[str, Any]], refusal: str, price: float | None) -> tuple[str, str]:
    """The condition of a training that has not ended, and what it, or some of its workers, wait for."""
    some = waiting(pods) or held_up(pods)
    if found := held(job, pods):
        cost = "" if price is None else f" for {price * found.nodes:.2f} USD/h"
        others = "another" if found.missing == 1 else f"{found.missing} more"
        return "Waiting", f"holds {counted(found.nodes, 'node')}{cost} and waits for {others}; {some}"
    runs = any(pod["status"].get("phase") in ("Running", "Succeeded") for pod in pods)
    return ("Running", some) if runs else ("Waiting", why_waiting(pods, refusal))


def _last_words(pods: list[dict[str, Any]]) -> tuple[dict[str, Any], Record | None]:
    """Those of a pod that is done, else of one that failed for good, else of the latest; and the record of one that
    found the run done, which has written none."""
    rank = {EXIT_DONE: 2, EXIT_FATAL: 1}
    told = [end for pod in pods for end in ends(pod) if launcher_words(end)]
    last = max(told, key=lambda end: (rank.get(end["exitCode"], 0), end.get("finishedAt") or ""), default={})
    words, when = launcher_words(last), moment(last.get("finishedAt"))
    of_done = {**words, "checkpoint": None, "updated": when.timestamp()} if when else {}
    return words, read_record(of_done) if last.get("exitCode") == EXIT_DONE else None


def _pod(pod: dict[str, Any], record: Record, silent: Mapping[str, datetime]) -> PodState:
    status, ended = pod["status"], next(iter(ends(pod)), None)
    node, phase = (pod.get("spec") or {}).get("nodeName") or "", status.get("phase") or "Unknown"
    runs = next(iter(status.get("containerStatuses") or []), {}).get("state", {}).get("running", {})
    since, text = moment(runs.get("startedAt") or status.get("startTime")), status.get("reason") or phase
    if ended:
        code, since = ended["exitCode"], moment(ended.get("finishedAt"))
        text = f"ended with {code}: {EXITS.get(code, ['an error of its own'])[0]}"
    elif node in silent:
        text, since = "its node does not answer", silent[node]
    elif pod["metadata"].get("deletionTimestamp"):
        text = "leaving"
    elif phase == "Pending":
        text = why_waiting([pod])
    # A pod that came after the round began is not the one of its number that is in it.
    member = text == "Running" and (since is None or record.began is None or since.timestamp() <= record.began)
    rank = record.members.get(str(index(pod))) if member else None
    return PodState(pod["metadata"]["name"], index(pod), node, text, since, rank)


def _has_failed(pod: dict[str, Any]) -> bool:
    """Whether a pod failed by itself."""
    taken = condition(pod, "DisruptionTarget") or pod["metadata"].get("deletionTimestamp")
    codes = {end["exitCode"] for end in ends(pod)}
    return pod["status"].get("phase") == "Failed" and not taken and not (codes and codes <= set(ASKED))


def _ends_of(pod: dict[str, Any]) -> Iterator[Incident]:
    """Why a pod was taken away, and how it ended: the launcher's last words, else those of the node, else what the
    exit code means."""
    name, taken, status = pod["metadata"]["name"], condition(pod, "DisruptionTarget"), pod["status"]
    if not taken and status.get("reason") and not ends(pod):  # refused by the kubelet, as for a broken accelerator
        taken = {**status, "lastTransitionTime": status.get("startTime")}
    if when := moment(taken.get("lastTransitionTime")):
        yield Incident(when, name, f"{taken.get('reason')}: {taken.get('message', '')}")
    for end in ends(pod):
        code, told = end["exitCode"], launcher_words(end).get("message")
        of_node = f"{end['reason']}: {end.get('message', '')}".strip(": ") if end["reason"] else ""
        if code != EXIT_DONE and (when := moment(end.get("finishedAt"))):
            why = told or of_node or EXITS.get(code, ["", "an error of its own"])[1]
            yield Incident(when, name, f"ended with {code}: {why}")


def further(known: Mapping[str, Any]) -> str:
    """What a validation says beside its loss, in brackets."""
    told = [text.format(known[name]) for name, text in FURTHER.items() if name in known]
    return f" ({', '.join(told)})" if told else ""
