"""The contract between the loop and who computes a step: DDP, DeepSpeed, FSDP, or DDP with rare
exchanges (DiLoCo).

Every engine updates the same fp32 weights with the same rule, so a checkpoint of one is taken up by each other, at any
number of workers. Products are in autocast's type; with DeepSpeed in bf16 the other workers' weights are, too.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from trainer.parallel.optimizer import Tensors
from trainer.tasks.work import Weights


@dataclass(frozen=True)
class Outcome:
    """What one optimizer step did, on the device: reading it waits for the step."""

    gradient_norm: torch.Tensor
    """Before clipping."""
    skipped: torch.Tensor
    """fp32 scalar, the same on every worker: 1 when the gradient was not finite and nothing was updated."""


@dataclass(frozen=True)
class State:
    """What a checkpoint holds, free of the engine and of the number of workers."""

    weights: Weights
    optimizer: Tensors
    small: dict[str, Any]
    """JSON: the loss scaler's state."""
    owned: bool = False
    """Whether these tensors are in host memory already, and change no more."""


class Engine(Protocol):
    equal_turns: bool
    """Whether every worker has to make the same number of passes in a step, if need be some of weight 0."""

    divided: bool
    """Whether each worker has a part of the weights only: none can compute with work.net alone."""

    def accumulate(self, batch: tuple[torch.Tensor, ...], weight: float, last: bool) -> torch.Tensor:
        """Forward and backward of one micro-batch; its summed loss, detached, times `weight`.

        `last`: it is this worker's last of the step. Every worker makes at least one pass a step.
        """
        ...

    def step(self, rate: float, number: int) -> Outcome:
        """Exchange what is still to be exchanged, clip and update with this learning rate. `number`: steps from 1."""
        ...

    def synchronise(self) -> None:
        """Make all workers agree on weights and optimizer state, where they may differ. Collective."""
        ...

    def state(self) -> State:
        """Collective; only the first worker's is used. Those of others may be empty."""
        ...

    def load(self, optimizer_state: Tensors, small: dict[str, Any]) -> None:
        """Take up a checkpoint; its weights are in work.net already."""
        ...

    def take_communication(self) -> tuple[float, int]:
        """Since the last call: seconds that computing waited for the exchange (0 where unknown), and bytes sent."""
        ...

    @property
    def loss_scale(self) -> float | None:
        """The fp16 loss scale; None without one. Waits for the device."""
        ...
