"""What an error of torch means for the run: lost peers, too little memory, or something broken.

Lost peers come back, so the launcher makes a new round. After a lack of memory the next round takes half the
micro-batch, in twice as many passes: the step stays the same. Any other error before the first step would occur again,
and ends the run. Later errors get one more try, because accelerators have passing faults.
"""

import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from trainer import log
from trainer.config.schema import Config, allowed, flat
from trainer.contract import EXIT_RESTART
from trainer.errors import Retry, TrainingError, one_line
from trainer.files import read_record, write_json
from trainer.models.capacity import largest_divisor
from trainer.parallel.world import World
from trainer.tasks.work import Work
from trainer.train.metrics import machine

FAULT = "fault.json"
"""In the run directory: how many steps were made before the latest fault, and the round that saw it."""
SMALLER = "micro_batch.json"
"""In the run directory: the largest micro-batch to try after a lack of memory, and where and with what it was."""
PEERS = re.compile(
    r"\bgloo\b|\bNCCL\b|ProcessGroup|TCPStore|Connection (closed|reset|refused)|Broken pipe", re.IGNORECASE
)
"""Words in the errors of gloo, NCCL and the store, which are plain RuntimeErrors if raised in one of their threads."""
MEMORY = re.compile(
    r"out of memory|not enough memory|can't allocate memory|_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)", re.IGNORECASE
)
"""Words in the errors of CUDA, of torch's allocator on a CPU, and of cuBLAS and cuDNN: without memory for a handle both
say that they are not initialized."""


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. Check this first: NCCL's errors, too, can come from a lack of memory."""
    return isinstance(error, torch.OutOfMemoryError) or MEMORY.search(str(error)) is not None


def lost_peers(error: BaseException) -> bool:
    if out_of_memory(error) or isinstance(error, getattr(torch, "AcceleratorError", ())):
        return False
    return isinstance(error, dist.DistError) or PEERS.search(str(error)) is not None


def leave_lost_peers(rank: int, error: RuntimeError) -> NoReturn:
    """Exit at once after a broken exchange; the launcher then makes a new round.

    Do not clean up: destroying a process group whose peers are gone can hang.
    """
    log.say(log.line(event="peers_lost", rank=rank, reason=repr(one_line(error, 300))), sys.stderr)
    log.leave(EXIT_RESTART)


def judge(error: RuntimeError, work: Work, config: Config, run: Path, world: World, step: int) -> Exception:
    """The exception to raise for an error that does not come from lost peers, after `step` steps."""
    if isinstance(error, Retry):
        return error
    if out_of_memory(error):
        message = f"micro_batch: {work.windows} x {config.sequence_length} tokens do not fit the memory of "
        message += machine(world.device)
        if smaller := largest_divisor(work.samples_per_step, work.windows // 2):
            try:
                write_json(run / SMALLER, {"micro_batch": smaller, "of": _circumstances(config, world.device)})
                return Retry(f"{message}; the next round, or the same command again, takes micro_batch={smaller}")
            except OSError:
                return TrainingError(f"{message}; try micro_batch={smaller} (in a stack training.microBatch)")
        message += f"; try {', '.join([*less_memory(config, world), 'a smaller model'])}"
    else:
        traceback.print_exception(error)
        message = f"step {step + 1} failed on worker {world.rank}: {type(error).__name__}: {one_line(error, 300)}"
    path, attempt = run / FAULT, f"{world.round} {os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    before = read_record(path)
    reached = before["step"] if isinstance(before.get("step"), int) else -1
    told = world.size > 1 and before.get("attempt") == attempt  # written by another worker of this round
    try:
        if step == 0 or (reached >= step and not told):
            path.unlink(missing_ok=True)
            return TrainingError(message)
        write_json(path, {"step": step, "attempt": attempt}, durable=False)
    except OSError:
        pass  # the error is reported anyway; at worst it gets another try
    return Retry(f"{message}; trying once more")


def largest(run: Path, config: Config, device: torch.device) -> int | None:
    """The largest micro-batch that this worker may try; None if none was too large here, with these settings."""
    found = read_record(run / SMALLER)
    size = found.get("micro_batch")
    here = found.get("of") == _circumstances(config, device)
    return size if here and isinstance(size, int) and size > 0 else None


def _circumstances(config: Config, device: torch.device) -> dict[str, Any]:
    """What decides how much memory a micro-batch takes, and how much there is."""
    settings = flat(config)
    keys = ("micro_batch", "sequence_length", "precision", "compile", "engine.name", "model.checkpointing")
    return {"device": machine(device), **{key: settings[key] for key in keys}}


def less_memory(config: Config, world: World) -> list[str]:
    """The settings that the rules allow and with which one window takes less memory."""
    ways = {"model.checkpointing=true": {"model.checkpointing": True}}
    ways |= {"engine.name=fsdp": {"engine.name": "fsdp"}} if world.size > 1 else {}
    ways |= {"adapter.kind=lora": {"adapter.kind": "lora", "engine.name": "ddp"}} if config.model.name else {}
    return [way for way, change in ways.items() if allowed(config, change)] or ["a lower sequence_length"]
