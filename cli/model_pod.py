"""A pod with room for a run's model, in which a command of the trainer runs: this machine needs no torch.

A small model is read in the stack's warm pod, beside what trains; one that is larger gets a pod on a worker's node,
without its accelerators: it is read and written on the CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cli import CommandError
from cli.cluster import TrainingJob
from cli.pods import Pod, volume_pod
from cli.progress import Bar
from cli.runs import Run, trained
from cli.target import Target
from cli.worker_node import move, worker_pod
from trainer.plain import plain
from workloads.layout import ACCESS_GIB

BASE_GIB, COPIES = 0.8, 1.7
"""Memory of Python with torch and transformers, and of a model over its weights: 0.72 GiB for a tiny model; for GPT-2
with 0.46 GiB of them 1.25 to sample and 1.47 to export in bf16 (one core, largest resident set, 2026-11-25)."""


@dataclass(frozen=True)
class ModelPod:
    """A pod in which the trainer's commands run on a run."""

    pod: Pod
    bar: Bar
    run: Run
    folder: str
    """Of the run, in the pod."""

    def process(self, module: str, **options: Any) -> contextlib.AbstractContextManager[Any]:
        """A module of the trainer as a process that has ended well when the block has. Raises CommandError."""
        self.bar.waiting("the pod reads the model")
        return self.pod.process("python", "-m", module, "--run", self.folder, *words(**options))

    def call(self, module: str, text: str = "", say: bool = True, **options: Any) -> None:
        """Run a module of the trainer, `text` its stdin, and print its lines if `say`. Raises CommandError."""
        with self.process(module, **options) as process:
            process.stdin.write(text.encode("utf-8", "surrogateescape"))
            process.stdin.close()
            for line in process.stdout:
                if say:
                    self.bar.pause()
                    print(plain(line.decode("utf-8", "replace").rstrip("\n")), flush=True)


@contextlib.contextmanager
def model_pod(target: Target, environment: list[dict[str, Any]] | None = None) -> Iterator[ModelPod]:
    """A pod for a run of the stack's volume, with further variables. Raises CommandError."""
    folder, worker, needed = str(target.run_directory), dict[str, Any](), ACCESS_GIB

    def change(spec: dict[str, Any]) -> None:
        container = spec["containers"][0]
        container["env"] = [*(container.get("env") or []), *(environment or [])]
        if worker:
            move(spec, worker, accelerators=False)
            for kind in ("requests", "limits"):
                container["resources"][kind]["memory"] = f"{round(needed * 1024)}Mi"

    with contextlib.ExitStack() as opened:
        pod, bar = opened.enter_context(volume_pod(target, change if environment else None))
        run = trained(pod, folder)
        if (needed := BASE_GIB + COPIES * run.weights / (1 << 30)) > ACCESS_GIB:
            worker = _with_room(target, needed)
            opened.close()
            pod, bar = opened.enter_context(volume_pod(target, change))
        yield ModelPod(pod, bar, run, folder)


def _with_room(target: Target, needed: float) -> dict[str, Any]:
    """The specification of a worker's pod. Raises CommandError where the model does not fit there."""
    how = f"the model needs {needed:.0f} GiB of memory"
    worker = worker_pod(TrainingJob.of(target).read()[0], how, "`trainyard fetch` it")
    allowed = str(worker["containers"][0]["resources"]["limits"]["memory"]).removesuffix("Mi")
    if allowed.isdecimal() and needed > int(allowed) / 1024:
        raise CommandError(f"{how}, a worker has {int(allowed) / 1024:.0f} (workers.memoryGib); `trainyard fetch` it")
    return worker


def words(**given: Any) -> list[str]:
    """Options of a module, of those that are given: True for one without a value."""
    found: list[str] = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        found += [] if value is None or value is False else [flag] if value is True else [f"{flag}={value}"]
    return found
