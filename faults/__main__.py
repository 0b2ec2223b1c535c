"""`python -m faults [FAULT ...]`: break a rendezvous in every way; all of them write bench/results/chaos.md (root).

`trainyard prove` breaks the pods of a cluster.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import page
from faults.fault import COLUMNS, Expected, Fault, Result, judge
from faults.lab import Lab, make_dataset
from faults.on_processes import FAULTS
from local import toolchain

NEEDED = ("ip", "nsenter", "unshare", "tini", toolchain.program("etcd"))
PAGE = page.results() / "chaos.md"
ABOUT = (
    "Three nodes in network namespaces of their own, which share these processors, a real etcd, the trainer's tiny "
    "model; a checkpoint every 40 steps (about 4 s); keep-alive 5 s x 3, last call 5 s, as shipped. Seconds are the "
    "longest pause after the fault, up to the next optimizer step: detection, the new round, and the import of torch "
    "and transformers by all workers at once, 5 s of processor time each. A pod that joins costs a round, too."
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="default: all")
    options = parser.parse_args()
    names = [fault.name for fault in FAULTS]
    if unknown := [name for name in options.faults if name not in names]:
        parser.error(f"no fault {unknown[0]}; allowed: {', '.join(names)}")
    if problem := unmet():
        print(f"error: {problem}", file=sys.stderr)
        return 2
    load, results = page.load(), list[Result]()
    with tempfile.TemporaryDirectory(prefix="trainyard-chaos-") as temporary:
        matrix = Matrix(Path(temporary))
        for fault in FAULTS:
            if fault.name in (options.faults or names):
                results.append(matrix.play(fault))
                print(*results[-1].cells, sep="  ", flush=True)
    if not options.faults:
        write(results, load)
    return int(any(result.problem or result.slow for result in results))


def unmet() -> str:
    """What this machine lacks for a laboratory; empty: nothing."""
    if os.geteuid() != 0:
        return "chaos needs root, for network namespaces; run it with sudo"
    missing = [name for name in NEEDED if not shutil.which(name)]
    return f"missing: {', '.join(missing)}; make chaos builds etcd, apt-get has the rest" if missing else ""


def write(results: list[Result], load: str, path: Path = PAGE) -> None:
    machine = f"`make chaos`: {page.describe('torch')}; {load}."
    page.write(path, "# Fault matrix", machine, ABOUT, page.table(COLUMNS, (result.cells for result in results)))


class Matrix:
    """Faults on one dataset. Each must end with the loss of an undisturbed run of as many steps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._dataset = make_dataset(folder / "dataset")
        self._undisturbed: dict[int, float] = {}

    def play(self, fault: Fault) -> Result:
        with Lab(self._folder / fault.name, self._dataset) as lab:
            problem, codes, difference = "", list[int](), math.nan
            try:
                codes, done = fault.play(lab), lab.done()
                difference = done["validation_loss"] - self._reference(done["step"])
            except (Expected, LookupError) as error:
                problem = (str(error).splitlines() or [type(error).__name__])[0]
            lab.journal.end()
            seconds = max((lab.journal.longest_pause(moment) for moment in lab.faults), default=math.nan)
            rounds = max([1, *(max(pod.round, len(pod.rounds)) for pod in lab.pods)])
            problem = problem or judge(fault, lab.journal.lost, codes, difference)
            return Result(fault, problem, lab.journal.lost, seconds, rounds - 1, difference)

    def _reference(self, steps: int) -> float:
        if steps not in self._undisturbed:
            with Lab(self._folder / f"undisturbed-{steps}", self._dataset) as lab:
                lab.ended(lab.start(1, steps=steps), 600)
                done: dict[str, Any] = lab.done()
                self._undisturbed[steps] = done["validation_loss"]
        return self._undisturbed[steps]


if __name__ == "__main__":
    sys.exit(main())
