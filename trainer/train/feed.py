"""This worker's micro-batches: a thread reads ahead while the device computes."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from trainer.data.batches import share
from trainer.parallel.world import World
from trainer.tasks.work import Batches

AHEAD = 2
"""Micro-batches read before they are needed."""

Batch = tuple[torch.Tensor, ...]


class Feed:
    """This worker's micro-batches from `step` on, in the order of `turns`; `equal` as there."""

    def __init__(self, batches: Batches, world: World, step: int, equal: bool) -> None:
        self._batches, self._world = batches, world
        self.plan = turns(batches.per_step, world, equal)
        self._places = self._endless(step)
        # One thread: the order is the plan's, and get() needs no lock.
        self._reader = ThreadPoolExecutor(1, "feed")
        self._queue: deque[Future[Batch]] = deque()
        for _ in range(AHEAD):
            self._order()

    def next(self) -> Batch:
        """The next micro-batch. Raises what get() raised."""
        self._order()
        batch = self._queue.popleft().result()
        return tuple(part.to(self._world.device, non_blocking=True) for part in batch)

    def close(self) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _order(self) -> None:
        self._queue.append(self._reader.submit(self._read, *next(self._places)))

    def _read(self, step: int, number: int) -> Batch:
        # Inputs and targets share memory, so their rows are not contiguous: they would reach the device through memory
        # that is not pinned. From pinned memory the copy needs no wait.
        parts = tuple(torch.from_numpy(part).contiguous() for part in self._batches.get(step, number))
        return tuple(part.pin_memory() for part in parts) if self._world.device.type == "cuda" else parts

    def _endless(self, step: int) -> Iterator[tuple[int, int]]:
        while True:
            for number, _ in self.plan:
                yield step, number
            step += 1


def turns(per_step: int, world: World, equal: bool) -> list[tuple[int, float]]:
    """The micro-batches of one step that this worker computes, each with its weight.

    Micro-batches are dealt in turn, so shares differ by one at most. A worker without one (more workers than
    micro-batches) joins the exchange with weight 0. If `equal`, so does a worker with one fewer than others.
    """
    mine = [(number, 1.0) for number in share(per_step, world.rank, world.size)]
    wanted = rounds(per_step, world) if equal else 1
    return mine + [(0, 0.0)] * max(0, wanted - len(mine))


def rounds(per_step: int, world: World) -> int:
    """The most micro-batches that a worker has in a step."""
    return -(-per_step // world.size)


def draw_seed(seed: int, step: int, number: int) -> int:
    """The random seed of one micro-batch of one step (63 bits)."""
    return ((seed * 1_000_003 + step) * 1_000_003 + number) % 2**63
