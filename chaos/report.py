"""Plays rows, judges them, and writes bench/results/chaos.md: rows that were played anew replace their old lines."""

from __future__ import annotations

import math
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chaos.lab import Lab, find_etcd, make_dataset
from chaos.nodes import ROOT
from chaos.row import Expected, Result, Row, judge, number
from chaos.rows import ROWS

PAGE = ROOT / "bench" / "results" / "chaos.md"
CALM_SECONDS = 2.0

HEADER = (
    "fault",
    "ended as expected",
    "steps lost",
    "s without a step",
    "exit codes",
    "new rounds",
    "loss - undisturbed",
)


def cells(result: Result) -> tuple[str, ...]:
    return (*result.cells, str(result.rounds), number(result.difference, "+.5f"))


class Matrix:
    """Rows over one data set, each held to the loss of an undisturbed run of the same settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dataset, self._etcd = make_dataset(folder / "dataset"), find_etcd()
        self._undisturbed: dict[int, float] = {}

    def play(self, row: Row) -> Result:
        with Lab(self._folder / row.name, self._dataset, self._etcd) as lab:
            problem, codes, done, undisturbed = "", list[int](), dict[str, Any](), math.nan
            try:
                codes = row.play(lab)
                done = lab.done() if row.done else {}
                undisturbed = self._reference(done["step"]) if row.done else math.nan
            except (Expected, LookupError) as error:
                problem = str(error).splitlines()[0]
            journal = lab.journal()
            for each in lab.journals.values():
                each.end()
            stalls = [journal.longest_pause(fault) for fault in lab.faults]
            seconds = max(stalls, default=math.nan) if math.isfinite(row.seconds) else math.nan
            rounds = max([pod.round for pod in lab.pods], default=0)
            difference = done["validation_loss"] - undisturbed if row.done and not problem else math.nan
            problem = problem or judge(row, journal.lost, codes, difference)
            return Result(row, problem, journal.lost, seconds, tuple(codes), max(0, rounds - 1), difference)

    def _reference(self, steps: int) -> float:
        if steps not in self._undisturbed:
            with Lab(self._folder / f"undisturbed-{steps}", self._dataset, self._etcd) as lab:
                lab.ended(lab.start(1, steps=steps), 600)
                self._undisturbed[steps] = lab.done()["validation_loss"]
        return self._undisturbed[steps]


def busy() -> float:
    """The share of the processors that others use now, 0 to 1; to be asked before a row begins."""
    before = _processor_time()
    time.sleep(CALM_SECONDS)
    idle, total = (after - then for after, then in zip(_processor_time(), before, strict=True))
    return 1 - idle / total


def _processor_time() -> tuple[int, int]:
    """Idle and all ticks since the start (proc(5): cpu's fourth and fifth figure are idle and iowait)."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)


def page_line(result: Result, others: float) -> str:
    """One row of the table."""
    processors = len(os.sched_getaffinity(0))
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M}, {processors} processor{'s' * (processors > 1)}, {others:.0%} busy"
    return f"| {' | '.join((*cells(result), when))} |"


def merge_page(lines: list[str], path: Path = PAGE) -> None:
    """Write the page with `lines`, and with the old page's lines for the faults that are not among them."""
    known: dict[str, str] = {}
    for text in [*(path.read_text("utf-8").splitlines() if path.exists() else ()), *lines]:
        if text.startswith("| "):
            known[_fault(text)] = text
    import torch

    head = (*HEADER, "measured")
    page = [
        "# Fault matrix",
        "",
        f"`make chaos`: {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}. The last "
        "column says when a row was played (UTC), on how many processors, and which share of the machine others used "
        "just before.",
        "",
        "Three nodes in network namespaces of their own, which share these processors, a real etcd, the trainer's tiny "
        "model; a checkpoint every 40 steps (about 4 s); keep-alive 5 s x 3, last call 5 s, as shipped. Seconds are "
        "the longest pause after the fault, up to the next optimizer step: detection, the new round, and the import of "
        "torch and transformers by all workers at once, 5 s of processor time each. A pod that joins costs a round, "
        "too. Exit codes are those of the pods that were there at the end.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(known[row.fault] for row in ROWS if row.fault in known),
    ]
    missing = [row.fault for row in ROWS if row.fault not in known]
    if missing:
        page += ["", f"Not played yet: {'; '.join(missing)}."]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(page) + "\n", encoding="utf-8")


def _fault(text: str) -> str:
    return text.split("|")[1].strip()
