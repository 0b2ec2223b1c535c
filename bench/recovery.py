"""How long a training stands still after a fault, under this launcher and under torchrun: `python -m bench.recovery`.

Both start the same worker, `trainer.train`, on two machines of the laboratory (faults/lab.py): the launcher with etcd,
torchrun with its c10d rendezvous on the machine that stays. torchrun has its defaults, but may restart workers and
train with one node; without both it ends at the first fault. Root.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

from bench import page
from faults.__main__ import unmet
from faults.lab import Lab, make_dataset
from local import toolchain
from trainer.contract import WORKER

FAULTS = ("SIGKILL of a worker", "SIGTERM of a node")
TIMES = 3
STEPS = 20
"""Steps after which a fault counts as overcome: some more may be made before the workers notice it."""
SECONDS = 300
"""The longest wait for them."""
ABOUT = (
    "Seconds of the longest pause between two optimizer steps after the fault, {times} times, and the ratio of the "
    "medians. Two nodes of one worker each in network namespaces of this machine, the trainer's tiny model, a "
    "checkpoint every 40 steps. Nothing replaces the node that left. torchrun: `--nnodes 1:2 "
    "--max-restarts 100 --rdzv-backend c10d`, else its defaults."
)


class Torchrun(Lab):
    """The laboratory with torchrun in place of the launcher."""

    def launch(self, machine: str, arguments: list[str]) -> list[str]:
        options = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "100", "--rdzv-backend", "c10d"]
        options += ["--rdzv-endpoint", f"{self.network.addresses['n0']}:29400", "--rdzv-id", "job"]
        options += ["--local-addr", self.network.addresses[machine]]
        # torchrun would tell by the host's name, which all machines of the laboratory have.
        options += ["--rdzv-conf", f"is_host={int(machine == 'n0')}"]
        return ["-m", "torch.distributed.run", *options, "-m", WORKER, *arguments]


def measure(lab: Lab) -> Iterator[float]:
    """Break a training in the order of FAULTS. Yields seconds without a step."""
    pod = lab.start(2, steps=1_000_000)[1]
    lab.step(60)
    yield pause(lab, pod.processes()[-1].kill)
    yield pause(lab, pod.init().terminate)


def pause(lab: Lab, happens: Callable[[], object]) -> float:
    begin = time.time()
    happens()
    lab.more_steps(STEPS, SECONDS)
    return lab.journal.longest_pause(begin)


def main() -> int:
    if problem := unmet():
        print(f"error: {problem}", file=sys.stderr)
        return 2
    load = page.load()
    found: dict[type[Lab], list[list[float]]] = {Torchrun: [], Lab: []}
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as temporary:
        dataset = make_dataset(Path(temporary) / "dataset")
        for number in range(TIMES):
            for kind, results in found.items():
                with kind(Path(temporary) / f"{kind.__name__}-{number}", dataset) as lab:
                    results.append(list(measure(lab)))
                print(kind.__name__, shown(results[-1]), flush=True)
    rows = []
    for fault, peer, ours in zip(FAULTS, *(zip(*results, strict=True) for results in found.values()), strict=True):
        rows.append((fault, shown(peer), shown(ours), f"{median(ours) / median(peer):.2f}"))
    page.write(
        page.results() / "recovery.md",
        "# Recovery, and torchrun's",
        f"`python -m bench.recovery`: {page.describe('torch')}; etcd {toolchain.version(toolchain.BY_NAME['etcd'])}; "
        f"{load}.",
        ABOUT.format(times=TIMES),
        page.table(("after", "torchrun, s", "trainer.launch, s", "ratio"), rows),
    )
    return 0


def shown(seconds: Iterable[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in seconds)


if __name__ == "__main__":
    sys.exit(main())
