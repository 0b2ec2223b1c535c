"""This worker's place among the others, and the few exchanges that the training loop needs."""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainer.contract import DEVICE
from trainer.elastic.network import interface_towards
from trainer.errors import BrokenNode, UserError

TOUCH_SECONDS = 0.2
"""Pause between two votes of workers that wait for each other in `together`."""
T = TypeVar("T")


class Vote:
    """Flags, each true everywhere if it is true on any worker. On the CPU, so that no accelerator is waited for.

    The worker goes on between casting a vote and reading its result. That takes 0.5 ms of the host's time, where an
    immediate result takes 0.9 ms (two processes on loopback, 2 busy cores). Only workers that are a micro-batch or more
    behind are waited for.
    """

    def __init__(self, world: "World", *flags: bool) -> None:
        self._votes = torch.tensor(flags, dtype=torch.uint8)
        self._work = None
        if world.size > 1:
            self._work = dist.all_reduce(self._votes, op=dist.ReduceOp.MAX, group=world.control, async_op=True)

    def result(self) -> list[bool]:
        if self._work is not None:
            self._work.wait()
        return [bool(vote) for vote in self._votes.tolist()]


@dataclass(frozen=True)
class World:
    """This worker's place among the others, and what they exchange beside gradients."""

    rank: int
    size: int
    local_rank: int
    round: int
    """The rendezvous round that put these workers together, from 1."""
    device: torch.device
    control: Any = None
    """A separate process group for votes: they may overtake gradients, whose exchanges differ in number while workers
    have unequal shares. Always gloo, so that no accelerator is waited for."""

    @property
    def first(self) -> bool:
        return self.rank == 0

    def seed(self, value: int) -> None:
        """As torch.manual_seed, without its 0.5 ms: it formats a stack trace for each absent kind of accelerator."""
        torch.default_generator.manual_seed(value)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(value)

    def sum(self, *values: torch.Tensor) -> torch.Tensor:
        """The sums of scalar tensors over all workers."""
        stacked = torch.stack([value.double() for value in values])
        if self.size > 1:
            dist.all_reduce(stacked)
        return stacked

    def vote(self, *flags: bool) -> Vote:
        return Vote(self, *flags)

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any worker."""
        return self.vote(flag).result()[0]

    def barrier(self) -> None:
        self.any(False)

    def from_first(self, value: Any) -> Any:
        """Rank 0's JSON `value`, on every worker."""
        return self.gather(value if self.first else None)[0]

    def gather(self, value: Any) -> list[Any]:
        """Gather every worker's JSON `value`, in order of rank, on each worker.

        torch's object collectives would unpickle what another pod sent. Raises ValueError for what is no JSON.
        """
        if self.size == 1:
            return [value]
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([content.numel()]), group=self.control)
        longest = max(int(length) for length in lengths)
        parts = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
        dist.all_gather(parts, torch.nn.functional.pad(content, (0, longest - content.numel())), group=self.control)
        return [json.loads(bytes(part[: int(length)].numpy())) for part, length in zip(parts, lengths, strict=True)]

    def together(self, task: Callable[[], T]) -> T:
        """Run task() on every worker; return when it has returned on all of them, however unequal their times are.

        For tasks that take minutes on one worker and seconds on another: reading a checkpoint from a slow storage,
        compiling. Meanwhile a thread votes, so no exchange times out. The task must not vote itself.
        """
        if self.size == 1:
            return task()
        done, problems = threading.Event(), list[RuntimeError]()

        def keep_in_touch() -> None:
            try:
                while self.any(not done.is_set()):
                    done.wait(TOUCH_SECONDS)
            except RuntimeError as error:
                problems.append(error)

        thread = threading.Thread(target=keep_in_touch, name="together", daemon=True)
        thread.start()
        try:
            result = task()
        finally:
            done.set()
        thread.join()
        for problem in problems:
            raise problem
        return result


def require_device(begun: bool) -> None:
    """Refuse to train on the processor of a node that has accelerators.

    Raises BrokenNode if the run has `begun`: it has a checkpoint, so the stack is right and this node is broken. Else
    raises UserError: the driver or the image does not fit the stack's nodes.
    """
    if os.environ.get(DEVICE) != "cuda" or torch.cuda.is_available():
        return
    message = (
        f"no CUDA device: torch {torch.__version__} finds none on a node with accelerators, and would train on its "
        f"processor; its driver must support CUDA {torch.version.cuda} (`nvidia-smi` in the pod shows the newest that "
        "it supports): take a newer nodes.gpuDriverVersion or Kubernetes version, or an image with an older torch; "
        "where the pod has no nvidia-smi (k3s, RKE2, MicroK8s, k0s) it needs workers.runtimeClass, usually nvidia"
    )
    raise BrokenNode(message) if begun else UserError(message)


def join(timeout_seconds: int) -> World:
    """Join the process group that the launcher's environment describes; without one, this worker is alone."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    control = None
    if world_size > 1:
        master = os.environ["MASTER_ADDR"]
        if "GLOO_SOCKET_IFNAME" not in os.environ and (name := interface_towards(master)):
            os.environ["GLOO_SOCKET_IFNAME"] = name
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=timeout_seconds)
        # No device_id: NCCL takes the current device, or that of LOCAL_RANK, which are the same, and torch would bind
        # the control group to the device, too (2.15, distributed_c10d.py, new_group).
        dist.init_process_group(backend, timeout=timeout)
        control = dist.new_group(backend="gloo", timeout=timeout)
    return World(
        rank=int(os.environ.get("RANK", "0")),
        size=world_size,
        local_rank=local_rank,
        round=int(os.environ.get("TRAINYARD_ROUND", "1")),
        device=device,
        control=control,
    )


def ensure_group(world: World) -> None:
    """Make a process group of this worker alone if there is none: DeepSpeed and FSDP require one."""
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo"
        store = dist.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1)


def leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
