"""Choose the micro-batch by model and memory if none is given; trainer/config/memory.py has the formula."""

import copy
import os
import re
from typing import Any

import torch

from trainer.config import memory
from trainer.config.schema import Config
from trainer.errors import UserError, one_line

UNIT = 8
"""Windows in a pass if nothing better is known: for other tasks, and on CPUs where they fit. The unit of
evaluation.batches."""
MOST_TOKENS = 32_768
"""Tokens in a pass at most; more is no faster: 32 windows of 1024 fill any accelerator, and 64 fill only its memory."""
PARTS, MOST_PARTS = re.compile(r"layer|expert|block|depth"), 2000
"""Settings that count modules of a model, which are built one by one even without memory; the deepest published models
have 126 layers (Llama 3.1 405B), the widest 512 experts (Qwen3-Next)."""
USABLE, RESERVED = 0.9, 1e9
"""The usable part of the device's memory (fragmentation takes the rest), and the bytes that CUDA and NCCL take."""


def estimate(shape: memory.Shape, config: Config, tokens: int, accelerator: bool = True, workers: int = 0) -> float:
    """Bytes at most for a pass of `tokens`: forward, backward and the optimizer's update. workers: 0 for this run's."""
    best = "bf16" if accelerator else "fp32"  # where a processor computes in bf16, it needs less
    precision = best if config.precision == "auto" else config.precision
    passed = memory.pass_bytes(shape, config, precision, tokens, accelerator)
    return memory.state_bytes(shape, config, precision, workers or int(os.environ.get("WORLD_SIZE", "1"))) + passed


def micro_batch(config: Config, model: Any = None, memory_bytes: float | None = None) -> int:
    """Windows in one pass of one worker: micro_batch, or a power of two that divides the step.

    model: the transformers configuration of a decoder that is trained alone, without a teacher. memory_bytes: the
    accelerator's memory; default: that of this device, or on a CPU the container's limit.
    """
    if config.micro_batch:
        return config.micro_batch
    samples = config.windows_per_step
    accelerator = memory_bytes is not None or torch.cuda.is_available()
    if memory_bytes is None:
        memory_bytes = device_memory() if accelerator else memory.limit()
    shape = memory.of_document(model.to_dict()) if model is not None else None
    most = UNIT
    if memory_bytes is not None and shape is not None:
        fits = fitting(shape, config, memory_bytes, accelerator)
        most = fits if accelerator else min(UNIT, fits)
    # A pass larger than a worker's share would leave others without work.
    most = min(most, max(1, samples // int(os.environ.get("WORLD_SIZE", "1"))))
    return max(2**power for power in range(most.bit_length()) if samples % 2**power == 0)


def require_room(key: str, what: str, numbers: int, width: int = 4) -> None:
    """Raise UserError if this machine cannot hold `numbers` of `width` bytes for each of its workers.

    The kernel would kill this process or another one without a message, after minutes.
    """
    workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if (needed := numbers * width * workers) > (there := memory.machine()):
        by = f" for {workers} workers" if workers > 1 else ""
        raise UserError(
            f"{key}: {what} has {numbers:,} numbers, which take {needed / 2**30:,.1f} GiB{by}; this machine or its "
            f"container has {there / 2**30:,.1f}; give a smaller one, or a machine with more memory"
        )


def parameters(key: str, name: str, config: Any) -> int:
    """How many numbers a model of this transformers configuration has, counted without memory for them.

    Raises UserError if there are too many parts to count, or no such model can be built.
    """
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    documents: list[Any] = [config.to_dict()]
    for document in documents:
        documents += [part for part in document.values() if isinstance(part, dict)]
        for setting, value in document.items():
            if PARTS.search(str(setting)) and isinstance(value, int) and value > MOST_PARTS:
                raise UserError(f"{key}: {name}: {setting} is {value:,}; at most {MOST_PARTS:,} can be built")
    try:
        with torch.random.fork_rng([]), torch.device("meta"):
            built: Any = AutoModelForCausalLM.from_config(copy.deepcopy(config), trust_remote_code=False)
        return sum(value.numel() for value in (*built.parameters(), *built.buffers()))
    except Exception as error:  # a size beyond 64 bits, a width that the heads do not divide, what its code checks
        raise UserError(
            f"{key}: {name} describes no {config.model_type} model that can be built ({one_line(error)}); correct it"
        ) from None


def device_memory() -> float:
    """Bytes of this worker's accelerator."""
    return float(torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK", "0"))).total_memory)


def fitting(
    shape: memory.Shape, config: Config, memory_bytes: float, accelerator: bool = True, workers: int = 0
) -> int:
    """The most windows, in powers of two, whose pass fits; 1 if none does: the pass then reports out of memory."""
    size, usable, length = 1, USABLE * memory_bytes - RESERVED, config.sequence_length

    def fits(tokens: int) -> bool:
        return tokens <= MOST_TOKENS and estimate(shape, config, tokens, accelerator, workers) <= usable

    while fits(2 * size * length):
        size *= 2
    return size
