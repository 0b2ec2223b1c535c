"""Let go of nodes that a training holds while it waits for others: `python -m trainer.requeue --minutes 15 JOB ...`.

Kubernetes places each pod by itself: a training that needs more workers than have found a node pays for those nodes,
and trains nothing. After some minutes its Job is suspended, so the nodes are free, and cost nothing once the autoscaler
has taken them. It tries again when another training has ended, when this program starts (an `up` changed what there is
to share), or after RESTS times as long as it held them.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from trainer import api_server, log
from trainer.contract import QUEUED, STOPPED

LOOK_SECONDS = 10.0
RESTS = 4
"""A training for which no room comes holds nodes for at most a fifth of the time."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Held:
    """Nodes that a training has and cannot use."""

    nodes: int
    missing: int
    """Workers without a node that its rounds need."""
    since: datetime


def held(job: Object, pods: Iterable[Object]) -> Held | None:
    """The nodes that a training holds while it waits for more; None: it trains, has none, or waits for something else.

    A lost worker in the Job's back-off, which has no pod, is not a node that is missing.
    """
    here = [pod for pod in pods if pod["status"].get("phase") in ("Pending", "Running")]
    here = [pod for pod in here if not pod["metadata"].get("deletionTimestamp")]
    placed = [pod for pod in here if (pod.get("spec") or {}).get("nodeName")]
    waiting = [pod for pod in here if scheduled(pod).get("status") == "False"]
    if not placed or not waiting or (missing := least_workers(job) - len(placed)) <= 0:
        return None
    began = min(datetime.fromisoformat(scheduled(pod).get("lastTransitionTime") or _created(pod)) for pod in placed)
    nodes = {pod["spec"]["nodeName"] for pod in placed}
    return Held(len(nodes), missing, max(began, min(datetime.fromisoformat(_created(pod)) for pod in waiting)))


def scheduled(pod: Object) -> Object:
    """A pod's condition PodScheduled; empty: nobody has tried to place it."""
    conditions = pod["status"].get("conditions") or []
    return next((each for each in conditions if each["type"] == "PodScheduled"), {})


def least_workers(job: Object) -> int:
    """workers.min, as the Job's launchers have it; 1 of a Job that has none."""
    words = job["spec"].get("template", {}).get("spec", {}).get("containers", [{}])[0].get("args") or []
    given = words[words.index("--nnodes") + 1] if "--nnodes" in words else "1"
    return int(given.partition(":")[0])


def _created(pod: Object) -> str:
    return pod["metadata"]["creationTimestamp"]


def rest(job: Object) -> tuple[datetime, datetime] | None:
    """From when, and until when at the latest, a Job that let go of its nodes rests; None: it does not."""
    marks = (job.get("metadata") or {}).get("annotations") or {}
    if not marks.get(QUEUED) or not job["spec"].get("suspend"):
        return None
    start, _, end = marks[QUEUED].partition("/")
    return datetime.fromisoformat(start), datetime.fromisoformat(end)


def ended(job: Object) -> datetime | None:
    """When a training was done, failed or was stopped by a person; None: it was not."""
    ends = [each for each in job["status"].get("conditions") or [] if each["type"] in ("Complete", "Failed")]
    ends = [each for each in ends if each["status"] == "True"]
    stopped = (job["metadata"].get("annotations") or {}).get(STOPPED)
    text = ends[0]["lastTransitionTime"] if ends else stopped
    return datetime.fromisoformat(text) if text else None


def decide(
    trainings: Sequence[tuple[Object, Sequence[Object]]], hold: timedelta, nodes: int, began: datetime, now: datetime
) -> tuple[Object, Object] | None:
    """The Job that lets go of its nodes now, or that tries again, and the patch for it; None: there is none.

    trainings: Jobs with their pods, the most urgent first; hold: how long one keeps nodes in vain; nodes: how many
    there can be, 0 where nobody knows; began: when this program did. One at a time: two would try for one room.
    """
    ends = [when for job, _ in trainings if (when := ended(job))]
    taken = 0  # by more urgent ones: those of the others give way (preemption)
    for job, pods in trainings:
        if ended(job):
            continue
        if resting := rest(job):
            start, end = resting
            is_due = now >= end or began > start or any(when >= start for when in ends)
            if is_due and (not nodes or taken + least_workers(job) <= nodes):
                return job, _patch(job, None, suspend=False)
        elif not job["spec"].get("suspend"):  # or a queue of the cluster has it
            waits = held(job, pods)
            if waits and now - waits.since >= hold:
                return job, _patch(job, f"{_text(now)}/{_text(now + RESTS * hold)}", suspend=True)
            taken += job["spec"].get("parallelism") or 0
    return None


def _patch(job: Object, mark: str | None, suspend: bool) -> Object:
    """Refused if anybody has changed the Job since it was read, such as `trainyard stop`."""
    version = job["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "annotations": {QUEUED: mark}}, "spec": {"suspend": suspend}}


def _text(when: datetime) -> str:
    return when.isoformat(timespec="seconds")


def look(jobs: Iterable[str], hold: timedelta, nodes: int, began: datetime) -> None:
    """Ask the cluster once, and do what is due. Raises RefusedError and OSError."""
    namespace = api_server.namespace()
    trainings: list[tuple[Object, list[Object]]] = []
    for name in jobs:
        try:
            job = api_server.ask(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}")
        except api_server.RefusedError as error:
            if error.code != 404:  # somebody has deleted it
                raise
            continue
        pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector=batch.kubernetes.io/job-name={name}"
        trainings.append((job, api_server.ask(pods)["items"]))
    if due := decide(trainings, hold, nodes, began, datetime.now(UTC)):
        job, patch = due
        name = job["metadata"]["name"]
        api_server.ask(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}", patch)
        log.event("let_go" if patch["spec"]["suspend"] else "tries_again", job=name)


def main(arguments: list[str] | None = None) -> None:
    """Look until somebody ends it."""
    parser = argparse.ArgumentParser(prog="python -m trainer.requeue", description="Let go of nodes held in vain.")
    parser.add_argument("--minutes", type=float, required=True, help="how long nodes may be held in vain")
    parser.add_argument("--nodes", type=int, default=0, help="how many nodes there can be; default: nobody knows")
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="the trainings' Jobs, the most urgent first")
    options = parser.parse_args(arguments)
    began = datetime.now(UTC)
    while True:
        try:
            look(options.jobs, timedelta(minutes=options.minutes), options.nodes, began)
        except (api_server.RefusedError, OSError) as error:
            log.say(f"requeue: {error}", sys.stderr)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
