"""The contract between the trainer, workloads/, which starts it, and cli/ and prove/, which read its run folder.

This module imports nothing, so that none of them needs torch for it.
"""

# Exit codes: by them the Job decides whether to replace a pod. 75 is EX_TEMPFAIL of sysexits.h, 143 is 128 + SIGTERM.
EXIT_DONE, EXIT_BROKEN, EXIT_USAGE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED = 0, 1, 2, 42, 75, 143
EXITS = {
    EXIT_DONE: ("done", "the training is done", "completes; pods that still run are ended"),
    EXIT_BROKEN: (
        "broken",
        "this node cannot train, others may: it finds no device, or the launcher crashed",
        "creates the pod again, and counts a failure",
    ),
    EXIT_USAGE: ("refused", "bad input to a command that nobody retries (prepare, sample)", "fails at once"),
    EXIT_FATAL: (
        "failed",
        "cannot succeed: configuration, data, NaN, ten rounds without a new step, or a rendezvous that somebody closed",
        "fails at once",
    ),
    EXIT_RESTART: ("restart", "healthy, but peers or the rendezvous were lost", "creates the pod again"),
    137: ("killed", "killed by SIGKILL", "creates the pod again, and counts a failure unless its node was lost"),
    EXIT_TERMINATED: ("terminated", "asked to leave, and saved", "creates the pod again, unless it was scaled in"),
}
"""Exit code -> the state in the launcher's last words, its meaning, and what the Job does."""

TRAINER_ID = 65530
"""uid and gid of the trainer in its image (Dockerfile), and of the files on the shared volume. No account has it, so
none reads a pod's environment in the node's /proc: Debian gives accounts ids up to 64,999, and 65,534
is nobody's (Debian policy 4.7.2, section 9.2.2)."""

WORKER = "trainer.train"
"""What ps and top show of a worker (comm in proc(5))."""
ETCD_PORT = 2379
"""The port of the rendezvous."""

# Environment variables.
BIND_CORES = "TRAINYARD_BIND_CORES"
"""`1`: the training owns the node's cores, so OpenMP's threads are bound to them (elastic/processor.py)."""
DEVICE = "TRAINYARD_DEVICE"
"""`cuda`: the node has accelerators that are paid for, so it must not train on its CPU (parallel/world.py)."""
STACK_KEYS = "TRAINYARD_STACK_KEYS"
"""JSON: argument -> the key of the stack that it comes from, in whose words errors are told (errors.py)."""
STACK = "TRAINYARD_STACK"
"""Name of the stack that trains: stacks of one machine or cluster may share a volume, and their curves a page."""
TERMINATION_LOG = "TRAINYARD_TERMINATION_LOG"
"""File for the launcher's termination message, instead of /dev/termination-log."""

# Annotations of a training's Job.
STOPPED = "trainyard/stopped"
"""`trainyard stop` has suspended it: when. A queue of the cluster, such as Kueue's, suspends Jobs without it."""
QUEUED = "trainyard/queued"
"""It was suspended because it held nodes and trained nothing (requeue.py): START/END, after which it tries again."""

# Files of a folder that trainer.fetch writes.
FETCHED = "fetched.json"
"""Written last, with the name of what was fetched: a folder without it is incomplete and fetched again."""

# Files of a run directory.
STATUS = "status.json"
STALE_SECONDS = 120
"""A run whose status is older and that is not done was interrupted: status.json is written at each log step."""
COMPILING_SECONDS = 900
"""The same before the first step: nothing is logged while the model is compiled."""
UNREADABLE = "unreadable"
"""State of a run with a folder that may not be listed (volume.py)."""
METRICS = "metrics.jsonl"
DONE = "DONE"
"""Written last: JSON with the final step, losses and checkpoint."""
EVALUATIONS = "evaluations"
"""Folder of the benchmark results, one file a step (export/evaluations.py)."""
MANIFEST = "manifest.json"
"""Of a checkpoint, written last: a checkpoint without it is incomplete (checkpoint/format.py)."""


MACHINE_SETTINGS = ("run.directory", "metrics.wandb_project", "metrics.prometheus_port")
"""Settings of the machine, not of the training: runs that differ in them alone are the same."""


def differing(settings: list[dict[str, object]]) -> list[str]:
    """The settings, by dotted key, in which runs differ, but for those of the machine."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if key not in MACHINE_SETTINGS and len({str(each.get(key)) for each in settings}) > 1]


def patience(state: object) -> int:
    """Seconds of silence after which a run in this state was interrupted."""
    return COMPILING_SECONDS if state in ("starting", "compiling") else STALE_SECONDS


def checkpoint_name(step: int) -> str:
    """Name of a checkpoint's folder in the run's folder checkpoints/."""
    return f"step-{step:08d}"


def checkpoint_step(name: str) -> int | None:
    """The inverse of `checkpoint_name`; None for any other name, such as that of somebody's copy step-500-good."""
    digits = name.removeprefix("step-")
    return int(digits) if digits.isdecimal() and checkpoint_name(int(digits)) == name else None
