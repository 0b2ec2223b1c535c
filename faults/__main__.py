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
from dataclasses import dataclass
from pathlib import Path

from bench import page
from faults.fault import SAME_LOSS, Expected
from faults.lab import Lab, make_dataset
from faults.on_processes import FAULTS, Fault
from local import toolchain

NEEDED = ("ip", "nsenter", "unshare", "tini", toolchain.program("etcd"))
PAGE = page.results() / "chaos.md"
COLUMNS = ("fault", "ended as expected", "steps lost", "s without a step", "new rounds", "loss - undisturbed")
ABOUT = (
    "Three nodes in network namespaces of their own, which share these processors, a real etcd, the trainer's tiny "
    "model; a checkpoint every 40 steps (about 4 s); keep-alive 5 s x 3, last call 5 s, as shipped. Seconds are the "
    "longest pause after the fault, up to the next optimizer step: detection, the new round, and the import of torch "
    "and transformers by all workers at once, 5 s of processor time each. A pod that joins costs a round, too."
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    known = {fault.name: fault for fault in FAULTS}
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="default: all")
    options = parser.parse_args()
    if unknown := [name for name in options.faults if name not in known]:
        parser.error(f"no fault {unknown[0]}; allowed: {', '.join(known)}")
    if problem := unmet():
        print(f"error: {problem}", file=sys.stderr)
        return 2
    load, results = page.load(), list[Result]()
    with tempfile.TemporaryDirectory(prefix="trainyard-chaos-") as temporary:
        folder = Path(temporary)
        dataset, undisturbed = make_dataset(folder / "dataset"), dict[int, float]()
        for fault in (known[name] for name in options.faults or known):
            results.append(play(fault, folder, dataset, undisturbed))
            print(*results[-1].cells, sep="  ", flush=True)
    if not options.faults:
        machine = f"`make chaos`: {page.describe('torch')}; {load}."
        page.write(PAGE, "# Fault matrix", machine, ABOUT, page.table(COLUMNS, (result.cells for result in results)))
    return int(any(result.problem or result.slow for result in results))


def unmet() -> str:
    """What this machine lacks for a laboratory; empty: nothing."""
    if os.geteuid() != 0:
        return "chaos needs root, for network namespaces; run it with sudo"
    missing = [name for name in NEEDED if not shutil.which(name)]
    return f"missing: {', '.join(missing)}; make chaos builds etcd, apt-get has the rest" if missing else ""


@dataclass(frozen=True)
class Result:
    fault: Fault
    lost: int
    codes: list[int]
    difference: float
    """Of the validation loss, from that of an undisturbed run of as many steps."""
    seconds: float = math.nan
    """The longest pause between two steps after the fault."""
    rounds: int = 0
    broken: str = ""
    """What the fault itself found wrong."""

    @property
    def problem(self) -> str:
        """What is wrong with the end of the training; empty: nothing."""
        if self.broken:
            return self.broken
        if not abs(self.difference) <= SAME_LOSS:  # NaN is off, too
            return f"the loss is {self.difference:+.4f} off"
        if any(self.codes):
            return f"exit codes {self.codes}"
        allowed = self.fault.steps_lost
        return f"{self.lost} steps lost, {allowed} allowed" if self.lost > allowed else ""

    @property
    def slow(self) -> bool:
        """Whether recovery took longer than allowed on an idle machine."""
        return self.seconds > self.fault.seconds

    @property
    def cells(self) -> tuple[str, ...]:
        """Of COLUMNS."""
        well = f"yes, but slower than {self.fault.seconds:.0f} s" if self.slow else "yes"
        figures = (str(self.lost), f"{self.seconds:.1f}", str(self.rounds), f"{self.difference:+.5f}")
        return (self.fault.title, self.problem or well, *figures)


def play(fault: Fault, folder: Path, dataset: Path, undisturbed: dict[int, float]) -> Result:
    """Play a fault in a laboratory of its own. `undisturbed`: losses of undisturbed runs by their steps, as known."""
    with Lab(folder / fault.name, dataset) as lab:
        broken, codes, difference = "", list[int](), math.nan
        try:
            codes, done = fault.play(lab), lab.done()
            if (steps := done["step"]) not in undisturbed:
                with Lab(folder / f"undisturbed-{steps}", dataset) as alone:
                    alone.ended(alone.start(1, steps=steps), 600)
                    undisturbed[steps] = alone.done()["validation_loss"]
            difference = done["validation_loss"] - undisturbed[steps]
        except (Expected, LookupError) as error:
            broken = (str(error).splitlines() or [type(error).__name__])[0]
        lab.journal.end()
        seconds = max((lab.journal.longest_pause(moment) for moment in lab.faults), default=math.nan)
        rounds = max([1, *(max(pod.round, len(pod.rounds)) for pod in lab.pods)])
        return Result(fault, lab.journal.lost, codes, difference, seconds, rounds - 1, broken)


if __name__ == "__main__":
    sys.exit(main())
