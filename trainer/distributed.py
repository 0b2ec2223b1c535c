"""This worker's place among the others, and the few exchanges that the training loop needs."""

import contextlib
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.errors import UserError
from trainer.network import interface_towards


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    local_rank: int
    round: int
    """The rendezvous round that put these workers together, from 1."""
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0


def join(timeout_seconds: int) -> World:
    """Join the process group that the launcher's environment describes; alone without one."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if world_size > 1:
        master = os.environ["MASTER_ADDR"]
        if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_towards(master)):
            os.environ["GLOO_SOCKET_IFNAME"] = name
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    return World(
        rank=int(os.environ.get("RANK", "0")),
        size=world_size,
        local_rank=local_rank,
        round=int(os.environ.get("TRAINYARD_ROUND", "1")),
        device=device,
    )


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def parallel(model: nn.Module, world: World) -> nn.Module:
    """The model with gradients averaged over the workers; itself when there is one."""
    if world.size == 1:
        return model
    devices = [world.device] if world.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, forward_sync_buffers=False, gradient_as_bucket_view=True)


def without_sync(model: nn.Module, skip: bool) -> contextlib.AbstractContextManager[None]:
    """While `skip`, gradients add up locally and are not exchanged."""
    if skip and isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return contextlib.nullcontext()


def summed(world: World, *values: torch.Tensor) -> torch.Tensor:
    """The sums of scalar tensors over all workers."""
    stacked = torch.stack([value.double() for value in values])
    if world.size > 1:
        dist.all_reduce(stacked)
    return stacked


def any_of(world: World, *flags: bool) -> list[bool]:
    """Each flag, true everywhere when it is true on any worker. On the CPU, so that no accelerator is waited for."""
    votes = torch.tensor(flags, dtype=torch.uint8)
    if world.size > 1:
        dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return [bool(vote) for vote in votes.tolist()]


def from_first(world: World, value: Any) -> Any:
    """Rank 0's `value` on every worker."""
    if world.size == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def barrier(world: World) -> None:
    any_of(world, False)


def precision(name: str, device: torch.device) -> torch.dtype:
    """The type of the matrix products for train.precision on this hardware. Weights stay fp32.

    auto: bf16 where the processor multiplies it natively (AMX or AVX512-BF16; accelerators from sm80 on), because
    it needs no loss scaling; fp16 on older accelerators, which have no bf16 units (T4, V100); else fp32.
    """
    if device.type == "cuda":
        native = torch.cuda.get_device_capability(device) >= (8, 0)
        if name == "bf16" and not native:
            raise UserError(
                f"train.precision: {torch.cuda.get_device_name(device)} has no bf16 units; use fp16 or auto"
            )
        name = ("bf16" if native else "fp16") if name == "auto" else name
    else:
        abilities = torch.cpu.get_capabilities()
        native = bool(abilities.get("amx_bf16") or abilities.get("avx512_bf16"))
        if name == "fp16":
            raise UserError("train.precision: fp16 needs an accelerator; use fp32, bf16 or auto on a CPU")
        name = ("bf16" if native else "fp32") if name == "auto" else name
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
