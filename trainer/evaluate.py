"""The loss on held-out text, the same micro-batches each time whatever the number of workers."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from trainer.data import Tokens, gather, windows
from trainer.distributed import World, any_of, summed
from trainer.errors import UserError


class Interrupted(Exception):
    """The workers agreed to stop in the middle of an evaluation."""


class Validation:
    """A fixed set of windows spread evenly over the validation split."""

    def __init__(self, tokens: Tokens, length: int, micro_batch: int, batches: int) -> None:
        available = windows(len(tokens), length)
        if available == 0:
            raise UserError(
                f"the validation split has {len(tokens)} tokens: too few for one window of "
                f"train.sequence_length={length}; raise --validation-fraction in trainer.prepare or shorten the windows"
            )
        count = min(available, batches * micro_batch)
        self._tokens, self._length, self._micro_batch = tokens, length, micro_batch
        self._windows = np.linspace(0, available - 1, count).round().astype(np.int64)

    @torch.no_grad()
    def loss(
        self, model: nn.Module, world: World, dtype: torch.dtype, stopping: Callable[[], bool] = lambda: False
    ) -> float:
        """Mean token loss in nats. Raises Interrupted on every worker once `stopping()` is true on any."""
        total = torch.zeros((), device=world.device, dtype=torch.float64)
        count = torch.zeros((), device=world.device, dtype=torch.float64)
        batches = math.ceil(len(self._windows) / self._micro_batch)
        model.eval()
        for turn in range(math.ceil(batches / world.size)):
            if any_of(world, stopping())[0]:
                model.train()
                raise Interrupted
            first = (turn * world.size + world.rank) * self._micro_batch
            chosen = self._windows[first : first + self._micro_batch]
            if len(chosen) == 0:
                continue
            inputs, targets = (
                torch.from_numpy(part).to(world.device) for part in gather(self._tokens, chosen, self._length)
            )
            with torch.autocast(world.device.type, dtype, enabled=dtype != torch.float32):
                total += model(inputs, targets).double()
            count += targets.numel()
        model.train()
        loss_sum, tokens = summed(world, total, count).tolist()
        return loss_sum / tokens
