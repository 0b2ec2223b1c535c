"""DiLoCo (arXiv 2311.08105): workers train alone and exchange weights every H steps, for nodes on a slow link.

Each worker makes inner steps with AdamW on its own micro-batches. Every H = communication.inner_steps steps, the mean
change of the workers' weights since the last exchange is the gradient of one outer step of Nesterov SGD. All workers
continue from its result. That sends 1/H of the bytes, and is other mathematics than communication.sync=step: the more
workers, the smaller the part of the step's tokens that each of them sees.

Checkpoints do not depend on the number of workers: before each one the workers make an early outer step, average their
optimizer states, and continue from exactly what is saved. So a run that is killed and resumed equals an uninterrupted
one that saves at the same steps, and any number of workers can resume it, each from the same state.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from trainer.config.schema import Config
from trainer.data.batches import share
from trainer.errors import UserError
from trainer.models import adapters
from trainer.parallel import optimizer
from trainer.parallel.communication import TYPES, ring_bytes, wire
from trainer.parallel.ddp import DdpEngine
from trainer.parallel.engine import Outcome, State
from trainer.parallel.optimizer import Tensors
from trainer.parallel.world import World
from trainer.tasks.work import Work

MOMENTUM = "outer_momentum"
"""Key in the saved optimizer state, beside exp_avg and the others."""


class DilocoEngine(DdpEngine):
    def __init__(self, work: Work, config: Config, world: World, dtype: torch.dtype) -> None:
        per_step, settings = work.batches.per_step, config.communication
        if world.size > per_step:
            raise UserError(
                f"communication.sync=diloco: {world.size} workers, but a step has {per_step} micro-batches; each needs "
                "one: use fewer workers, a smaller micro_batch or a larger tokens_per_step"
            )
        # The loss of a worker is the mean over its own items.
        own = work.items_per_step * len(share(per_step, world.rank, world.size)) / per_step
        super().__init__(work, config, world, dtype, divisor=own, exchange=False)
        self._every, self._type = settings.inner_steps, TYPES[wire(config, world.device, dtype)]
        self._bucket = settings.bucket_megabytes * 2**20
        self._bytes = 0
        self._pending = False
        """Whether the workers have trained since the last exchange, and so differ."""
        self._outer: list[torch.Tensor] = []
        self._sgd: torch.optim.SGD | None = None
        self._settings = settings

    def step(self, rate: float, number: int) -> Outcome:
        self._start()
        self._agree_on_overflow()
        outcome = super().step(rate, number)
        self._pending = True
        if number % self._every == 0:
            self._outer_step()
        return outcome

    def synchronise(self) -> None:
        self._start()
        if self._pending:
            self._outer_step()
        if self._world.size > 1:
            moments = [
                value
                for tensors in optimizer.state(self._optimizers, self._net).values()
                for key, value in tensors.items()
                if key != "step"  # equal everywhere, as all workers skip together
            ]
            self._average(moments, None)  # uncompressed: squares of gradients are below what fp16 can hold

    @contextlib.contextmanager
    def agreed(self) -> Iterator[None]:
        """Within it, net has the weights of the last exchange: a model that was or could have been saved.

        A worker's own belong to no model, and depend on the number of workers. An exchange for each evaluation would
        make the training depend on evaluation.every.
        """
        differ = self._pending
        if differ:
            self._swap()
        try:
            yield
        finally:
            if differ:
                self._swap()

    def state(self) -> State:
        state = super().state()
        tensors = {name: dict(found) for name, found in state.optimizer.items()}
        for name, outer in zip(adapters.trained(self._net), self._outer, strict=True):
            momentum = self._sgd.state[outer].get("momentum_buffer") if self._sgd is not None else None
            if momentum is not None:
                tensors.setdefault(name, {})[MOMENTUM] = momentum
        return State(state.weights, tensors, state.small)

    def load(self, optimizer_state: Tensors, small: dict[str, Any]) -> None:
        super().load(optimizer_state, small)
        self._start()
        assert self._sgd is not None
        for name, outer in zip(adapters.trained(self._net), self._outer, strict=True):
            momentum = optimizer_state.get(name, {}).get(MOMENTUM)
            if momentum is not None:
                self._sgd.state[outer]["momentum_buffer"] = momentum.to(outer.device)

    def take_communication(self) -> tuple[float, int]:
        sent, self._bytes = self._bytes, 0
        return self._exchange.exposed.take(), sent

    def _start(self) -> None:
        """Copy the weights that all workers start from; not in __init__, because a checkpoint may be read after it."""
        if self._sgd is None:
            self._outer = [value.detach().clone() for value in self._parameters()]
            self._sgd = torch.optim.SGD(
                self._outer,
                lr=self._settings.outer_learning_rate,
                momentum=self._settings.outer_momentum,
                nesterov=self._settings.outer_momentum > 0,
            )

    def _agree_on_overflow(self) -> None:
        """Make a gradient that is not finite on one worker so on all: they skip together and keep one loss scale."""
        if self._world.size == 1:
            return
        gradients = [value.grad for value in self._parameters() if value.grad is not None]
        norms = torch.stack([value.norm() for value in gradients])
        good = torch.isfinite(norms).all().float()
        self._exchange.exposed.begin()  # this waits for the slowest worker, too
        dist.all_reduce(good, op=dist.ReduceOp.MIN)
        self._exchange.exposed.end()
        self._bytes += ring_bytes(4, self._world.size)
        gradients[0].mul_(torch.where(good > 0, 1.0, float("nan")))

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange this worker's weights and those of the last exchange; copies take one tensor's memory."""
        for outer, value in zip(self._outer, self._parameters(), strict=True):
            own = value.clone()
            value.copy_(outer)
            outer.copy_(own)

    @torch.no_grad()
    def _outer_step(self) -> None:
        assert self._sgd is not None
        self._exchange.exposed.begin()
        for outer, value in zip(self._outer, self._parameters(), strict=True):
            outer.grad = outer - value
        if self._world.size > 1:
            self._average([outer.grad for outer in self._outer if outer.grad is not None], self._type)
        self._sgd.step()
        for outer, value in zip(self._outer, self._parameters(), strict=True):
            value.copy_(outer)
            outer.grad = None
        self._pending = False
        self._exchange.exposed.end()

    @torch.no_grad()
    def _average(self, tensors: list[torch.Tensor], kind: torch.dtype | None) -> None:
        """Replace each tensor by its mean over the workers, sent as `kind`; one message holds many, to save latency."""
        bucket: list[torch.Tensor] = []
        for number, tensor in enumerate(tensors):
            bucket.append(tensor)
            full = sum(each.numel() * each.element_size() for each in bucket) >= self._bucket
            if not full and number + 1 < len(tensors):
                continue
            flat = torch.cat([each.flatten() for each in bucket]).to(kind or bucket[0].dtype)
            dist.all_reduce(flat)
            self._bytes += ring_bytes(flat.numel() * flat.element_size(), self._world.size)
            parts = flat.to(bucket[0].dtype).div_(self._world.size).split([each.numel() for each in bucket])
            for each, part in zip(bucket, parts, strict=True):
                each.copy_(part.view_as(each))
            bucket = []
