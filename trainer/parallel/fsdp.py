"""torch's fully_shard (FSDP2): weights, gradients and optimizer state divided among the workers, layer by layer.

Each worker has a shard of every tensor in fp32. A layer's weights are gathered in the type of the products before it
computes and freed after, in the forward pass and again in the backward pass. Tensors outside the layers (embeddings,
last norm, head) stay gathered from the first product to the last gradient. Gathered in fp32 under autocast, as DDP has
them, weights would take twice the bytes and the memory, and the products would read them in the small type anyway.
Vectors (norms, biases) stay fp32, and so does the residual stream, as under autocast: embeddings return fp32.

Gradients are reduced to their owners after each pass, not once a step: kept whole until the last pass, they would take
4 bytes a parameter on each worker, more than all that the engine leaves there. Updates are those of DDP: the same sums,
norm, clip and skipped steps. Checkpoints hold whole fp32 tensors by name.
"""

from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from trainer.checkpoint.format import Snapshot
from trainer.config.schema import Config
from trainer.parallel import optimizer
from trainer.parallel.communication import TYPES, ring_bytes, wire
from trainer.parallel.ddp import DdpEngine
from trainer.parallel.optimizer import Tensors
from trainer.parallel.world import World, ensure_group
from trainer.tasks.work import Work


class FsdpEngine(DdpEngine):
    equal_turns = True
    """Every pass gathers each layer's weights from all workers."""
    divided = True

    def __init__(self, work: Work, config: Config, world: World, dtype: torch.dtype) -> None:
        ensure_group(world)
        self._mesh = init_device_mesh(world.device.type, (world.size,))
        reduced = TYPES[wire(config, world.device, dtype)] or torch.float32
        policy = MixedPrecisionPolicy(
            param_dtype=dtype,
            reduce_dtype=reduced,
            cast_forward_inputs=False,
            param_dtype_override_fn=lambda value: value.dtype if value.ndim < 2 else None,
        )
        # What transformers says not to split, the innermost first.
        names: Any = getattr(work.net, "_no_split_modules", None) or ()
        layers = [module for module in work.net.modules() if type(module).__name__ in names][::-1]
        everything = sum(value.numel() for value in work.net.parameters())
        inner = {id(value) for layer in layers for value in layer.parameters()}
        within = sum(value.numel() for value in work.net.parameters() if id(value) in inner)
        # fully_shard moves each module to the device as it divides it: no device ever holds the whole model.
        for module in (*layers, work.module):
            divided: Any = fully_shard(module, mesh=self._mesh, mp_policy=policy)
            divided.set_gradient_divide_factor(1.0)
            divided.set_force_sum_reduction_for_comms(True)
        embeddings = getattr(work.net, "get_input_embeddings", lambda: None)()
        if dtype != torch.float32 and embeddings is not None:
            embeddings.register_forward_hook(lambda module, given, output: output.float())
        super().__init__(work, config, world, dtype, exchange=False)
        # All weights are gathered forward, layers again backward, gradients reduced: each is half a ring all-reduce.
        sent = (everything + within) * dtype.itemsize + everything * reduced.itemsize
        self._pass_bytes, self._bytes = ring_bytes(sent, world.size) // 2, 0

    def accumulate(self, batch: tuple[torch.Tensor, ...], weight: float, last: bool) -> torch.Tensor:
        self._bytes += self._pass_bytes
        return super().accumulate(batch, weight, last)

    def state(self) -> Snapshot:
        cast("FSDPModule", self._module).reshard()  # an evaluation leaves tensors outside the layers gathered
        weights: dict[str, torch.Tensor] = {}
        found: dict[int, torch.Tensor] = {}
        for name, value in self._net.state_dict(keep_vars=True).items():
            if id(value) not in found:  # else tied: one tensor is saved under two names
                found[id(value)] = self._whole(value)
            weights[name] = found[id(value)]
        tensors = {
            name: {key: self._whole(value) for key, value in state.items()}
            for name, state in optimizer.state(self._optimizers, self._net).items()
        }
        return Snapshot(weights, tensors, self._small(), owned=True) if self._world.first else Snapshot({}, {})

    def load(self, optimizer_state: Tensors, small: dict[str, Any]) -> None:
        parts = {
            name: {key: self._part(value) if value.ndim else value for key, value in tensors.items()}
            for name, tensors in optimizer_state.items()
        }
        super().load(parts, small)

    def take_communication(self) -> tuple[float, int]:
        """Seconds are unknown (0): the gathers run in a stream of their own, beside the products."""
        sent, self._bytes = self._bytes, 0
        return 0.0, sent

    def _clip_gradients(self) -> torch.Tensor:
        parameters = self._parameters()
        norm = nn.utils.get_total_norm([value.grad for value in parameters if value.grad is not None])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        nn.utils.clip_grads_with_norm_(parameters, self._clip, norm)
        return norm

    def _whole(self, value: torch.Tensor) -> torch.Tensor:
        """Gather a tensor to the first worker's host memory; empty on others. A device holds one whole at a time."""
        value = value.detach()
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if not self._world.first:
            return torch.empty(0)
        return whole.cpu() if whole.is_cuda else whole.clone()

    def _part(self, whole: torch.Tensor) -> torch.Tensor:
        """This worker's shard of a tensor that all workers have read."""
        return distribute_tensor(whole, self._mesh, [Shard(0)], src_data_rank=None)
