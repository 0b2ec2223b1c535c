"""The micro-batch if none is given, and models that nothing can hold; trainer/config/memory.py has the formula."""

import copy
import os
import re
from typing import Any

import torch

from trainer.config import container, memory
from trainer.config.schema import Config
from trainer.errors import UserError, one_line

UNIT = 8
"""Windows in a pass if nothing better is known: for other tasks, and on CPUs where they fit. The unit of
evaluation.batches."""
PARTS, MOST_PARTS = re.compile(r"^(?!.*(size|dim|length)).*(layer|expert|block|depth)"), 2000
"""Settings that count modules of a model, which are built one by one even without memory, and not those that give sizes
in a module (shared_expert_intermediate_size); the deepest published models have 126 layers (Llama 3.1 405B), the widest
512 experts (Qwen3-Next)."""


def micro_batch(config: Config, most: int | None = None, model: Any = None) -> int:
    """Windows in one pass of one worker: micro_batch, or a power of two that divides the step; at most `most`.

    model: the transformers configuration of a decoder that is trained alone, without a teacher.
    """
    samples, workers = config.windows_per_step, int(os.environ.get("WORLD_SIZE", "1"))
    if config.micro_batch:
        return largest_divisor(samples, min(config.micro_batch, most or config.micro_batch))
    accelerator = torch.cuda.is_available()
    there = device_memory() if accelerator else container.limit()
    shape = memory.of_document(model.to_dict()) if model is not None else None
    fits = UNIT
    if there is not None and shape is not None:
        fits = memory.fitting(shape, config, there, workers, accelerator)
        fits = fits if accelerator else min(UNIT, fits)
    # A pass larger than a worker's share would leave others without work.
    fits = min(fits, most or fits, max(1, samples // workers))
    return max(2**power for power in range(fits.bit_length()) if samples % 2**power == 0)


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most `most`; 0 if that is 0."""
    return next((size for size in range(most, 0, -1) if number % size == 0), 0)


def require_room(key: str, what: str, numbers: int, width: int = 4, device: bool = False) -> None:
    """Raise UserError if this machine cannot hold `numbers` of `width` bytes for each of its workers.

    The kernel would kill this process or another one without a message, after minutes. device: each worker's
    accelerator must hold them, too; a smaller micro-batch would not help.
    """
    if device and torch.cuda.is_available() and numbers * width > (most := device_memory()):
        raise UserError(
            f"{key}: {what} has {numbers:,} numbers, which take {numbers * width / 2**30:,.1f} GiB with gradients and "
            f"moments; the accelerator has {most / 2**30:,.1f}; give a smaller one, or an accelerator with more memory"
        )
    workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if (needed := numbers * width * workers) > (there := container.machine()):
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

    if (layers := getattr(config.get_text_config(), "num_hidden_layers", 1)) < 0:  # transformers builds none
        raise UserError(f"{key}: {name}: has {layers} layers; correct it")
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
