"""DDP and DeepSpeed: the same updates, checkpoints that any of them resumes, what each of them refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer import toy
from tests.trainer.conftest import Settings, Start, done, losses, metrics, newest
from trainer.checkpoint.format import load_optimizer
from trainer.data.batches import open_dataset
from trainer.parallel import ddp as engine_ddp
from trainer.parallel.ddp import DdpEngine
from trainer.parallel.world import World
from trainer.tasks.pretrain import Validation
from trainer.train import feed
from trainer.train.loop import Loop, build_engine
from trainer.train.metrics import Reporter

SMALL = {
    "micro_batch": 4,
    "evaluation__sample_tokens": 0,
    "evaluation__batches": 1,
    "optimizer__warmup_steps": 2,
}


def curve(run: Path) -> list[float]:
    """Losses, then gradient norms, which show what AdamW would hide: a gradient that is wrong by a factor."""
    return [*losses(run).values(), *(line["gradient_norm"] for line in metrics(run) if "gradient_norm" in line)]


def test_deepspeed_computes_the_same_run_and_resumes_at_other_sizes_stages_and_engines(
    start_workers: Start, settings: Settings, tmp_path: Path
) -> None:
    """DDP alone; ZeRO-1, then ZeRO-2 with uneven shares and by one worker, then DDP, and both again: one curve."""
    workers = start_workers(1, settings(tmp_path / "straight", steps=10, **SMALL))
    assert workers.wait() == [0], workers.output
    attempts = [(2, 1, 3), (3, 2, 5), (1, 2, 6), (1, 0, 7), (1, 1, 8), (2, 2, 10)]
    for world, stage, last in attempts:
        engine = {"engine__name": "deepspeed", "engine__zero_stage": stage} if stage else {}
        arguments = settings(tmp_path, steps=10, **engine, **SMALL)
        limited = [*arguments, f"steps={last}", "optimizer.schedule_steps=10"]
        workers = start_workers(world, limited)
        assert workers.wait(120) == [0] * world, workers.output
        assert "Traceback" not in workers.output
        (tmp_path / "DONE").unlink()
    assert curve(tmp_path) == pytest.approx(curve(tmp_path / "straight"), abs=2e-5)
    assert max(line.get("bytes_sent_per_step", 0) for line in metrics(tmp_path)) > 0


def driven(world: Any, given: tuple[dict[str, Any], torch.dtype, int]) -> list[dict[str, Any]]:
    """Some steps of the toy with these settings, in this type."""
    changes, dtype, count = given
    return toy.steps(build_engine(toy.work(), toy.configuration(**changes), world, dtype), world, 0, count)


def by_two(world: Any) -> tuple[list[Any], list[Any]]:
    """What tests look at that need two workers."""
    variants = [({"engine__name": name}, torch.float16, 4) for name in ("ddp", "deepspeed", "fsdp")]
    return toy.in_turn(world, driven, variants), toy.in_turn(world, sent_and_weights, ["none", "bf16", "fp16"])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return toy.drive(2, by_two, folder=tmp_path_factory.mktemp("two"))


def by_three(world: Any, folder: Path) -> tuple[list[Any], tuple[bool, bool]]:
    """What tests look at that need three workers, which have two, one and one micro-batches."""
    variants = [(each, torch.float32, 2) for each in ({}, {"engine__name": "deepspeed", "engine__zero_stage": 2})]
    return toy.in_turn(world, driven, variants), step_with_notice(world, folder)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("three")
    return toy.drive(3, by_three, folder, folder=folder)


def test_an_overflow_on_one_worker_is_skipped_by_all(two: list[Any]) -> None:
    """fp16 on two workers; the third step overflows on the second alone, which the first's own scaler would miss."""
    for first, second in zip(*(overflows for overflows, _ in two), strict=True):
        for steps in (first, second):
            assert [step["skipped"] for step in steps] == [0, 0, 1, 0]
            assert [step["scale"] for step in steps] == [65536, 65536, 32768, 32768]
        assert torch.equal(first[2]["weights"], first[1]["weights"]), (
            "a skipped step changes nothing, not even by decay"
        )
        assert not torch.equal(first[3]["weights"], first[2]["weights"])
        # FSDP's second worker has no whole weights.
        assert len(second[3]["weights"]) == 0 or torch.equal(first[3]["weights"], second[3]["weights"])


def test_a_loss_scale_that_was_found_is_resumed() -> None:
    """Otherwise the first steps of every attempt would overflow and be skipped."""
    former, resumed = (DdpEngine(toy.work(), toy.configuration(), toy.place(), torch.float16) for _ in range(2))
    former.accumulate(tuple(map(torch.from_numpy, toy.Batches().get(2, 1))), 1.0, last=True)
    assert float(former.step(0.01).skipped) == 1
    state = former.state()
    resumed.load(state.optimizer, state.state)
    assert resumed.loss_scale == former.loss_scale == 32768


def test_gradients_of_three_workers_are_those_of_one_big_batch(three: list[Any]) -> None:
    """Against plain autograd over all examples at once."""
    net = toy.Net()
    parts = [toy.Batches().get(0, number) for number in range(toy.PER_STEP)]
    values, targets = (torch.from_numpy(np.concatenate([part[index] for part in parts])) for index in (0, 1))
    (net(values, targets) / (2 * toy.PER_STEP)).backward()
    norm = torch.stack([value.grad.norm() for value in net.parameters() if value.grad is not None]).norm()
    for by_engine, _ in three:
        assert [found[0]["norm"] for found in by_engine] == pytest.approx([float(norm)] * 2, rel=1e-5)


@pytest.mark.parametrize(("clip", "left"), [(1e-3, 1e-3), (0.0, None)])
def test_a_gradient_is_shortened_to_what_is_allowed_or_left_alone(clip: float, left: float | None) -> None:
    """AdamW hides it: its first updates have the same size whatever the gradient's."""
    engine = DdpEngine(toy.work(), toy.configuration(optimizer__clip=clip), toy.place(), torch.float32)
    engine.accumulate(tuple(map(torch.from_numpy, toy.Batches().get(0, 0))), 1.0, last=True)
    before = float(engine._clip_gradients())
    after = torch.stack([value.grad.norm() for value in engine._parameters() if value.grad is not None]).norm()
    assert before > 1e-3
    assert float(after) == pytest.approx(left or before, rel=1e-3)


def test_compressed_gradients_stay_close_and_halve_the_bytes(two: list[Any]) -> None:
    plain, *compressed = zip(*(sent for _, sent in two), strict=True)
    for small in compressed:
        assert small[0]["bytes"] * 2 == plain[0]["bytes"] > 0
        assert plain[0]["left"] == 0, "bytes are counted once"
        assert torch.equal(small[0]["weights"], small[1]["weights"])
        assert not torch.equal(small[0]["weights"], plain[0]["weights"]), "nothing was compressed"
        # On average: where a gradient is nearly 0, rounding decides its sign, and Adam takes a whole step of 0.01.
        assert float((small[0]["weights"] - plain[0]["weights"]).abs().mean()) < 1e-3


def sent_and_weights(world: Any, compression: str) -> dict[str, Any]:
    config = toy.configuration(communication__compression=compression)
    built = build_engine(toy.work(), config, world, torch.float32)
    weights = toy.steps(built, world, 0, 2)[-1]["weights"]
    sent, left = (built.take_communication()[1] for _ in range(2))
    return {"bytes": sent, "left": left, "weights": weights}


def test_the_modern_recipe_learns_and_resumes_exactly(
    start_workers: Start, settings: Settings, dataset: Path, tmp_path: Path
) -> None:
    """Recipe modern: whole, and in parts by two workers and by one; transformers loads the model, with equal logits."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    changes = {**SMALL, "recipe": "modern", "model__preset": "modern-micro", "optimizer__learning_rate": 0.01}
    assert start_workers(1, settings(whole, steps=10, **changes)).wait() == [0]
    first = start_workers(2, [*settings(broken, steps=5, **changes), "optimizer.schedule_steps=10"])
    assert first.wait() == [0, 0], first.output
    (broken / "DONE").unlink()
    second = start_workers(1, [*settings(broken, steps=10, **changes), "optimizer.schedule_steps=10"])
    assert second.wait() == [0], second.output
    assert list(losses(broken).values()) == pytest.approx(list(losses(whole).values()), abs=1e-4)
    assert losses(whole)[10] < losses(whole)[1] - 0.25
    state = load_optimizer(newest(whole).path)
    assert set(state["model.layers.0.self_attn.q_proj.weight"]) == {"momentum_buffer"}
    assert set(state["model.embed_tokens.weight"]) == {"exp_avg", "exp_avg_sq", "step"}
    loaded = AutoModelForCausalLM.from_pretrained(newest(whole).path / "model", dtype=torch.float32)
    assert (loaded.config.model_type, loaded.config.max_position_embeddings) == ("qwen3", 32)
    assert loaded.generation_config.eos_token_id == loaded.config.eos_token_id is not None
    tokens = open_dataset(str(dataset)).validation
    validation = Validation(tokens, 32, 4, 1, 4, tokenizer=dataset / "tokenizer.json")
    plain = validation.loss(toy.Stock(loaded), toy.place(), torch.float32)
    assert plain == pytest.approx(done(whole)["validation_loss"], rel=1e-5)


def step_with_notice(world: Any, folder: Path) -> tuple[bool, bool]:
    config = toy.configuration()
    loop = Loop(toy.work(), config, folder, world, torch.float32, Reporter(folder, config, world))
    loop.noticed = world.first  # before the step began
    batches = feed.Feed(toy.Batches(), world, 0, equal=False)
    found = loop.one_step(batches)
    batches.close()
    return found


def test_a_step_given_up_between_uneven_shares_leaves_nobody_waiting(three: list[Any]) -> None:
    """The two that have one micro-batch are done with it when the notice is heard."""
    assert [found for _, found in three] == [(True, False)] * 3


def test_data_parallelism_is_asked_for_in_words_of_every_torch_from_2_11_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module(torch.nn.Module):
        """DistributedDataParallel as far as torch 2.11 and 2.15 call its arguments by the same names."""

        def __init__(
            self, module: torch.nn.Module, *, device_ids: Any, gradient_as_bucket_view: bool, bucket_cap_mb: int
        ) -> None:
            super().__init__()
            self.broadcast_buffers = True

        def register_comm_hook(self, state: object, hook: Callable[..., object]) -> None: ...

    monkeypatch.setattr(engine_ddp, "DistributedDataParallel", Module)
    world = World(rank=0, size=2, local_rank=0, round=1, device=torch.device("cpu"))
    built = engine_ddp.DdpEngine(toy.work(), toy.configuration(), world, torch.float32)
    assert built._module.broadcast_buffers is False, "no exchange of buffers before each pass"
