"""The contract between a task and the training loop.

A task (pre-training, distillation, question answering) says what is trained, on which batches and how it is saved; the
loop (loop.py) does the rest. So every task has the same exact resume, the same mathematics at any number of workers,
the same checkpoints and the same metrics.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from transformers.modeling_utils import PreTrainedModel

    from trainer.parallel.world import World

Weights = dict[str, torch.Tensor]
"""Full fp32 weights by the names of net.state_dict(); tied weights may appear under each name or under one."""


class Batches(Protocol):
    """The micro-batches of every step, as a pure function of the step: nothing to save, nothing to skip at resume."""

    @property
    def per_step(self) -> int:
        """Micro-batches in one optimizer step, whatever the number of workers."""
        ...

    def get(self, step: int, number: int) -> tuple[np.ndarray, ...]:
        """The arrays of micro-batch `number` (from 0) of `step`, as module() takes them. Called from a thread."""
        ...

    def epoch(self, step: int) -> float:
        """Passes over the training data before `step`."""
        ...


class Interrupted(Exception):
    """The workers agreed to stop in the middle of an evaluation."""


def shares(model: nn.Module, groups: int, world: "World", stopping: Callable[[], bool]) -> Iterator[int]:
    """The numbers of the groups that this worker evaluates, with `model` in eval mode meanwhile.

    Groups are dealt in turns; in the last turn, a worker without one gets a number from `groups` on. Raises Interrupted
    on every worker once `stopping()` is true on any: the workers vote before each turn.
    """
    model.eval()
    try:
        for turn in range(math.ceil(groups / world.size)):
            if world.any(stopping()):
                raise Interrupted
            yield turn * world.size + world.rank
    finally:
        model.train()


class Validation(Protocol):
    """The loss on a fixed set of held-out items."""

    def loss(
        self, model: nn.Module, world: "World", dtype: torch.dtype, stopping: Callable[[], bool] = lambda: False
    ) -> float:
        """Mean item loss in nats, the same on every worker. `model` is Work.module or what wraps it.

        dtype is autocast's; fp32 means none. Raises Interrupted as `shares` does.
        """
        ...


@dataclass(frozen=True)
class Work:
    """What is trained. Built on every worker, on the CPU; the loop moves `module` to the device."""

    net: "PreTrainedModel"
    """What is trained and saved: its parameters that require a gradient, in fp32. A part of `module`."""
    module: nn.Module
    """module(*arrays of a micro-batch as tensors) -> fp32 scalar: the SUM of the item losses in nats. Parameters beside
    net's (a teacher) must not require a gradient."""
    batches: Batches
    validation: Validation
    items_per_step: int
    """What the summed loss of a step is divided by: tokens for language models, examples for question answering."""
    tokens_per_step: int
    """For tokens per second."""
    samples_per_step: int
    """Windows or examples, for samples per second."""
    flops_per_token: float
    """Forward and backward, for MFU (PaLM, arXiv 2204.02311, appendix B); 0 when unknown."""
    save_model: Callable[[Weights, Path], None]
    """Writes these weights as a Hugging Face folder, tokenizer files included. Called from a thread, with copies in
    host memory: it must not touch `net`."""
    load_model: Callable[[Path], None]
    """Reads the weights of such a folder into `net`. Raises UserError when they are those of another model."""
    data: str = ""
    """Digest of the training and validation data, which may change under the same path; empty if not known."""
    check: Callable[[torch.dtype], None] = lambda dtype: None
    """Called with the type of the products once module is on its device, before an engine wraps it. Raises UserError if
    module would learn something else than the model's own loss."""
    weight: Callable[[int], float] = lambda step: 1.0
    """items_per_step divided by the items of the given step, where steps differ (answers have different lengths)."""
    expected_loss: float | None = None
    """The loss of an untrained model (ln of the vocabulary), checked before the first step; None if unknown, as with
    given weights."""
    sample: Callable[[], str] | None = None
    """A text for DONE, from `net` as it is. Called on the first worker at the end."""
    validation_figures: Callable[[], dict[str, float]] = field(default=dict)
    """Further figures of the latest validation (exact match, F1), beside its loss; the same on every worker."""
    results: Callable[[], dict[str, Any]] = field(default=dict)
    """Further entries for DONE, from `net` as it is. Called on the first worker at the end."""
    activations: Callable[[tuple[torch.Tensor, ...]], dict[str, torch.Tensor]] | None = None
    """Statistics such as layer0_attention_weight_max of one micro-batch, as scalar tensors. Called under no_grad on
    the first worker at log steps only."""

    @property
    def windows(self) -> int:
        """Windows or examples in one micro-batch."""
        return self.samples_per_step // self.batches.per_step
