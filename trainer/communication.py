"""The exchange of gradients between workers: in which type, in how many bytes, and how long computing waits for it."""

import time
from typing import Any

import torch
import torch.distributed as dist

from trainer.distributed import World

TYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""communication.compression. bf16 keeps fp32's range; fp16 keeps 3 more bits, but loses what is below 6e-8."""


def ring_bytes(size: int, world: int) -> int:
    """What each worker sends when `size` bytes are all-reduced around a ring, as gloo and NCCL do."""
    return round(2 * size * (world - 1) / world)


class Clock:
    """Adds up the time between two points of the queue of work: of the host, or of the accelerator without a wait."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._open: Any = None
        self._spans: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        self._open = self._now()

    def end(self) -> None:
        if self._open is not None:
            self._spans.append((self._open, self._now()))
            self._open = None

    def take(self) -> float:
        """Seconds since the last call. Waits for the device, so at log steps only."""
        if self._cuda and self._spans:
            self._spans[-1][1].synchronize()
        seconds = sum(a.elapsed_time(b) / 1000 if self._cuda else b - a for a, b in self._spans)
        self._spans = []
        return seconds

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Exchange:
    """DDP's communication hook: sums gradients over the workers, in the type of communication.compression.

    Bucket after bucket is sent while the backward pass goes on; the last one is sent when that has ended, so what lies
    between its start and the end of backward() is the time that computing does not hide.
    """

    def __init__(self, world: World, compression: str) -> None:
        self._world, self._type = world, TYPES[compression]
        self.exposed = Clock(world.device)
        self.bytes_sent = 0

    def hook(
        self,
        _: object,
        bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
    ) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        sent = gradients if self._type is None else gradients.to(self._type)
        self.bytes_sent += ring_bytes(sent.numel() * sent.element_size(), self._world.size)
        if bucket.is_last():
            self.exposed.begin()
        work = dist.all_reduce(sent, async_op=True)
        assert work is not None

        def received(future: torch.futures.Future[Any]) -> torch.Tensor:
            # Written into the bucket and not handed on in the small type: gradients stay fp32.
            return gradients if sent is gradients else gradients.copy_(future.value()[0])

        return work.get_future().then(received)
