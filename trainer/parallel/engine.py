"""The contract between the loop and the engines: DDP, DeepSpeed and FSDP.

Every engine updates the same fp32 weights with the same rule, so each can resume another's checkpoint, at any number of
workers. Products use autocast's type; with DeepSpeed in bf16, so do the weights outside a worker's own part.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from trainer.checkpoint.format import Snapshot
from trainer.parallel.optimizer import Tensors


@dataclass(frozen=True)
class Outcome:
    """The outcome of one optimizer step, on the device: reading it waits for the step."""

    gradient_norm: torch.Tensor
    """Before clipping."""
    skipped: torch.Tensor
    """fp32 scalar, the same on every worker: 1 when the gradient was not finite and nothing was updated."""


class Engine(Protocol):
    equal_turns: bool
    """Whether every worker must make the same number of passes in a step, some of weight 0 if need be."""

    divided: bool
    """Whether each worker has only a part of the weights, so that none can compute with work.net alone."""

    def accumulate(self, batch: tuple[torch.Tensor, ...], weight: float, last: bool) -> torch.Tensor:
        """Forward and backward of one micro-batch; its summed loss, detached, times `weight`.

        `last`: it is this worker's last of the step. Every worker makes at least one pass a step.
        """
        ...

    def step(self, learning_rate: float) -> Outcome:
        """Clip and update with this learning rate."""
        ...

    def state(self) -> Snapshot:
        """For a checkpoint. Collective. Only the first worker's result is used; the others' may be empty."""
        ...

    def load(self, optimizer_state: Tensors, small: dict[str, Any]) -> None:
        """Restore a checkpoint whose weights are already in work.net. small: Snapshot.state."""
        ...

    def take_communication(self) -> tuple[float, int]:
        """Seconds that computing waited for the exchange (0 if unknown) and bytes sent, since the last call."""
        ...

    @property
    def loss_scale(self) -> float | None:
        """The fp16 loss scale; None without one. Waits for the device."""
        ...
