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
WHOLE = ("step", "steps", "validation_step", "world_size", "round", "rank", "checkpoint", "resumed")
FRACTIONS = (
    *("loss", "validation_loss", "initial_validation_loss", "bits_per_byte", "f1", "exact_match"),
    *("tokens_per_second", "eta_seconds", "updated", "began", "started", "earlier_seconds"),
)
"""Figures that commands show, by their type. Fractions beyond LARGEST, infinities and NaN are none."""
LARGEST = 1e15


class Incident(NamedTuple):
    """Why a round ended, or what else whoever follows the training should know of."""

    time: float
    """Seconds since 1970."""
    worker: str
    cause: str


@dataclass(frozen=True)
class Record:
    """What a record says; values of an unexpected type are left out: pods and the volume may say anything."""

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
    known, times, events = figures(found), found.get("times"), found.get("incidents")
    updated = known.pop("updated", 0.0)
    if not isinstance(times, dict):
        times = dict.fromkeys(known, updated)
    return Record(
        state=str(found.get("state") or "")[:100],
        message=str(found.get("message") or "")[:MESSAGE_CHARACTERS],
        round=known.pop("round", 0),
        began=known.pop("began", None),
        started=known.pop("started", None),
        earlier_seconds=known.pop("earlier_seconds", 0.0),
        members=_ranks(found.get("members")),
        checkpoint=known.pop("checkpoint", None),
        resumed=known.pop("resumed", None),
        figures=known,
        times={str(key): when for key, value in times.items() if (when := number(value)) is not None},
        incidents=tuple(filter(None, map(_incident, events[-KEPT:] if isinstance(events, list) else []))),
        data=str(found.get("data") or "")[:100],
        updated=updated,
    )


def _ranks(members: Any) -> dict[str, int]:
    found = members.items() if isinstance(members, dict) else ()
    return {str(worker): rank for worker, rank in found if type(rank) is int and rank >= 0}


def _incident(told: Any) -> Incident | None:
    when = number(told.get("time")) if isinstance(told, dict) else None
    return (
        None
        if when is None
        else Incident(when, str(told.get("worker") or ""), str(told.get("cause") or "?")[:CAUSE_CHARACTERS])
    )


def of_line(line: str) -> Record | None:
    """The record that a line of a log is, or None."""
    if not line.startswith(f"{PREFIX}{{"):
        return None
    try:
        return read(json.loads(line.removeprefix(PREFIX)))
    except (ValueError, RecursionError):
        return None


def line(content: Mapping[str, Any]) -> str:
    return PREFIX + json.dumps(content, separators=(",", ":"))


def newest(records: Iterable[Record | None]) -> Record:
    """The record that was written last; an empty one where there is none."""
    return max(filter(None, records), key=Record.age, default=Record())


def figures(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The known figures of a record that anybody may have written: those that are numbers of their type."""
    found = {name: number(fields.get(name)) for name in (*WHOLE, *FRACTIONS)}
    whole = {name: int(value) for name, value in found.items() if name in WHOLE and value is not None and value >= 0}
    return whole | {name: value for name, value in found.items() if name in FRACTIONS and value is not None}


def number(value: Any) -> float | None:
    try:
        found = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if abs(found) < LARGEST else None


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
        return f"a process was lost ({signal_name(-min(codes))}){after}"
    if codes and set(codes) <= {EXIT_TERMINATED}:
        return f"asked to leave{after}, and has saved"
    why = reason or "no reason is known"
    return f"begins again{after}: {why}" if codes and set(codes) <= {EXIT_RESTART} else f"ended{after}: {why}"


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
