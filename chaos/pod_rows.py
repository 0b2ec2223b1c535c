"""Faults of pods on a real cluster, played one after the other on one training without a restart of the Job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from chaos.nodes import ROOT
from chaos.pods import End, Pods
from chaos.row import Expected, Result, Row, expect, judge
from chaos.stack import Stack
from trainer.contract import EXIT_TERMINATED

WORKERS = 3
PERIOD = 20
"""Steps between two checkpoints."""
ABSENCE = 60
"""Seconds without etcd."""
STACK: dict[str, Any] = {
    # Three workers fit on a node with two processors. Without a limit, each takes what is free.
    "workers": {"count": 1, "min": 1, "cpu": 0.3, "memoryGib": 2},
    "tensorboard": {"enabled": False},
    "training": {
        "model": {"preset": "tiny"},
        # More steps than there is time for: the training runs until the stack is destroyed.
        "steps": 100_000,
        "tokensPerStep": 384,
        "sequenceLength": 64,
        "microBatch": 1,
        "precision": "fp32",
        "optimizer": {"learningRate": 0.001, "warmupSteps": 10, "schedule": "constant"},
        # An evaluation after each step slows the training down, as Pods.rest() does, and changes no loss. The
        # undisturbed run leaves it out, and soon has made as many steps.
        "evaluation": {"every": 1, "batches": 24, "sampleTokens": 4},
        "checkpoint": {"everySteps": PERIOD},
        "metrics": {"every": 1, "tensorboard": False},
    },
}


def scale_out(pods: Pods, stack: Stack) -> list[End]:
    stack.write(workers={"count": WORKERS})
    stack.up()
    pods.world(WORKERS)
    return []


def scale_in(pods: Pods, stack: Stack) -> list[End]:
    leaving = [name for index, name in pods.running().items() if index > 0]
    stack.write(workers={"count": 1})
    stack.up()
    ends = [pods.end(name) for name in leaving]
    pods.world(1)
    return asked_to_leave(ends)


def deleted(pods: Pods, _: Stack) -> list[End]:
    return asked_to_leave([replaced(pods, 2, pods.delete)])


def deleted_at_once(pods: Pods, _: Stack) -> list[End]:
    return [replaced(pods, 1, lambda name: pods.delete(name, grace=0))]


def evicted(pods: Pods, _: Stack) -> list[End]:
    end = replaced(pods, 0, pods.evict)
    expect("EvictionByEvictionAPI" in end.reasons, f"the eviction is no reason for the Job: {end.reasons}")
    return asked_to_leave([end])


def etcd_absent(pods: Pods, _: Stack) -> list[End]:
    """Kill etcd's pod. It returns after a minute, without its data."""
    there, before = pods.running(), pods.training()["round"]
    pods.scale_etcd(0)
    begin = time.time()
    pods.more_steps(5)
    time.sleep(max(0.0, begin + ABSENCE - time.time()))
    expect(pods.journal.longest_pause(begin) < ABSENCE / 4, "the training waited for etcd")
    pods.wake()
    pods.scale_etcd(1)
    pods.until(pods.etcd_ready, 60, "etcd's pod")
    # The agents notice that the new etcd does not know them, and the same pods form a new round.
    pods.until(lambda: pods.training().get("round") != before, 60, "a round at the new etcd")
    pods.world(WORKERS)
    expect(pods.running() == there, f"pods were lost: {there} became {pods.running()}")
    return []


ROWS = (
    Row("scale-out", f"scaled from 1 to {WORKERS} by pulumi up", scale_out),
    Row("deleted", "pod deleted with grace", deleted, seconds=20),
    Row("deleted-at-once", "pod deleted with grace 0", deleted_at_once, steps_lost=PERIOD + 2),
    Row("evicted", "pod evicted: a notice", evicted, seconds=20),
    Row("etcd-absent", f"etcd's pod killed, {ABSENCE} s without etcd", etcd_absent),
    Row("scale-in", f"scaled from {WORKERS} to 1 by pulumi up", scale_in, seconds=20),
)


def replaced(pods: Pods, index: int, fault: Callable[[str], None]) -> End:
    """Break the pod of an index. The others continue, and a new pod joins them."""
    before = pods.running()
    fault(before[index])
    end = pods.end(before[index])
    pods.world(WORKERS)
    after = pods.running()
    expect(after.pop(index) != before.pop(index), f"pod {index} is still the old one")
    expect(after == before, f"the others did not stay: {before} became {after}")
    return end


def asked_to_leave(ends: list[End]) -> list[End]:
    codes = [end.code for end in ends]
    expect(
        set(codes) == {EXIT_TERMINATED}, f"exit codes {codes} of pods that were asked to leave, not {EXIT_TERMINATED}"
    )
    return ends


def play(row: Row, pods: Pods, stack: Stack) -> Result:
    """Break the training, wait for its recovery, and judge it."""
    pods.rest()
    # Make steps after the last checkpoint, which a fault can lose.
    pods.more_steps(4)
    before, begin = pods.journal.lost, time.time()
    problem, ends = "", list[End]()
    try:
        ends = row.play(pods, stack)
        job = pods.job_now()
        expect(job["metadata"]["uid"] == pods.uid, "the Job is another one")
        expect(not job["status"].get("failedIndexes"), f"an index was given up: {job['status']}")
    except Expected as error:
        problem = str(error) or "an expectation failed"
    lost, codes = pods.journal.lost - before, tuple(end.code for end in ends)
    return Result(row, problem or judge(row, lost), lost, pods.journal.longest_pause(begin), codes)


def losses(run: Path) -> dict[int, float]:
    """Map each step of a run to its loss."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


def difference(pods: Pods) -> float:
    """Return the largest difference, over all steps, between the loss and that of an undisturbed training."""
    made = losses(pods.run)
    expect(sorted(made) == list(range(1, len(made) + 1)), "a step is missing in metrics.jsonl, or is there twice")
    with tempfile.TemporaryDirectory(prefix="trainyard-pods-") as folder:
        undisturbed(pods, Path(folder), len(made))
        wanted = losses(Path(folder) / "run")
    return float(np.abs([made[step] - wanted[step] for step in made]).max())  # NaN if a loss is


def undisturbed(pods: Pods, folder: Path, steps: int) -> None:
    """Run the pods' training in one process of this machine, for this many steps."""
    data = pods.run.parents[1]
    arguments = {text.partition("=")[0]: text.partition("=")[2] for text in pods.arguments}
    arguments |= {
        "data.directory": arguments["data.directory"].replace("/data", str(data), 1),
        "run.directory": str(folder / "run"),
        "steps": str(steps),
        "evaluation.every": str(steps),
        "evaluation.batches": "1",
        "checkpoint.every_steps": str(steps),
    }
    command = [sys.executable, "-m", "trainer.launch", "--standalone", "--"]
    command += [f"{key}={value}" for key, value in arguments.items()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"the undisturbed run ended with {done.returncode}: {done.stderr[-500:]}")
