"""The micro-batch that follows from model and memory, where none is given; trainer/config/memory.py has the formula."""

import os
from typing import Any

import torch

from trainer.config import memory
from trainer.config.schema import Config

UNIT = 8
"""Windows in a pass where nothing better is known: on CPUs and for other tasks; evaluation.batches counts in them."""
MOST_TOKENS = 32_768
"""A pass of more tokens is no faster: 32 windows of 1024 fill any accelerator, and 64 only its memory."""
USABLE, RESERVED = 0.9, 1e9
"""Of the device's memory: the rest is fragments; and bytes of CUDA's and NCCL's own."""


def estimate(shape: memory.Shape, config: Config, tokens: int) -> float:
    """Bytes that a pass of so many tokens needs at most, forward, back and with the optimizer's update."""
    precision = "bf16" if config.precision == "auto" else config.precision
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return memory.held(shape, config, precision, world) + memory.passed(shape, config, precision, tokens)


def micro_batch(config: Config, model: Any = None, memory_bytes: float | None = None) -> int:
    """Windows in one pass of one worker: micro_batch, or a power of two that divides the step.

    model: the configuration of a transformers' decoder, where one is trained and nothing beside it; memory_bytes: of
    the device, default: this one's.
    """
    if config.micro_batch:
        return config.micro_batch
    samples = config.tokens_per_step // config.sequence_length
    if memory_bytes is None and torch.cuda.is_available():
        memory_bytes = float(torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK", "0"))).total_memory)
    shape = memory.of_document(model.to_dict()) if model is not None else None
    most = UNIT if memory_bytes is None or shape is None else fitting(shape, config, memory_bytes)
    # With more than its share in one pass, a worker would leave others without work.
    most = min(most, max(1, samples // int(os.environ.get("WORLD_SIZE", "1"))))
    return max(2**power for power in range(most.bit_length()) if samples % 2**power == 0)


def fitting(shape: memory.Shape, config: Config, memory_bytes: float) -> int:
    """The most windows, in powers of two, whose pass fits; 1 where none does: the device then says so itself."""
    size, usable, length = 1, USABLE * memory_bytes - RESERVED, config.sequence_length
    while 2 * size * length <= MOST_TOKENS and estimate(shape, config, 2 * size * length) <= usable:
        size *= 2
    return size
