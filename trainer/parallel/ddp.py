"""The default engine: every worker holds the whole model and optimizer; gradients are summed while they appear."""

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.checkpoint.format import Snapshot
from trainer.config.schema import Config
from trainer.models import adapters, weight_cache
from trainer.parallel import optimizer
from trainer.parallel.communication import TYPES, Clock, ring_bytes, wire
from trainer.parallel.engine import Outcome
from trainer.parallel.optimizer import Tensors
from trainer.parallel.world import World
from trainer.tasks.work import Work


class Exchange:
    """DDP's communication hook: sums gradients over the workers, in the type of communication.compression.

    Buckets are sent while the backward pass runs. The last one is sent when the pass has ended, so the time from its
    start to the end of backward() is what computing does not hide.
    """

    def __init__(self, world: World, compression: str) -> None:
        self._world, self._type = world, TYPES[compression]
        self.exposed = Clock(world.device)
        self.bytes_sent = 0

    def hook(self, _: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        sent = gradients if self._type is None else gradients.to(self._type)
        self.bytes_sent += ring_bytes(sent.numel() * sent.element_size(), self._world.size)
        if bucket.is_last():
            self.exposed.begin()
        work = dist.all_reduce(sent, async_op=True)
        assert work is not None

        def received(future: torch.futures.Future[Any]) -> torch.Tensor:
            # Copy back into the bucket instead of returning the small type: gradients stay fp32.
            return gradients if sent is gradients else gradients.copy_(future.value()[0])

        return work.get_future().then(received)


class DdpEngine:
    equal_turns = False
    divided = False

    def __init__(self, work: Work, config: Config, world: World, dtype: torch.dtype, exchange: bool = True) -> None:
        self._net, self._world, self._dtype = work.net, world, dtype
        self._divisor, self._clip = work.items_per_step, config.optimizer.clip or float("inf")
        self._optimizers = optimizer.make_optimizers(work.net, config.optimizer)
        self._scaler = torch.amp.GradScaler(world.device.type, enabled=dtype == torch.float16)
        self._exchange = Exchange(world, wire(config, world.device, dtype))
        self._module: Any = work.module
        if world.size > 1 and exchange:
            # Every worker has read frozen parameters from the same files: nothing to broadcast, no gradient to sum.
            frozen = [name for name, value in work.module.named_parameters() if not value.requires_grad]
            work.module._ddp_params_and_buffers_to_ignore = frozen  # pyrefly: ignore[bad-argument-type]
            self._module = DistributedDataParallel(
                work.module,
                device_ids=[world.device] if world.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                bucket_cap_mb=config.communication.bucket_megabytes,
            )
            self._module.broadcast_buffers = False  # the argument has this name up to torch 2.11, another in 2.15
            self._module.register_comm_hook(None, self._exchange.hook)

    def accumulate(self, batch: tuple[torch.Tensor, ...], weight: float, last: bool) -> torch.Tensor:
        exchanges = isinstance(self._module, DistributedDataParallel)
        wait = exchanges and not last
        autocast = torch.autocast(self._world.device.type, self._dtype, enabled=self._dtype != torch.float32)
        with self._module.no_sync() if wait else contextlib.nullcontext():
            with autocast, weight_cache.adding(wait or not exchanges):
                total = self._module(*batch) * weight
            self._scaler.scale(total / self._divisor).backward()
        if last:
            self._exchange.exposed.end()
        return total.detach()

    def step(self, learning_rate: float) -> Outcome:
        for each in self._optimizers:
            self._scaler.unscale_(each)
        norm = self._clip_gradients()
        # The norm is finite if every gradient is. It is the norm of the summed gradient, so all workers skip together.
        skipped = (~norm.isfinite()).float()
        optimizer.set_learning_rate(self._optimizers, learning_rate)
        optimizer.update(self._optimizers, skipped)
        self._scaler.update()
        for each in self._optimizers:
            each.zero_grad(set_to_none=True)
        return Outcome(norm, skipped)

    def state(self) -> Snapshot:
        return Snapshot(adapters.trainables(self._net), optimizer.state(self._optimizers, self._net), self._small())

    def load(self, optimizer_state: Tensors, small: dict[str, Any]) -> None:
        optimizer.load_state(self._optimizers, self._net, optimizer_state)
        if self._scaler.is_enabled() and "scaler" in small:
            self._scaler.load_state_dict(small["scaler"])

    def take_communication(self) -> tuple[float, int]:
        sent, self._exchange.bytes_sent = self._exchange.bytes_sent, 0
        return self._exchange.exposed.take(), sent

    @property
    def loss_scale(self) -> float | None:
        return self._scaler.get_scale() if self._scaler.is_enabled() else None

    def _clip_gradients(self) -> torch.Tensor:
        """Clip the gradient; return its whole norm before clipping."""
        return nn.utils.clip_grad_norm_(self._parameters(), self._clip)

    def _small(self) -> dict[str, Any]:
        return {"scaler": self._scaler.state_dict()} if self._scaler.is_enabled() else {}

    def _parameters(self) -> list[nn.Parameter]:
        return list(adapters.trained(self._net).values())
