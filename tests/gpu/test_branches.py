"""The trainer's CUDA branches on a pretended device: a call that torch does not have fails without a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from tests.gpu import pretended
from tests.trainer import toy
from trainer.models import causal, gpt2, networks
from trainer.models.gpt2 import LanguageModel
from trainer.models.head import Kernels, TiedGradient, losses_in_groups, token_loss
from trainer.parallel.communication import Clock
from trainer.parallel.world import Vote
from trainer.tasks.pretrain import Validation
from trainer.tasks.work import Work
from trainer.train import feed, loop, metrics, precision
from trainer.train.loop import build_engine
from trainer.train.metrics import peak_memory

VOCABULARY, LENGTH, PER_STEP = 300, 32, 2
TYPES = pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    with pretended.machine(monkeypatch) as device:
        yield device


class Text:
    """Micro-batches of two windows."""

    per_step = PER_STEP

    def get(self, step: int, number: int) -> tuple[np.ndarray, ...]:
        rows = np.random.default_rng([step, number]).integers(0, VOCABULARY, (2, LENGTH + 1))
        return rows[:, :-1], rows[:, 1:]

    def epoch(self, step: int) -> float:
        return 0.0


def build(device: torch.device) -> Work:
    with device:
        net = networks.from_preset("tiny", VOCABULARY, 0, seed=1)
    module = LanguageModel(net)
    assert all(isinstance(value, FakeTensor) and value.is_cuda for value in net.parameters())
    return dataclasses.replace(
        toy.only_steps(net, module, 2 * LENGTH * PER_STEP, 2 * PER_STEP),
        batches=Text(),
        validation=Validation(Tokens(), LENGTH, 2, 2, tokenizer=Path()),  # pyrefly: ignore[bad-argument-type]
        activations=module.attention_statistics,
    )


class Tokens:
    vocabulary = VOCABULARY

    def __len__(self) -> int:
        return 1000

    def announce(self, start: int, length: int) -> None: ...

    def read(self, start: int, length: int) -> np.ndarray:
        return np.zeros(length, dtype=np.uint16)


def batch(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros((2, LENGTH + 1), dtype=torch.int64, device=device)
    return ids[:, :-1], ids[:, 1:]


@TYPES
def test_forward_and_every_backward_know_their_calls_on_cuda(cuda: torch.device, name: str) -> None:
    work, dtype = build(cuda), precision.TYPES[name]
    with torch.autocast("cuda", dtype, enabled=name != "fp32"):
        loss = work.module(*batch(cuda))
    assert (loss.dtype, loss.device) == (torch.float32, cuda)
    loss.backward()
    for key, value in work.net.named_parameters():
        assert value.grad is not None, key
        assert (value.grad.shape, value.grad.dtype, value.grad.device) == (value.shape, torch.float32, cuda), key


@TYPES
@pytest.mark.parametrize("chunk", [16, 1024], ids=["chunks", "whole"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "apart"])
def test_the_head_knows_its_calls_on_cuda(cuda: torch.device, name: str, chunk: int, tied: bool) -> None:
    hidden = torch.zeros(50, 16, device=cuda, dtype=precision.TYPES[name], requires_grad=True)
    weight = torch.zeros(384, 16, device=cuda, dtype=precision.TYPES[name], requires_grad=not tied)
    targets = torch.zeros(50, dtype=torch.int64, device=cuda)
    holder = TiedGradient() if tied else None
    loss = token_loss(hidden, weight, targets, VOCABULARY, Kernels(compile=False), chunk, holder)
    loss.backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == hidden.dtype
    given = holder.take() if holder is not None else weight.grad
    assert given is not None
    assert given.shape == weight.shape


def test_the_loss_is_compiled_for_a_model_that_moves_there_later(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FSDP moves it: after compile()."""
    module, taken = causal.CausalModel(networks.from_preset("tiny", VOCABULARY, 0, seed=1)), list[Kernels]()
    module._plain = True  # else it asks the device, and a fake one cannot answer
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(causal, "token_loss", lambda *given: taken.append(given[4]))
    module.compile()
    module.net = build(cuda).net  # fake tensors do not move
    module(*batch(cuda))
    assert taken[0].losses is not losses_in_groups


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@TYPES
def test_a_step_of_the_loop_knows_its_calls_on_cuda(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, optimizer: str
) -> None:
    """Feed, autocast, loss scaling, clipping, the fused update and the note of its outcome."""
    work = build(cuda)
    chosen = toy.configuration(optimizer__name=optimizer, metrics__every=1000, metrics__tensorboard=False)
    reporter = metrics.Reporter(tmp_path, chosen, toy.place(device=cuda))
    monkeypatch.setattr(Vote, "result", lambda own: [False, False])  # the host reads it, and its tensors are fake, too
    made = loop.Loop(work, chosen, tmp_path, toy.place(device=cuda), precision.TYPES[name], reporter)
    batches = feed.Feed(work.batches, toy.place(device=cuda), 0, made.engine.equal_turns)
    try:
        if optimizer == "muon":  # asks the device whether to skip, and a fake device cannot answer
            with pytest.raises(DataDependentOutputException):
                made.one_step(batches)
            made.engine._optimizers[1].step()  # pyrefly: ignore[missing-attribute]
        else:
            made.one_step(batches)
    finally:
        batches.close()
    if name == "fp16":  # its state has the loss scale, a number on the device
        with pytest.raises(DataDependentOutputException):
            made.engine.state()
        return
    state = made.engine.state()
    assert {value.device for value in state.weights.values()} == {cuda}
    assert state.optimizer["transformer.wte.weight"]["exp_avg"].device == cuda


def test_the_feed_hands_out_batches_on_cuda(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda own: pinned.append(own) or own)
    batches = feed.Feed(Text(), toy.place(device=cuda), 0, equal=False)
    inputs, targets = batches.next()
    batches.close()
    assert (inputs.device, targets.device) == (cuda, cuda)
    assert inputs.shape == targets.shape == (2, LENGTH)
    assert pinned, "host memory that is not pinned is copied twice, and the host waits"


def test_what_the_run_reads_of_the_device_can_be_asked(cuda: torch.device) -> None:
    from trainer.train.metrics import device_peak

    assert precision.choose("auto", precision.hardware(cuda))[0] == "bf16"
    assert device_peak(cuda, torch.bfloat16) == 989e12
    assert device_peak(cuda, torch.float32) == 989e12 / 2
    assert peak_memory(cuda) == 0
    clock = Clock(cuda)
    clock.begin()
    clock.end()
    assert clock.take() == pytest.approx(0.001)


def test_evaluation_and_statistics_know_their_calls_on_cuda(cuda: torch.device) -> None:
    """All but the loss itself, which a pretended device cannot compute."""
    work = build(cuda)
    with pytest.raises(DataDependentOutputException):
        work.validation.loss(work.module, toy.place(device=cuda), torch.bfloat16)
    assert work.activations is not None
    with torch.autocast("cuda", torch.bfloat16):
        found = work.activations(batch(cuda))
    assert len(found) == 4


@TYPES
def test_a_checkpoint_is_taken_up_on_cuda(cuda: torch.device, name: str) -> None:
    """From optimizer state in host memory, where a resume reads it."""
    work = build(cuda)
    built = build_engine(work, toy.configuration(), toy.place(device=cuda), precision.TYPES[name])
    state = {
        key: {part: torch.zeros(value.shape, device="cpu") for part in ("exp_avg", "exp_avg_sq")}
        | {"step": torch.tensor(3.0, device="cpu")}
        for key, value in work.net.named_parameters()
    }
    small = {"scale": 4.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 9, "_growth_tracker": 0}
    built.load(state, {"scaler": small} if name == "fp16" else {})
    assert built.state().optimizer["transformer.ln_f.weight"]["exp_avg"].device == cuda


def test_a_call_that_torch_does_not_have_is_found(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The purpose of these tests, shown on a branch that no CPU takes."""

    def misspelt(ctx: Any, *outer: torch.Tensor) -> Any:
        rows = outer[0].flatten(0, -2)
        return outer[0], rows.sum_columns(0) if rows.is_cuda else rows.sum(0)  # pyrefly: ignore[missing-attribute]

    monkeypatch.setattr(gpt2._Bias, "backward", staticmethod(misspelt))
    with pytest.raises(AttributeError, match="sum_columns"):
        build(cuda).module(*batch(cuda)).backward()
