"""DeepSpeed in its own bf16 mode: DDP's curve, no more bytes than DDP, exact resume from whole fp32 tensors; and the
seconds that DDP waits for its peers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu import small
from tests.trainer import toy
from trainer.train.loop import build_engine

ENGINES: list[dict[str, Any]] = [
    {"communication__compression": "bf16"},
    {"engine__name": "deepspeed", "engine__zero_stage": 1},
    {"engine__name": "deepspeed", "engine__zero_stage": 2},
]


def by_engine(world: Any, folder: Path) -> list[Any]:
    """What the tests of all engines compare, by two workers that import DeepSpeed once; last windows, and what DDP
    waited."""
    compared = [straight_and_resumed(world, changes, folder) for changes in ENGINES]
    return [*compared, windows_of(world), seconds_waited(world)]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, Any]]:
    """By engine, then by worker."""
    folder = tmp_path_factory.mktemp("engines")
    return list(zip(*toy.drive(2, by_engine, folder, folder=folder), strict=True))


def straight_and_resumed(world: Any, changes: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Four steps; the same with a new engine after two, from what a checkpoint would hold."""
    config = toy.configuration(**changes)
    whole = toy.steps(build_engine(toy.work(), config, world, torch.bfloat16), world, 0, 4)
    built = build_engine(toy.work(), config, world, torch.bfloat16)
    toy.steps(built, world, 0, 2)
    sent = built.take_communication()[1]
    state = built.state()
    if world.first:
        torch.save((state.weights, state.optimizer), folder / "state.pt")
    world.barrier()
    work, (weights, moments) = toy.work(), torch.load(folder / "state.pt")
    work.net.load_state_dict(weights)
    again = build_engine(work, config, world, torch.bfloat16)
    again.load(moments, state.state)
    return {"whole": whole, "resumed": toy.steps(again, world, 2, 4), "bytes": sent, "state": state}


@pytest.mark.parametrize("stage", [1, 2])
def test_deepspeeds_bf16_mode_makes_ddps_steps_in_no_more_bytes_and_resumes_exactly(
    stage: int, engines: list[tuple[Any, Any]]
) -> None:
    ours, others = engines[stage]
    ddp, _ = engines[0]
    for name, value in ours["state"].weights.items():
        assert value.dtype == torch.float32
        assert not torch.equal(value, value.bfloat16().float()), f"{name} was rounded"
    for step in (0, 1):
        assert torch.equal(ours["resumed"][step]["weights"], ours["whole"][step + 2]["weights"])
        rounded = ours["whole"][step]["weights"].bfloat16().float()
        assert torch.equal(rounded, others["whole"][step]["weights"]), "all compute with the first one's, rounded"
        assert ours["whole"][step]["norm"] == pytest.approx(ddp["whole"][step]["norm"], rel=0.02)
    # Two steps of 0.01: where a gradient is nearly 0, rounding decides its sign, and Adam takes a whole step.
    apart = (ours["whole"][1]["weights"] - ddp["whole"][1]["weights"]).abs()
    assert float(apart.mean()) < 1e-3
    # Stage 2 reduces after each of a worker's two micro-batches of a step.
    assert ours["bytes"] <= ddp["bytes"] * (1 if stage == 1 else 1.5)


def seconds_waited(world: Any) -> float:
    """Seconds of exchange in a step that the second worker begins 0.5 s late, after two that both begin together."""
    built = build_engine(toy.work(), toy.configuration(), world, torch.float32)
    for number in (1, 2, 3):  # in the second, DDP lets its buckets be rebuilt
        world.barrier()
        built.take_communication()
        if number == 3 and not world.first:
            time.sleep(0.5)
        toy.steps(built, world, number - 1, number)
    return built.take_communication()[0]


def test_ddp_tells_how_long_computing_waited_for_the_others(engines: list[tuple[Any, Any]]) -> None:
    waiting, late = engines[-1]
    assert 0.35 < waiting < 5
    assert 0 < late < waiting - 0.2


def windows_of(world: Any) -> dict[str, torch.Tensor]:
    """The weights of GPT-2 after two steps of eight micro-batches, of which this worker makes every `size`th."""
    device = torch.device("cpu")
    built = build_engine(small.work(device), toy.configuration(), world, torch.bfloat16)
    small.steps(built, device, 0, 2, range(world.rank, 8, world.size))
    return small.weights(built)


def test_what_several_passes_added_in_place_is_exchanged_with_the_last(engines: list[tuple[Any, Any]]) -> None:
    """Each of two workers makes four passes a step: three before DDP's exchange, of which two add to gradients."""
    first, second = engines[-2]
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert small.difference(first, windows_of(toy.place()), mean=True) < 0.05, "rounding alone"
