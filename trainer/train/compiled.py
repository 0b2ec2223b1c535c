"""torch.compile: whether to use it, a cache of compiled code, and compilation before the first exchange.

Compiled code is kept in one file of the run directory, so that a worker that joins later finds it. Inductor's and
Triton's own caches stay on the node's disk: shared over NFS, workers that compile at the same time get stale handles
and half-written files (pytorch#173679, triton#11512). The file holds code: only pods that the stack's owner trusts may
write there, not the dataset Job, which reads the web (workloads/dataset.py).
"""

import contextlib
import os
import re
import shutil
import sysconfig
import time
from pathlib import Path

import torch

from trainer import log
from trainer.config.schema import Config
from trainer.errors import UserError
from trainer.models.adapters import trained
from trainer.parallel.engine import Engine
from trainer.parallel.world import World
from trainer.tasks.work import Work
from trainer.train.feed import Batch

FOLDER = "compiled"
"""In the run directory."""
PAYS_ON_CPU = 300_000
"""Tokens of a run from which on a CPU's compilation, half a minute, is less than what it spares: 0.05 to 0.5 ms a token
and core from 3 M to 124 M parameters (bench/results/recipe.md, 2026-11-29)."""


def choose(config: Config, device: torch.device) -> tuple[bool, str]:
    """Whether to compile on this device, and the reason."""
    if config.compile != "auto":
        return config.compile == "true", "asked for"
    if device.type != "cuda":
        if config.recipe != "modern":
            return False, "a CPU gains little by it and compiles for half a minute"
        if config.steps * config.tokens_per_step < PAYS_ON_CPU:
            return False, f"a run of less than {PAYS_ON_CPU:,} tokens ends sooner without"
        if not builds_for_cpu():
            return False, "this machine has no g++ or no headers of Python, which code for a CPU needs"
        return True, "fuses this network's norms, rotations and gates, a third of a CPU's time"
    if config.task == "question_answering":
        return False, "its windows differ in length, and each length is compiled anew"
    if compiler() is None:
        return False, "this image has no C compiler, which Triton needs"
    return True, "fuses kernels that would each read and write memory"


def compiler() -> str | None:
    """The C compiler that Triton takes; None: there is none."""
    return next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)


def builds_for_cpu() -> bool:
    """Whether inductor can compile for this machine's processor: extensions of Python in C++."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(os.environ.get("CXX", "g++")) is not None and header.is_file()


class Cache:
    """Compiled code in the run directory, for this version of torch on this kind of device.

    An entry that does not fit is not used: torch looks each graph up by its code, shapes, settings and device.
    """

    def __init__(self, run: Path, device: torch.device) -> None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        self.path = run / FOLDER / re.sub(r"[^a-z0-9.]+", "-", f"torch-{torch.__version__}-{name}".lower())
        # Code for CPUs is compiled for one model of processor, which the next worker's node may not have.
        self._shared = device.type == "cuda"

    def load(self) -> str:
        """Load the file. Returns found, none or off (a CPU: each node compiles for itself)."""
        if not self._shared:
            return "off"
        try:
            return "found" if torch.compiler.load_cache_artifacts(self.path.read_bytes()) is not None else "none"
        except OSError:
            return "none"

    def save(self) -> None:
        """Replace the file if this process has compiled something itself."""
        from torch._dynamo.utils import counters

        made = torch.compiler.save_cache_artifacts() if self._shared else None
        if made is None or not counters["inductor"]["fxgraph_cache_miss"]:
            return
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # the cache only saves time
            self.path.parent.mkdir(exist_ok=True)
            temporary.write_bytes(made[0])
            temporary.replace(self.path)


def prepare(work: Work, engine: Engine, run: Path, world: World, dtype: torch.dtype, step: int) -> None:
    """Compile all that a step and an evaluation need, before the workers wait for each other.

    With divided weights they wait already: each layer's are gathered from all workers before it is compiled.
    """
    began, cache = time.perf_counter(), Cache(run, world.device)
    found = cache.load()
    batch = tuple(torch.from_numpy(part).contiguous().to(world.device) for part in work.batches.get(step, 0))
    passes(work, world, dtype, batch, engine if engine.divided else None)
    if world.first:
        cache.save()
        log.event("compiled", seconds=time.perf_counter() - began, cache=found)


def passes(work: Work, world: World, dtype: torch.dtype, batch: Batch, through: Engine | None = None) -> None:
    """Run forward and backward, and forward as in an evaluation. No gradient is kept, and no engine's hook runs but
    those of `through`, which divides the weights.

    Raises UserError if compiled code loses the gradient: torch 2.11 does for a function of autograd that ends in an
    addition in place, as that of an adapter does, and such a training would end without having learned anything.
    """
    if through is not None:
        through.accumulate(batch, 1.0, last=True)
        through.take_communication()
        work.net.zero_grad()
    elif not _teaches(work, world, dtype, batch):
        with torch.compiler.set_stance("force_eager"):
            wrong = _teaches(work, world, dtype, batch)  # else the batch has nothing to learn
        if wrong:
            raise UserError(
                f"compile: torch {torch.__version__} compiles this model without its gradient; use compile=false"
            )
    work.module.eval()
    with torch.no_grad(), torch.autocast(world.device.type, dtype, enabled=dtype != torch.float32):
        work.module(*batch)
    work.module.train()


def _teaches(work: Work, world: World, dtype: torch.dtype, batch: Batch) -> bool:
    """Whether a parameter gets a gradient other than 0."""
    with torch.autocast(world.device.type, dtype, enabled=dtype != torch.float32):
        total = work.module(*batch)
    found = torch.autograd.grad(total, list(trained(work.net).values()), allow_unused=True)
    return any(gradient is not None and bool(gradient.any()) for gradient in found)
