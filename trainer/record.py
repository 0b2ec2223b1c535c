"""The record of a run: one JSON object, in status.json and as one line of rank 0's log.

Rank 0 owns it and writes all of it at each change: state, round, members, figures, checkpoint, incidents. cli/ and
faults/ read it and nothing else of the log. This module imports no torch.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainer.contract import EXIT_RESTART, EXIT_TERMINATED

PREFIX = "record "
"""Begins the record's line in the log; the JSON object follows."""
KEPT = 12
"""Incidents in a record, the newest."""
CAUSE_CHARACTERS, MESSAGE_CHARACTERS = 300, 2000
"""The longest text of each: with 500 workers a line stays below the 16 KB that a reader of the log takes."""
INCIDENTS = "TRAINYARD_INCIDENTS"
"""Environment: a launcher's own incidents, as JSON, for the workers of the next round."""
INDEX = "JOB_COMPLETION_INDEX"
"""Environment: the worker's number, from Kubernetes."""
FIGURES = (
    *("step", "steps", "loss", "validation_loss", "validation_step", "initial_validation_loss", "bits_per_byte"),
    *("f1", "exact_match", "world_size", "tokens_per_second", "eta_seconds"),
)
"""What commands show."""
OWN = (
    *("state", "message", "round", "began", "started", "earlier_seconds", "members", "checkpoint", "resumed"),
    *("data", "updated"),
)
"""Fields of a record under the same names in status.json."""


class Incident(NamedTuple):
    """Why a round ended, or what else whoever follows the training should know of."""

    time: float
    """Seconds since 1970."""
    worker: str
    cause: str


@dataclass(frozen=True)
class Record:
    """What a record says."""

    state: str = ""
    message: str = ""
    round: int = 0
    """Rounds of the run so far that have begun to train, however often the rendezvous lost its count."""
    began: float | None = None
    """When the round began, in seconds since 1970."""
    started: float | None = None
    """When the run's first round began."""
    earlier_seconds: float = 0.0
    """Of training in the rounds before this one: without the time for which the training was stopped."""
    members: dict[str, int] = field(default_factory=dict)
    """Worker of the round -> the least rank of its processes."""
    figures: dict[str, Any] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    """Figure -> when it was true; without those that the round has from its checkpoint."""
    checkpoint: int | None = None
    """Step of the newest one."""
    resumed: int | None = None
    """Step of the checkpoint from which the round went on; None: it began from scratch."""
    incidents: tuple[Incident, ...] = ()
    """Oldest first."""
    data: str = ""
    """Digest of the data set."""
    updated: float = 0.0

    def trained_seconds(self) -> float:
        """Of training so far, in all rounds; the cluster forgets it where a Job is suspended."""
        return self.earlier_seconds + (max(0.0, self.updated - self.began) if self.began else 0.0)

    def age(self) -> tuple[int, float]:
        """What orders records: rank 0 of the next round may have another clock."""
        return self.round, self.updated


def read(found: Any) -> Record | None:
    """The record in the content of status.json or of a log line; None: it holds none."""
    if not isinstance(found, dict) or not found:
        return None
    known, updated = figures(found), found.get("updated", 0.0)
    return Record(
        **{name: found[name] for name in OWN if found.get(name) is not None},
        figures=known,
        times=found.get("times", dict.fromkeys(known, updated)),
        incidents=tuple(Incident(**told) for told in found.get("incidents", ())),
    )


def of_line(line: str) -> Record | None:
    """The record that a line of a log is, or None."""
    if not line.startswith(f"{PREFIX}{{"):
        return None
    try:
        return read(json.loads(line.removeprefix(PREFIX)))
    except ValueError:  # cut off
        return None


def line(content: Mapping[str, Any]) -> str:
    return PREFIX + json.dumps(content, separators=(",", ":"))


def newest(records: Iterable[Record | None]) -> Record:
    """The record that was written last; an empty one where there is none."""
    return max(filter(None, records), key=Record.age, default=Record())


def figures(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a record: those that have been measured, and are finite."""
    return {
        name: value for name in FIGURES if isinstance(value := fields.get(name), int | float) and math.isfinite(value)
    }


# Written by launchers and workers.


def worker() -> str:
    """This node's name: its number in the Job, else the machine's."""
    return os.environ.get(INDEX) or socket.gethostname()


def note(cause: str, after: int) -> None:
    """Keep an incident of this launcher for the next round's record. after: the launcher's number of the round."""
    told = [*_noted(), {"time": time.time(), "worker": worker(), "cause": cause[:CAUSE_CHARACTERS], "after": after}]
    os.environ[INCIDENTS] = json.dumps(told[-KEPT:])


def _noted() -> list[dict[str, Any]]:
    return json.loads(os.environ.get(INCIDENTS) or "[]")


def introduce(rank: int) -> dict[str, Any]:
    """What a worker tells rank 0 as a round begins."""
    return {"worker": worker(), "rank": rank, "incidents": _noted()}


def begin(before: Mapping[str, Any], told: list[dict[str, Any]]) -> dict[str, Any]:
    """The part of the record that is the round's, of the former record and of what all workers tell.

    Every launcher of a round reports its end: the earliest report has the reason.
    """
    former, now = read(dict(before)) or Record(), time.time()
    members: dict[str, int] = {}
    causes: dict[int, dict[str, Any]] = {}
    for part in told:
        members[part["worker"]] = min(part["rank"], members.get(part["worker"], part["rank"]))
        for each in part["incidents"]:
            if each["time"] > (former.began or 0.0):
                causes[each["after"]] = min(each, causes.get(each["after"], each), key=lambda told: told["time"])
    ended = f"round {former.round} ended: " if former.round else ""
    new = [Incident(each["time"], each["worker"], f"{ended}{each['cause']}") for each in causes.values()]
    if gone := [f"worker {name}" for name in former.members if name not in members]:
        new.append(Incident(now, "", f"round {former.round + 1} begins without {', '.join(sorted(gone))}"))
    kept = [*former.incidents, *sorted(new)][-KEPT:]
    return {
        "round": former.round + 1,
        "began": now,
        "started": former.started or now,
        "earlier_seconds": former.trained_seconds(),
        "members": members,
        "incidents": [incident._asdict() for incident in kept],
    }


def ended(codes: Collection[int], reason: str, step: int | None = None) -> str:
    """Why the processes of a worker ended, by their exit codes and the reason that one of them gave."""
    after = f" after step {step}" if step is not None else ""
    if any(code < 0 for code in codes):
        return f"a process was lost ({signal.Signals(-min(codes)).name}){after}"
    if codes and set(codes) <= {EXIT_TERMINATED}:
        return f"asked to leave{after}, and has saved"
    why = reason or "no reason is known"
    return f"begins again{after}: {why}" if codes and set(codes) <= {EXIT_RESTART} else f"ended{after}: {why}"
