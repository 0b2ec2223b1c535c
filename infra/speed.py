"""How fast the machines of a stack train its model, about: the arithmetic and assumptions of speed.yaml."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from infra.config import StackConfig
from infra.facts import load
from trainer.config import memory
from trainer.config.speed import flops_per_token, peak_of
from trainer.config.vocabulary import GPT2, words_to_train

Range = tuple[float, float]


@cache
def facts() -> dict[str, Any]:
    return load(Path(__file__).with_suffix(".yaml"))


def flops_per_second(config: StackConfig) -> Range | None:
    """FLOP/s of all workers; None for accelerators that the table does not know, or of an existing cluster."""
    machine, workers = config.node_machine, config.workers
    if machine and machine.accelerator:
        name = machine.accelerator
        share = next((row["share"] for row in facts()["accelerators"] if re.search(rf"\b{row['name']}\b", name)), None)
        peak, count = peak_of(name), workers.gpus * workers.count
        return (share[0] * peak * count, share[1] * peak * count) if share and peak else None
    if workers.gpus:
        return None
    capability = machine.capability if machine else None
    each = next(row["flops"] for row in facts()["cores"] if row["capability"] == capability)
    # A thread for each CPU of a pod, at least one for each process; the two threads of a core share its matrix units.
    cores = machine.vcpus / 2 if machine else max(workers.processes, int(workers.cpu))
    return each[0] * cores * workers.count, each[1] * cores * workers.count


def tokens_per_second(config: StackConfig) -> Range | None:
    """Tokens that all workers learn from in a second; None where the model's size or the machine is not known."""
    tokenizer = config.dataset.tokenizer
    shape = memory.shape_of(config.training, words_to_train(tokenizer) or GPT2)
    there = flops_per_second(config)
    if shape is None or there is None:
        return None
    needed = flops_per_token(shape, config.training)
    return there[0] / needed, there[1] / needed


def tokens_of(size: int, compressed: bool = False) -> int:
    """Tokens of a file of so many bytes."""
    return round(size / facts()["bytes_per_token"]["compressed" if compressed else "plain"])
