"""A small GPT-2 as a Work on any device, and steps of an engine with it, in this process or in several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.ports import free_port
from tests.trainer import toy
from trainer.models import networks
from trainer.parallel.engine import Engine
from trainer.tasks.work import Work
from trainer.train.loop import build_engine

VOCABULARY, LENGTH, WINDOWS, PER_STEP = 300, 64, 2, 4
PRESET = "micro" if torch.cuda.is_available() else "tiny"
NEW = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)
"""Whether torch is as new as the trainer's image has it."""
FSDP = pytest.mark.skipif(not NEW, reason="fsdp needs torch 2.15")
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def network(device: torch.device, sharp: float = 1.0) -> Any:
    """sharp > 1 makes the weights larger, so that the model is sure of some words."""
    net = networks.from_preset(PRESET, VOCABULARY, 0, seed=1)
    with torch.no_grad():
        for value in net.parameters():
            value.mul_(sharp)
    return net.to(device)  # pyrefly: ignore[bad-argument-type]


def batch(device: torch.device, step: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(1000 * step + number)
    ids = torch.randint(0, VOCABULARY, (WINDOWS, LENGTH + 1), generator=source).to(device)
    return ids[:, :-1], ids[:, 1:]


def work(device: torch.device, divided: bool = False) -> Work:
    net = network(device)
    return toy.only_steps(net, networks.module(net, divided=divided), PER_STEP * WINDOWS * LENGTH, PER_STEP * WINDOWS)


def steps(built: Engine, device: torch.device, first: int, last: int, mine: range = range(PER_STEP)) -> None:
    """Make steps first+1 to last, with the micro-batches `mine` of each."""
    for step in range(first, last):
        for number in mine:
            built.accumulate(batch(device, step, number), 1.0, last=number == mine[-1])
        built.step(1e-3)


def weights(built: Engine) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in built.state().weights.items()}


def straight(device: torch.device, kind: str = "fp32", divided: bool = False) -> dict[str, torch.Tensor]:
    """The weights after two steps of one process without data parallelism.

    divided: by the module that FSDP takes, transformers' own GPT-2. On an H100 its fp32 products differ from those of
    ours so much that Adam moves a weight apart by 1.1e-2 of a step.
    """
    built = build_engine(work(device, divided), toy.configuration(), toy.place(device=device), TYPES[kind])
    steps(built, device, 0, 2)
    return weights(built)


def difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], mean: bool = False) -> float:
    """The greatest (or mean) difference of a parameter, relative to what two steps move it by, 1e-3 each.

    Use the mean for rounded gradients: near 0 they change their sign, and Adam takes a whole step the other way.
    """
    assert ours.keys() == theirs.keys()
    apart = torch.cat([(ours[name].float() - theirs[name].float()).abs().flatten() for name in theirs])
    return float(apart.mean() if mean else apart.max()) / 2e-3


def in_processes(
    count: int, task: Callable[..., Any], *arguments: Any, folder: Path, seconds: float = 240
) -> list[Any]:
    """Run task(rank, count, *arguments) in new processes that form a gloo group; return their results by rank."""
    context, port = multiprocessing.get_context("spawn"), free_port()
    started = [
        context.Process(target=_run, args=(rank, count, port, task, arguments, str(folder / f"{rank}.pt")))
        for rank in range(count)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(seconds)
    codes = [process.exitcode for process in started]
    for process in started:
        process.kill()
    assert codes == [0] * count, f"exit codes {codes}"
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


def _run(rank: int, count: int, port: int, task: Callable[..., Any], arguments: tuple[Any, ...], path: str) -> None:
    if count > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
    torch.save(task(rank, count, *arguments), path)
    if dist.is_initialized():
        dist.destroy_process_group()
