"""Plays rows, judges them, and writes bench/results/chaos.md, where a replayed row replaces its old line."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import page
from chaos.lab import Lab, make_dataset
from chaos.nodes import ROOT
from chaos.row import HEADER, Expected, Result, Row, judge, number
from chaos.rows import ROWS

PAGE = ROOT / "bench" / "results" / "chaos.md"
COLUMNS = (*HEADER, "new rounds", "loss - undisturbed")


def cells(result: Result) -> tuple[str, ...]:
    return (*result.cells, str(result.rounds), number(result.difference, "+.5f"))


class Matrix:
    """Rows on one dataset. Each must end with the loss of an undisturbed run with the same settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dataset = make_dataset(folder / "dataset")
        self._undisturbed: dict[int, float] = {}

    def play(self, row: Row) -> Result:
        with Lab(self._folder / row.name, self._dataset) as lab:
            problem, codes, done, undisturbed = "", list[int](), dict[str, Any](), math.nan
            try:
                codes = row.play(lab)
                done = lab.done() if row.done else {}
                undisturbed = self._reference(done["step"]) if row.done else math.nan
            except (Expected, LookupError) as error:
                problem = (str(error).splitlines() or [type(error).__name__])[0]
            journal = lab.journal()
            for each in lab.journals.values():
                each.end()
            stalls = [journal.longest_pause(fault) for fault in lab.faults]
            seconds = max(stalls, default=math.nan) if math.isfinite(row.seconds) else math.nan
            rounds = max([1, *(max(pod.round, len(pod.rounds)) for pod in lab.pods)])
            difference = done["validation_loss"] - undisturbed if row.done and not problem else math.nan
            problem = problem or judge(row, journal.lost, codes, difference if row.done else 0.0)
            return Result(row, problem, journal.lost, seconds, tuple(codes), rounds - 1, difference)

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


def merge_page(lines: list[str], path: Path = PAGE) -> None:
    """Write the page with `lines`, and keep the old page's lines of all other faults."""
    known: dict[str, str] = {}
    for text in [*(path.read_text("utf-8").splitlines() if path.exists() else ()), *lines]:
        if text.startswith("| "):
            known[text.split("|")[1].strip()] = text
    missing = [row.fault for row in ROWS if row.fault not in known]
    page.write(
        path,
        "# Fault matrix",
        f"`make chaos`. The newest row: {page.describe('torch')}. The last column says when a row was played (UTC), on "
        "how many processors, and which share of the machine others used just before.",
        "Three nodes in network namespaces of their own, which share these processors, a real etcd, the trainer's tiny "
        "model; a checkpoint every 40 steps (about 4 s); keep-alive 5 s x 3, last call 5 s, as shipped. Seconds are "
        "the longest pause after the fault, up to the next optimizer step: detection, the new round, and the import of "
        "torch and transformers by all workers at once, 5 s of processor time each. A pod that joins costs a round, "
        "too. Exit codes are those of the pods that were there at the end.",
        [*page.table((*COLUMNS, "measured"), ()), *(known[row.fault] for row in ROWS if row.fault in known)],
        f"Not played yet: {'; '.join(missing)}." if missing else "",
    )
