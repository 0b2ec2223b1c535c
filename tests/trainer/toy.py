"""A network of two small matrices as a Work, and real worker processes that drive an engine with it step by step."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.ports import free_port
from tests.trainer.processes import context
from trainer.config.schema import load
from trainer.models import adapters
from trainer.parallel.world import World, join, leave_group
from trainer.tasks.work import Work
from trainer.train.feed import Feed

PER_STEP = 4
"""Micro-batches in a step, of 2 examples each."""


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._path}",)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found = self.outer(torch.tanh(self.inner(values)))[:, 0]
        return ((found.float() - targets) ** 2).sum()


class Batches:
    per_step = PER_STEP

    def get(self, step: int, number: int) -> tuple[np.ndarray, ...]:
        """The gradient of micro-batch 1 of step 2 overflows in fp16."""
        source = np.random.default_rng([step, number])
        values = source.normal(size=(2, 6)).astype(np.float32) / 10
        targets = values.sum(1)
        return values, targets * (1e7 if (step, number) == (2, 1) else 1)

    def epoch(self, step: int) -> float:
        return 0.0


def place(rank: int = 0, size: int = 1, device: str | torch.device = "cpu") -> Any:
    """The World of one worker, without a process group."""
    return World(rank, size, local_rank=rank, round=1, device=torch.device(device))


def work() -> Any:
    net = Net()
    return dataclasses.replace(only_steps(net, net, 2 * PER_STEP, 2 * PER_STEP), batches=Batches())


def only_steps(net: Any, module: Any, tokens: int, samples: int) -> Any:
    """The Work of an engine that only makes steps: without data, and nothing is saved."""
    nothing: Any = None
    return Work(
        net=net,
        module=module,
        batches=nothing,
        validation=nothing,
        items_per_step=tokens,
        tokens_per_step=tokens,
        samples_per_step=samples,
        flops_per_token=0.0,
        save_model=lambda weights, folder: None,
        load_model=lambda folder: None,
    )


def steps(engine: Any, world: Any, first: int, last: int, batches: Any = None) -> list[dict[str, Any]]:
    """Make steps first+1 to last; return the outcome of each and the weights after it."""
    feed = Feed(batches or Batches(), world, first, engine.equal_turns)
    found = []
    for _ in range(first, last):
        for turn, (_, weight) in enumerate(feed.plan):
            engine.accumulate(feed.next(), weight, last=turn == len(feed.plan) - 1)
        outcome = engine.step(0.01)
        # Another worker than the first returns no state: take the weights that it computes with, unless they are parts.
        held = engine.state().weights or ({} if engine.divided else adapters.trainables(engine._net))
        weights = [value.detach().float().flatten().clone() for value in held.values()]
        found.append(
            {
                "norm": float(outcome.gradient_norm),
                "skipped": float(outcome.skipped),
                "scale": engine.loss_scale,
                "weights": torch.cat(weights) if weights else torch.empty(0),
            }
        )
    feed.close()
    return found


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a process that has run no other test.

    After two thousand tests in one process, `datasets` has failed with a RecursionError; the cause is not known yet.
    """
    with ProcessPoolExecutor(1, context()) as pool:
        return pool.submit(function, *arguments).result()


def drive(world: int, task: Callable[..., Any], *arguments: Any, folder: Path) -> list[Any]:
    """Run task(world, *arguments) in `world` processes that form a group; return their results by rank."""
    port = free_port()
    processes = [
        context().Process(target=_run, args=(rank, world, port, task, arguments, str(folder / f"rank-{rank}.pt")))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [0] * world
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(world)]


def in_turn(world: Any, task: Callable[..., Any], variants: list[Any]) -> list[Any]:
    """Run task(world, variant) for each variant, for `drive`: processes and DeepSpeed's import are what costs."""
    return [task(world, variant) for variant in variants]


def _run(rank: int, world: int, port: int, task: Callable[..., Any], arguments: tuple[Any, ...], path: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    joined = join(30)
    torch.save(task(joined, *arguments), path)
    joined.barrier()
    leave_group()


def configuration(**changes: Any) -> Any:
    values = {"data.directory": "/none", "run.directory": "/none"}
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return load([f"{key}={value}" for key, value in values.items()])


def kept(run: Callable[[], torch.Tensor]) -> dict[int, int]:
    """What autograd keeps for the way back: bytes by the place of each storage."""
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        total = run()
    assert float(total.detach()) > 0
    return found


class Stock(nn.Module):
    """The loss through transformers' own code."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return token_loss(self.net, inputs, targets)


def token_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of the token losses in nats, fp32, through transformers' own code: the reference for ours."""
    logits = model(input_ids=inputs).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
