"""The gain of two workers on a slow link over one: `python -m bench.trainer.scaling` (root, two cores, 6 minutes).

Each worker is `trainer.train` in its own network namespace, pinned to one core; tc limits the link's rate with a token
bucket. The limited rate stands for a real link if exchange and computation have the same ratio as there:

    rate here = rate there x (seconds of computing there / here) x (bytes here / there)

- C3: 16 Gbit/s for c3-highmem-8. 32,768 tokens a step and node (Intel's tutorial) at 3,600 tokens/s take 9.1 s: 25 % of
  the AMX peak of 4 cores at 3.0 GHz, an optimistic node and so a hard test. It sends 4 bytes x 124.4 M parameters.
- g4dn: 5 Gbit/s (its base rate). 524,288 tokens a step on 4 nodes at 20,000 tokens/s (T4, fp16) take 6.6 s. A ring of 4
  sends 2 x 3/4 of the same 498 MB, a ring of two 2 x 1/2.

Here the preset micro (0.9 M parameters) makes steps of 32,768 tokens; a run of one worker measures the time of
computation first. Efficiency is the tokens/s of two workers over twice those of one, and over those of two that never
communicate, which slow each other down because they share caches and memory. Each figure is from the fastest two
consecutive steps, since other programs can only slow a step down.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import page
from bench.trainer import setup
from faults.network import Network
from trainer.launch import MALLOC

STEPS = 4
"""Measured steps, after a first that does not count. The fastest two in a row give the figure."""
TOKENS_PER_STEP = 32_768
BYTES_THERE = 4 * 124.4e6
PATIENCE_SECONDS = 240
COLUMNS = ("what", "tokens/s", "step, s", "waiting, s", "MB sent a step (metrics / interface)", "efficiency")
COLUMNS += ("against two that do not talk",)


@dataclass(frozen=True)
class Node:
    name: str
    gigabits: float
    compute_seconds: float
    """Seconds of computation of one step, on one node."""
    ring: float
    """What a node sends in a step, as a multiple of the gradient's size."""


C3 = Node("C3, 16 Gbit/s", 16, 32_768 / 3_600, 1.0)
G4DN = Node("g4dn, 5 Gbit/s", 5, 524_288 / 4 / 20_000, 1.5)


@dataclass(frozen=True)
class Measured:
    tokens_per_second: float
    step_seconds: float
    waited_seconds: float
    """Seconds of a step that the worker waited for the exchange."""
    said_bytes: float
    """bytes_sent_per_step of the trainer's metrics."""
    sent_bytes: float
    """Bytes a step by the network interface's counter, headers included."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.trainer.scaling", description="Two workers on a slow link.")
    parser.add_argument("--node", choices=("c3", "g4dn", "all"), default="all", help="which link; all: both")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if os.geteuid() != 0:
        parser.error("needs root, for network namespaces; run it with sudo")
    if len(cores) < 2:
        parser.error("needs two cores, one for each worker; this process may use one")
    with tempfile.TemporaryDirectory(prefix="scaling-") as name:
        folder = Path(name)
        data = setup.dataset(folder / "data", 500)
        rows: list[tuple[str, Measured]] = []
        alone = run(folder / "alone", data, cores[:1], rate=None)[0]
        rows.append(("1 worker", alone))
        found = run(folder / "strangers", data, cores, rate=None, strangers=True)
        rates = sum(each.tokens_per_second for each in found)
        strangers = Measured(rates, statistics.mean(each.step_seconds for each in found), 0, 0, 0)
        rows.append(("2 workers that do not talk (each 1 of 1)", strangers))
        for node in [C3] * (options.node != "g4dn") + [G4DN] * (options.node != "c3"):
            rate = link(node, alone.step_seconds / 2)
            for label in ("fp32", "bf16"):
                compression = f"communication.compression={'none' if label == 'fp32' else label}"
                found = run(folder / f"{node.gigabits:g}-{label}", data, cores, rate, compression)[0]
                rows.append((f"2 workers, {node.name} = {rate / 1e6:.0f} Mbit/s here, {label} gradients", found))
                print(rows[-1], flush=True)
        write(rows, alone, strangers)
    return 0


def link(node: Node, compute_seconds: float) -> float:
    """Return the bits/s here that stand for the node's link. `compute_seconds`: of one worker's half of a step."""
    return node.gigabits * 1e9 * node.compute_seconds / compute_seconds * gradient_bytes() / (BYTES_THERE * node.ring)


def gradient_bytes() -> float:
    """Return the bytes that each of two workers sends in a step in fp32: 2 x 1/2 of the gradient."""
    from trainer.models import networks

    return 4.0 * sum(value.numel() for value in networks.build("micro", 500, 0, seed=0).parameters())


def run(
    folder: Path, data: str, cores: list[int], rate: float | None, *changes: str, strangers: bool = False
) -> list[Measured]:
    """Train with one worker on each core until the steps are measured; return the figures of each training.

    `strangers`: each worker is a training of its own.
    """
    folders = [folder / str(number) if strangers else folder for number in range(len(cores))]
    workers: list[subprocess.Popen[bytes]] = []
    with laboratory(len(cores), rate) as network:
        try:
            for number, (machine, core) in enumerate(zip(network.machines, cores, strict=True)):
                rank = (0, 1) if strangers else (number, len(cores))
                workers.append(start(network, machine, rank, core, folders[number], data, changes))
            return [measure(each, network, workers) for each in dict.fromkeys(folders)]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


@contextlib.contextmanager
def laboratory(machines: int, rate: float | None) -> Iterator[Network]:
    with Network() as network:
        for number in range(machines):
            machine = f"w{number}"
            network.add(machine, number + 1)
            if rate is not None:
                # The bucket holds what the link carries in 4 ms: a bucket of less than tc's tick loses throughput.
                shape = f"tc qdisc add dev eth0 root tbf rate {rate:.0f}bit burst {max(100_000, rate / 8 * 0.004):.0f} "
                shape += "latency 100ms"
                subprocess.run([*network.enter(machine), *shape.split()], check=True)
        yield network


def start(
    network: Network, machine: str, rank: tuple[int, int], core: int, folder: Path, data: str, changes: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    """Start a worker. `rank`: its own, of how many."""
    master = next(iter(network.machines.values()))
    environment = os.environ | {"RANK": str(rank[0]), "WORLD_SIZE": str(rank[1]), "LOCAL_RANK": "0"}
    environment |= {"MASTER_ADDR": master, "MASTER_PORT": "29501", "GLOO_SOCKET_IFNAME": "eth0"}
    environment |= {"GLIBC_TUNABLES": MALLOC, "OMP_NUM_THREADS": "1"}
    settings = {
        "data.directory": data,
        "run.directory": folder,
        "model.preset": "micro",
        "tokens_per_step": TOKENS_PER_STEP,
        "sequence_length": 256,
        "micro_batch": 16,
        "communication.bucket_megabytes": 1,
        "precision": "bf16",
        "steps": 1000,
    }
    command = [*network.enter(machine), "taskset", "-c", str(core), *setup.train(settings), *changes]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"worker-{machine}.log", "wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def measure(folder: Path, network: Network, workers: list[subprocess.Popen[bytes]]) -> Measured:
    deadline = time.monotonic() + PATIENCE_SECONDS
    machine = next(iter(network.machines))
    counted: dict[int, int] = {}
    while True:
        lines = steps(folder)
        if lines:
            counted.setdefault(int(lines[-1]["step"]), transmitted(network, machine))
        if len(lines) > STEPS:
            break
        ended = [worker.returncode for worker in workers if worker.poll() is not None]
        if ended or time.monotonic() > deadline:
            logs = "\n".join(path.read_text("utf-8")[-1500:] for path in folder.glob("worker-*.log"))
            late = f"fewer than {STEPS} steps within {PATIENCE_SECONDS} s"
            reason = f"a worker ended with code {ended[0]} before {STEPS} steps" if ended else late
            raise SystemExit(f"{reason}:\n{logs}")
        time.sleep(0.02)
    first, last = min(counted), max(counted)
    fastest = min(itertools.pairwise(lines[1 : STEPS + 1]), key=lambda pair: sum(line["step_seconds"] for line in pair))
    seconds = statistics.mean(line["step_seconds"] for line in fastest)
    return Measured(
        TOKENS_PER_STEP / seconds,
        seconds,
        statistics.mean(line["communication_seconds"] for line in fastest),
        statistics.mean(line["bytes_sent_per_step"] for line in fastest),
        (counted[last] - counted[first]) / max(1, last - first),
    )


def steps(folder: Path) -> list[dict[str, float]]:
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    complete = [text for text in path.read_text("utf-8").splitlines(keepends=True) if text.endswith("\n")]
    return [line for line in map(json.loads, complete) if "loss" in line]


def transmitted(network: Network, machine: str) -> int:
    command = [*network.enter(machine), "ip", "-s", "-j", "link", "show", "dev", "eth0"]
    found = subprocess.run(command, capture_output=True, check=True)
    return int(json.loads(found.stdout)[0]["stats64"]["tx"]["bytes"])


def write(rows: list[tuple[str, Measured]], alone: Measured, strangers: Measured) -> None:
    def cells(label: str, found: Measured) -> tuple[object, ...]:
        rate = found.tokens_per_second
        shares = (rate / alone.tokens_per_second / 2, rate / strangers.tokens_per_second)
        return (
            label,
            f"{rate:.0f}",
            f"{found.step_seconds:.2f}",
            f"{found.waited_seconds:.2f}",
            f"{found.said_bytes / 1e6:.2f} / {found.sent_bytes / 1e6:.2f}",
            *(None if found is alone else f"{share:.0%}" for share in shares),
        )

    text = page.write(
        page.results() / "scaling.md",
        "# Two workers on a slow link",
        f"`python -m bench.trainer.scaling`, which says how the links were scaled. {page.describe('torch')}. One core "
        f"a worker; the fastest two of {STEPS} steps of {TOKENS_PER_STEP:,} tokens, after a first.",
        page.table(COLUMNS, (cells(*row) for row in rows)),
    )
    print(text)


if __name__ == "__main__":
    sys.exit(main())
