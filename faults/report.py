"""Plays faults on processes, judges them, and writes the pages: a fault that is played again replaces its line."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import page
from faults import on_pods, on_processes
from faults.fault import HEADER, Expected, Fault, Place, Result, judge, number
from faults.lab import Lab, make_dataset
from faults.nodes import ROOT

COLUMNS = (*HEADER, "new rounds", "loss - undisturbed", "measured")
ABOUT: dict[Place, tuple[str, str, str]] = {
    "processes": (
        "# Fault matrix",
        "`make chaos`",
        "Three nodes in network namespaces of their own, which share these processors, a real etcd, the trainer's tiny "
        "model; a checkpoint every 40 steps (about 4 s); keep-alive 5 s x 3, last call 5 s, as shipped. Seconds are "
        "the longest pause after the fault, up to the next optimizer step: detection, the new round, and the import of "
        "torch and transformers by all workers at once, 5 s of processor time each. A pod that joins costs a round, "
        "too. Exit codes are those of the pods that were there at the end.",
    ),
    "node": (
        "# Faults of pods",
        "`trainyard local run -- python -m faults --on node`",
        "One training of the tiny model from its beginning to its destruction, on the local Kubernetes node, whose "
        "pods share these processors; a checkpoint every 40 steps; keep-alive 5 s x 3, last call 5 s, as shipped; "
        "etcd is away for a minute. Seconds are the longest pause between two optimizer steps until all pods train "
        "again. Exit codes are those of the pods that went.",
    ),
}
PAGES: dict[Place, Path] = {
    "processes": ROOT / "bench" / "results" / "chaos.md",
    "node": ROOT / "bench" / "results" / "chaos-pods.md",
}
PLAYED: dict[Place, tuple[Fault, ...]] = {
    "processes": tuple(fault for fault in (*on_processes.FAULTS, *on_pods.FAULTS) if "processes" in fault.where),
    "node": on_pods.NODE,
}


def cells(result: Result) -> tuple[str, ...]:
    return (*result.cells, str(result.rounds), number(result.difference, "+.5f"))


class Matrix:
    """Faults on one dataset. Each must end with the loss of an undisturbed run with the same settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dataset = make_dataset(folder / "dataset")
        self._undisturbed: dict[int, float] = {}

    def play(self, fault: Fault) -> Result:
        with Lab(self._folder / fault.name, self._dataset) as lab:
            problem, codes, done, undisturbed = "", list[int](), dict[str, Any](), math.nan
            try:
                codes = fault.play(lab)
                done = lab.done() if fault.done else {}
                undisturbed = self._reference(done["step"]) if fault.done else math.nan
            except (Expected, LookupError) as error:
                problem = (str(error).splitlines() or [type(error).__name__])[0]
            journal = lab.journal()
            for each in lab.journals.values():
                each.end()
            stalls = [journal.longest_pause(moment) for moment in lab.faults]
            seconds = max(stalls, default=math.nan) if math.isfinite(fault.seconds) else math.nan
            rounds = max([1, *(max(pod.round, len(pod.rounds)) for pod in lab.pods)])
            difference = done["validation_loss"] - undisturbed if fault.done and not problem else math.nan
            problem = problem or judge(fault, journal.lost, codes, difference if fault.done else 0.0)
            return Result(fault, problem, journal.lost, seconds, tuple(codes), rounds - 1, difference)

    def _reference(self, steps: int) -> float:
        if steps not in self._undisturbed:
            with Lab(self._folder / f"undisturbed-{steps}", self._dataset) as lab:
                lab.ended(lab.start(1, steps=steps), 600)
                self._undisturbed[steps] = lab.done()["validation_loss"]
        return self._undisturbed[steps]


def page_line(result: Result, others: float) -> str:
    """Return one row of the table."""
    processors = len(os.sched_getaffinity(0))
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M}, {processors} processor{'s' * (processors > 1)}, {others:.0%} busy"
    return f"| {' | '.join((*cells(result), when))} |"


def merge_page(place: Place, lines: Sequence[str], note: str = "", path: Path | None = None) -> None:
    """Write the page of a place with `lines`, and keep the old page's lines of all other faults."""
    path, titles = path or PAGES[place], [fault.title for fault in PLAYED[place]]
    known: dict[str, str] = {}
    for text in [*(path.read_text("utf-8").splitlines() if path.exists() else ()), *lines]:
        if text.startswith("| "):
            known[text.split("|")[1].strip()] = text
    missing = [title for title in titles if title not in known]
    title, command, about = ABOUT[place]
    page.write(
        path,
        title,
        f"{command}. The newest row: {page.describe('torch')}. The last column says when a row was played (UTC), on "
        "how many processors, and which share of the machine others used just before.",
        about,
        [*page.table(COLUMNS, ()), *(known[title] for title in titles if title in known)],
        f"Not played yet: {'; '.join(missing)}." if missing else "",
        note,
    )
