"""What the trainer, whoever starts it (workloads/) and whoever reads its run folder (cli/, prove/) agree on.

This module imports nothing, so that none of them needs torch for it.
"""

# Exit codes: the Job decides by them whether a pod is replaced.
EXIT_DONE = 0
EXIT_BROKEN = 1
"""This node cannot train, others may: the Job counts a failure of its pod, and gives up that index after some."""
EXIT_FATAL = 42
"""Bad configuration, bad data, NaN: the same again would fail the same. Never retried."""
EXIT_RESTART = 75
"""Nothing wrong with this process; start it again (sysexits.h: EX_TEMPFAIL)."""
EXIT_TERMINATED = 143
"""Ended by SIGTERM (128 + 15) after saving."""

# Ports of the rendezvous.
ETCD_PORT = 2379
STORE_PORT = 29400
"""Of the c10d store (trainer/store.py)."""

# Environment variables.
BIND_CORES = "TRAINYARD_BIND_CORES"
"""`1`: the node's cores belong to the training, so OpenMP's threads are tied to them (elastic/processor.py)."""
DEVICE = "TRAINYARD_DEVICE"
"""`cuda`: the node has accelerators, and is paid for them (parallel/world.py)."""
CACHE_KEY = "TRAINYARD_CACHE_KEY"
"""Signs what train/compiled.py keeps on the shared volume."""
TERMINATION_LOG = "TRAINYARD_TERMINATION_LOG"
"""Where the launcher's last words go instead of /dev/termination-log."""

# Files of a folder that trainer.fetch writes.
FETCHED = "fetched.json"
"""Written last, with the name of what was fetched: a folder without it is incomplete and fetched again."""

# Files of a run directory.
STATUS = "status.json"
METRICS = "metrics.jsonl"
DONE = "DONE"
"""Written last: JSON with the final step, losses and checkpoint."""
EVALUATIONS = "evaluations"
"""A folder: what benchmarks said of the checkpoint of each step (export/evaluations.py)."""
MANIFEST = "manifest.json"
"""Of a checkpoint, written last: a checkpoint without it is incomplete (checkpoint/format.py)."""


def checkpoint_name(step: int) -> str:
    """Name of a checkpoint's folder in the run's folder checkpoints/."""
    return f"step-{step:08d}"


def checkpoint_step(name: str) -> int | None:
    """The inverse of `checkpoint_name`; None for any other name, such as that of somebody's copy step-500-good."""
    digits = name.removeprefix("step-")
    return int(digits) if digits.isdecimal() and checkpoint_name(int(digits)) == name else None
