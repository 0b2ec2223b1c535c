"""A pod with room for a run's model, in which a command of the trainer runs: this machine needs no torch.

A small model runs at once in the pod on the shared volume, beside what trains; one that is larger gets a pod on a
worker's node, without its accelerators: it is read and written on the CPU.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from subprocess import PIPE
from typing import Any, BinaryIO

from cli import CommandError
from cli.cluster import TrainingJob
from cli.evaluate import POD_FIELDS
from cli.progress import Bar
from cli.reach import transfer
from cli.runs import Run, read
from cli.target import Target
from cli.transfer import EMPTY, Volume, started
from trainer.plain import plain
from workloads.layout import CONSUMES, run_folder

SMALL_GIB = 2.0
"""Memory of the first pod, which a system node has: enough for 180 million parameters."""
BASE_GIB, COPIES = 0.8, 1.7
"""Memory of Python with torch and transformers, and of a model over its weights: 0.72 GiB for a tiny model; for GPT-2
with 0.46 GiB of them 1.25 to sample and 1.47 to export in bf16 (one core, largest resident set, 2026-11-25)."""
GIB = 1 << 30


@dataclass(frozen=True)
class Place:
    """Where a command of the trainer runs on a run."""

    volume: Volume
    bar: Bar
    run: Run
    folder: str
    """Of the run, in the pod."""

    def call(self, module: str, *options: str, text: str = "", say: bool = True) -> None:
        """Run a module of the trainer, `text` its stdin, and print its lines if `say`. Raises CommandError."""
        with self.process(module, *options) as process:
            self.bar.waiting("the pod reads the model")
            process.stdin.write(text.encode("utf-8", "surrogateescape"))
            process.stdin.close()
            for line in process.stdout:
                if not say:
                    continue
                self.bar.pause()
                print(plain(line.decode("utf-8", "replace").rstrip("\n")), flush=True)

    @contextlib.contextmanager
    def process(self, module: str, *options: str) -> Iterator[Any]:
        """The same as a process that has ended well when the block has. Raises CommandError with its last words."""
        command = [*self.volume.shell, "python", "-m", module, "--run", self.folder, *options]
        with tempfile.TemporaryFile() as said:
            with started(command, stdin=PIPE, stdout=PIPE, stderr=said) as process:
                broken = False
                try:
                    yield process
                except BrokenPipeError:  # it says why
                    broken = True
                code = process.wait()
            lines = list(_told(said))
        if lines and lines[-1].endswith(f"No module named {module}"):
            raise CommandError(f"the stack's image is older than {module}; `pulumi up` builds one that has it")
        if code or broken:
            raise CommandError(lines[-1] if lines else f"{module} ended with {code}")
        for line in lines:
            if line.startswith("note: "):
                print(line, file=sys.stderr)


def _told(said: BinaryIO) -> Iterator[str]:
    """The lines of an error output that say something."""
    said.seek(0)
    for line in said.read().decode("utf-8", "replace").splitlines():
        if line.strip() and not line.startswith(EMPTY):
            yield plain(line)


@contextlib.contextmanager
def place_of(
    target: Target, kubeconfig: str | None, name: str | None, environment: list[dict[str, Any]] | None = None
) -> Iterator[Place]:
    """A pod for the stack's run, or for another of the volume, with further variables. Raises CommandError."""
    folder = run_folder(name) if name else str(target.run_directory)

    def change(spec: dict[str, Any], memory: float = SMALL_GIB, worker: dict[str, Any] | None = None) -> None:
        container = spec["containers"][0]
        for kind in ("requests", "limits"):
            container["resources"][kind]["memory"] = f"{round(memory * 1024)}Mi"
        container["env"] = [*(container.get("env") or []), *(environment or [])]
        if worker:
            spec |= {key: worker[key] for key in POD_FIELDS[:3] if key in worker}

    with contextlib.ExitStack() as opened:
        volume, _, bar = opened.enter_context(transfer(target, kubeconfig, change))
        run = _chosen(volume, folder)
        needed = BASE_GIB + COPIES * run.weights / GIB
        if needed > SMALL_GIB:
            worker = _worker(target, kubeconfig, needed)
            opened.close()
            volume, _, bar = opened.enter_context(
                transfer(target, kubeconfig, lambda spec: change(spec, needed, worker))
            )
        yield Place(volume, bar, run, folder)


def _chosen(volume: Volume, folder: str) -> Run:
    """The run in a folder. Raises CommandError where there is none, or no checkpoint."""
    found = read(volume, {}, PurePosixPath(folder).name)
    if not found:
        raise CommandError(f"{folder}: no such run; `trainyard runs` lists them all", code=2)
    if found[0].checkpoint is None:
        raise CommandError(f"{folder} has no checkpoint yet; `trainyard status` says how far the training is")
    return found[0]


def _worker(target: Target, kubeconfig: str | None, needed: float) -> dict[str, Any]:
    """The specification of a worker's pod. Raises CommandError where the model does not fit there."""
    job, _ = TrainingJob.of(target, kubeconfig).read()
    template = job["spec"]["template"]
    how = f"the model needs {needed:.0f} GiB of memory"
    if CONSUMES in (template["metadata"].get("annotations") or {}):
        raise CommandError(
            f"{how}, and the stack gets its nodes for a training alone (nodes.consumption queued); `trainyard fetch` it"
        )
    worker = template["spec"]
    allowed = str(worker["containers"][0]["resources"]["limits"]["memory"])
    if allowed.endswith("Mi") and needed > int(allowed.removesuffix("Mi")) / 1024:
        raise CommandError(
            f"{how}, a worker has {int(allowed[:-2]) / 1024:.0f} (workers.memoryGib); `trainyard fetch` it"
        )
    return worker


def options(**given: Any) -> list[str]:
    """Options of a module, of those that are given: True for one without a value."""
    words: list[str] = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        words += [] if value is None or value is False else [flag] if value is True else [f"{flag}={value}"]
    return words
