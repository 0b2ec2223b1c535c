"""FSDP: DDP's steps at any number of workers, in shards; whole checkpoints that every engine resumes; skipped steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

from tests.trainer import toy
from tests.trainer.conftest import Settings, Start, losses
from trainer.models import networks
from trainer.parallel import muon
from trainer.train.feed import turns
from trainer.train.loop import build_engine

WORDS, LENGTH = 96, 24
WORLDS = (1, 3)
"""Numbers of workers: three have parts and shares of unequal size."""
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": WORDS,
    "hidden_size": 20,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GPT2 = {"model_type": "gpt2", "vocab_size": WORDS, "n_embd": 20, "n_layer": 2, "n_head": 2, "n_positions": LENGTH}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (LLAMA, {}),
    "gpt2": (GPT2, {}),
    "muon": (QWEN3, {"optimizer__name": "muon"}),
}
"""Model, and settings, by name."""


class Rows:
    per_step = toy.PER_STEP

    def get(self, step: int, number: int) -> tuple[np.ndarray, ...]:
        rows = np.random.default_rng([step, number]).integers(0, WORDS, (2, LENGTH + 1))
        return rows[:, :-1].copy(), rows[:, 1:].copy()


def work(shape: dict[str, Any], engine: str, checkpointing: bool = False) -> Any:

    config = AutoConfig.for_model(**shape)
    networks._drop_nothing(config)
    torch.manual_seed(3)
    net = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    module = networks.module(net, checkpointing, divided=engine == "fsdp")
    return replace(toy.work(), net=net, module=module, batches=Rows(), items_per_step=2 * LENGTH * toy.PER_STEP)


def build(world: Any, made: Any, engine: str, dtype: torch.dtype, **changes: Any) -> Any:
    return build_engine(made, toy.configuration(engine__name=engine, **changes), world, dtype)


def steps(world: Any, engine: Any, first: int, last: int) -> list[float]:
    """Make steps; return the mean loss and the gradient's norm of each."""
    found = []
    for number in range(first, last):
        total, plan = torch.zeros(()), turns(toy.PER_STEP, world, engine.equal_turns)
        for turn, (micro, weight) in enumerate(plan):
            batch = tuple(torch.from_numpy(part) for part in Rows().get(number, micro))
            total += engine.accumulate(batch, weight, last=turn == len(plan) - 1)
        found.append(float(world.sum(total)[0]) / (2 * LENGTH * toy.PER_STEP))
        found.append(float(engine.step(0.01).gradient_norm))
    return found


def plain(state: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in state.weights.items()}


def by_all_engines(world: Any, folder: Path) -> dict[str, Any]:
    """Four steps of each of SHAPES with DDP and FSDP; with three workers, the last two also by DDP from the state that
    a single worker's FSDP saved, and the reverse.

    Loaded optimizer state shows in the second of these. In fp32, DDP runs on one worker alone: it is the reference for
    any number of workers.
    """
    muon.product_type = lambda _: torch.float32  # pyrefly: ignore[bad-assignment]  # for one result on all machines
    found: dict[str, Any] = {}
    for name, (shape, changes) in SHAPES.items():
        for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            if kind == "bf16" and (world.size == 1 or name != "gpt2"):
                continue
            for engine in ("ddp", "fsdp") if kind == "bf16" or world.size == 1 else ("fsdp",):
                made = work(shape, engine, checkpointing=kind == "fp32" and engine == "fsdp" and name == "llama")
                if engine == "fsdp" and world.size > 1 and name == "llama":  # the graphs of compiled layers
                    made.module.compile(backend="aot_eager", fullgraph=True)
                built = build(world, made, engine, dtype, **changes)
                curve, state = steps(world, built, 0, 2), built.state()
                held = sum(value.to_local().numel() for value in made.net.parameters()) if engine == "fsdp" else 0
                path = folder / f"{world.size}-{name}-{kind}-{engine}.pt"
                if world.first:
                    torch.save((plain(state), state.optimizer, state.state), path)
                found[f"{name} {kind} {engine}"] = [*curve, *steps(world, built, 2, 4)], plain(built.state())
                found[f"{name} {kind} {engine} held"] = held
        for before, after in (("ddp", "fsdp"), ("fsdp", "ddp")) if world.size > 1 else ():
            made = work(shape, after)
            weights, optimizer, small = torch.load(folder / f"1-{name}-fp32-{before}.pt")
            made.net.load_state_dict(weights)
            built = build(world, made, after, torch.float32, **changes)
            built.load(optimizer, small)
            found[f"{name} {before} to {after}"] = steps(world, built, 2, 4)
    return found | {"bytes": said_and_sent(world)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("fsdp")
    return {world: toy.drive(world, by_all_engines, folder, folder=folder) for world in WORLDS}


Runs = dict[int, list[dict[str, Any]]]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_steps_are_ddps(runs: Runs, name: str, world: int) -> None:
    """Llama recomputes its layers in the backward pass; GPT-2's DDP is the fast path, and its head is the embedding."""
    reference, weights = runs[1][0][f"{name} fp32 ddp"]
    for found in runs[world]:
        assert found[f"{name} fp32 fsdp"][0] == pytest.approx(reference, rel=2e-5)
    whole = runs[world][0][f"{name} fp32 fsdp"][1]
    assert whole.keys() == weights.keys()
    for key, value in weights.items():
        assert whole[key].dtype == torch.float32
        # Where a gradient is nearly 0, rounding decides its sign, and Adam takes a part of a step of 0.01.
        assert float((whole[key] - value).abs().mean()) < 2e-5, key


def test_in_bf16_they_stay_close_to_ddps(runs: Runs) -> None:
    reference, weights = runs[3][0]["gpt2 bf16 ddp"]
    curve, whole = runs[3][0]["gpt2 bf16 fsdp"]
    assert curve == pytest.approx(reference, rel=0.02)
    for key, value in whole.items():
        assert not torch.equal(value, value.bfloat16().float()), f"{key} was rounded"
    apart = torch.cat([(whole[key] - value).abs().flatten() for key, value in weights.items()])
    assert 0 < float(apart.mean()) < 2e-3


def test_each_worker_holds_its_part(runs: Runs) -> None:
    parts = [found["llama fp32 fsdp held"] for found in runs[3]]
    assert sum(parts) == runs[1][0]["llama fp32 fsdp held"]
    assert max(parts) < 1.2 * sum(parts) / 3
    assert runs[3][1]["llama fp32 fsdp"][1] == {}, "whole tensors are for the first worker alone"


@pytest.mark.parametrize("change", ["ddp to fsdp", "fsdp to ddp"])
def test_what_one_engine_saved_another_takes_up_at_another_size(runs: Runs, change: str) -> None:
    for name in SHAPES:
        straight = runs[1][0][f"{name} fp32 ddp"][0][4:]
        assert runs[3][0][f"{name} {change}"] == pytest.approx(straight, rel=2e-5)


def test_its_run_is_taken_up_by_deepspeed(start_workers: Start, settings: Settings, tmp_path: Path) -> None:
    """Llama from its config.json by two workers; then one worker under DeepSpeed goes on with the same curve."""
    shape = tmp_path / "llama.json"
    shape.write_text(json.dumps(LLAMA | {"vocab_size": 500}))
    # Five windows to validate on micro-batches of four: in the second turn the second worker has none.
    few: dict[str, Any] = {"model__config": shape, "micro_batch": 4, "evaluation__batches": 1, "checkpoint__keep": 1}
    few |= {"evaluation__sample_tokens": 0, "optimizer__schedule_steps": 6}
    straight = start_workers(1, settings(tmp_path / "straight", steps=4, **few))
    arguments = settings(tmp_path / "run", steps=3, engine__name="fsdp", **few, metrics__attention_statistics="true")
    both = start_workers(2, arguments)
    assert both.wait() == [0, 0], both.output
    (tmp_path / "run" / "DONE").unlink()
    again = start_workers(1, settings(tmp_path / "run", steps=4, engine__name="deepspeed", **few))
    assert straight.wait() == [0], straight.output
    assert again.wait() == [0], again.output
    assert "event=resume" in again.output
    curve = losses(tmp_path / "run")
    assert list(curve) == [1, 2, 3, 4]
    assert list(curve.values()) == pytest.approx(list(losses(tmp_path / "straight").values()), rel=2e-5)


def said_and_sent(world: Any) -> tuple[int, float]:
    """The bytes of a step that the engine reports, and those that a ring sends."""
    sent, part = 0.0, (world.size - 1) / world.size

    def counted(name: str) -> Any:
        real = getattr(dist, name)

        def call(*given: Any, **more: Any) -> Any:
            nonlocal sent
            tensors = [each for each in (*given, *more.values()) if isinstance(each, torch.Tensor)]
            sent += part * max(value.numel() * value.itemsize for value in tensors)
            return real(*given, **more)

        return call

    # The whole is the larger one of the two tensors: what is gathered, and what is reduced to its parts.
    dist.all_gather_single, dist.reduce_scatter_single = (
        counted(name) for name in ("all_gather_single", "reduce_scatter_single")
    )
    built = build(world, work(LLAMA, "fsdp"), "fsdp", torch.bfloat16)
    steps(world, built, 0, 1)
    return built.take_communication()[1], sent


def test_the_bytes_that_it_tells_are_those_that_its_collectives_send(runs: Runs) -> None:
    for found in runs[3]:
        said, sent = found["bytes"]
        assert said == pytest.approx(sent, rel=0.1), "more than what fills three unequal parts up"
        assert sent > 0
