"""On a GPU: our GPT-2, compiled and eager, against transformers' in fp32; attention's kernels and statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from tests.gpu import small
from tests.trainer import toy
from trainer.models import attention, causal, networks
from trainer.models.gpt2 import LanguageModel
from trainer.models.head import Kernels, token_loss

pytestmark = pytest.mark.gpu

#: Type -> (relative error of the loss, of a gradient's norm) against fp32. bf16 has 8 bits of mantissa, fp16 11.
TOLERANCE = {"fp32": (1e-5, 2e-4), "bf16": (2e-3, 0.06), "fp16": (5e-4, 0.01)}
KINDS = pytest.mark.parametrize("kind", list(TOLERANCE))


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Switch TF32 off: fp32 is the reference here."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm().clamp_min(1e-12))


@KINDS
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_loss_and_every_gradient_are_those_of_transformers(device: torch.device, kind: str, compiled: bool) -> None:
    net = small.network(device, sharp=2.0)
    inputs, targets = small.batch(device, 0, 0)
    expected = toy.token_loss(net, inputs, targets)
    expected.backward()
    theirs = {name: value.grad.clone() for name, value in net.named_parameters() if value.grad is not None}
    net.zero_grad(set_to_none=True)
    ours = LanguageModel(net)
    if compiled:
        ours.compile()
    with torch.autocast(device.type, small.TYPES[kind], enabled=kind != "fp32"):
        loss = ours(inputs, targets)
    scale = 1024.0 if kind == "fp16" else 1.0  # as the loss scaler does: fp16 has no number below 6e-8
    (loss * scale / inputs.numel()).backward()
    loss_error, gradient_error = TOLERANCE[kind]
    assert loss.item() == pytest.approx(expected.item(), rel=loss_error)
    found = {
        name: relative(value.grad / scale * inputs.numel(), theirs[name])
        for name, value in net.named_parameters()
        if value.grad is not None
    }
    assert found.keys() == theirs.keys()
    assert max(found.values()) < gradient_error, max(found.items(), key=lambda item: item[1])


@KINDS
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_texts_packed_in_a_row_of_a_llama_are_as_each_by_itself(
    device: torch.device, kind: str, compiled: bool
) -> None:
    """Twice, with different numbers of answer tokens: the compiled loss must take any."""
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(1)
    net: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=small.VOCABULARY, **shape))
    net.to(device)
    inputs, targets = (part.clone() for part in small.batch(device, 0, 0))
    positions = torch.arange(small.LENGTH, device=device).repeat(small.WINDOWS, 1)
    positions[0, 40:] -= 40
    ours = networks.module(net, packed=True)
    if compiled:
        ours.compile()
    for unanswered in (5, 9):
        targets[:, :unanswered] = causal.IGNORED
        parts = [(0, slice(40)), (0, slice(40, None)), *((row, slice(None)) for row in range(1, small.WINDOWS))]
        expected = torch.zeros((), device=device)
        for row, part in parts:
            logits = net(input_ids=inputs[row : row + 1, part]).logits[0]
            expected = expected + F.cross_entropy(logits, targets[row, part], reduction="sum")
        theirs = torch.autograd.grad(expected, list(net.parameters()))
        with torch.autocast(device.type, small.TYPES[kind], enabled=kind != "fp32"):
            loss = ours(inputs, targets, positions)
        scale = 1024.0 if kind == "fp16" else 1.0
        found = torch.autograd.grad(loss * scale / inputs.numel(), list(net.parameters()))
        loss_error, gradient_error = TOLERANCE[kind]
        assert loss.item() == pytest.approx(expected.item(), rel=loss_error)
        for mine, other in zip(found, theirs, strict=True):
            assert relative(mine / scale * inputs.numel(), other) < gradient_error


def test_the_heads_gradient_in_fp16_is_finite_where_its_sum_is_not(device: torch.device) -> None:
    """16,384 tokens, one in 16 with the same target, hidden state 8, FP16_SCALE 8: the sum exceeds fp16's 65,504."""
    tokens = 16384 if device.type == "cuda" else 2048
    hidden = torch.full((tokens, 64), 8.0 * 16384 / tokens, dtype=torch.float16, device=device)
    weight = torch.zeros(384, 64, dtype=torch.float16, device=device, requires_grad=True)
    targets = torch.arange(tokens, device=device) % 300
    targets[::16] = 7
    loss = token_loss(hidden, weight, targets, 300, Kernels(compile=False), chunk=tokens)
    (loss / tokens).backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_attention_takes_a_fused_kernel_and_cudnns_on_hopper(on_cuda: torch.device, compiled: bool) -> None:
    ours = LanguageModel(small.network(on_cuda))
    if compiled:
        ours.compile()
    inputs, targets = small.batch(on_cuda, 0, 0)

    def step() -> None:
        with attention.preferred(on_cuda), torch.autocast("cuda", torch.bfloat16):
            ours(inputs, targets).backward()

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    called = {event.key for event in profile.key_averages()}
    fused = {name for name in called if "scaled_dot_product" in name and "math" not in name}
    assert fused, sorted(called)
    if torch.cuda.get_device_capability() == (9, 0):
        assert any("cudnn" in name for name in fused), sorted(fused)
