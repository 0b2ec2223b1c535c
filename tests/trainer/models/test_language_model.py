"""Our GPT-2 against transformers' own: losses, logits and every gradient."""

import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

from tests.trainer import toy
from tests.trainer.conftest import can_compile
from trainer.models import attention, networks
from trainer.models.gpt2 import LanguageModel
from trainer.models.head import Kernels, TiedGradient, replace_in_groups, token_loss

VOCABULARY = 300
"""No multiple of 128: the copy that the head multiplies has 384 rows."""


@pytest.fixture
def without_pulumi(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of inductor's cache is pickled, and pickle looks up names in each module: all of Pulumi's lazy modules
    would load, half of the time of a first compilation. The trainer never runs beside them."""
    for name in [name for name in sys.modules if name.startswith("pulumi")]:
        monkeypatch.delitem(sys.modules, name)


def windows(count: int = 2, length: int = 48, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, VOCABULARY, (count, length + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def network(preset: str = "tiny", sharp: float = 1.0, **changes: Any) -> Any:
    """sharp > 1 makes the weights larger, so that the model is sure of some words."""
    net: Any = networks.from_preset(preset, VOCABULARY, 0, seed=1)
    if changes:
        net.config.update(changes)
        torch.manual_seed(1)
        net = GPT2LMHeadModel(net.config)
    with torch.no_grad():
        for value in net.parameters():
            value.mul_(sharp)
    return net


def gradients(net: Any, loss: Callable[[], torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
    net.zero_grad(set_to_none=True)
    value = loss()
    (value / 96).backward()
    return value.item(), {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        error = (ours[name] - value).norm() / value.norm().clamp_min(1e-12)
        assert error < tolerance, f"{name}: {error:.2e}"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"activation_function": "relu", "n_inner": 48},
        {"layer_norm_epsilon": 1e-2},
    ],
    ids=["plain", "untied", "inverse-layer-scale", "relu", "epsilon"],
)
def test_loss_and_every_gradient_equal_those_of_transformers(changes: dict[str, Any]) -> None:
    net = network(sharp=3.0, **changes)
    inputs, targets = windows()
    loss, ours = gradients(net, lambda: LanguageModel(net)(inputs, targets))
    reference, theirs = gradients(net, lambda: toy.token_loss(net, inputs, targets))
    assert loss == pytest.approx(reference, rel=1e-6)
    assert_same(ours, theirs, 1e-5)
    assert torch.allclose(LanguageModel(net).logits(inputs), net(input_ids=inputs).logits, atol=1e-5)
    _, ours = gradients(net, lambda: LanguageModel(net).logits(inputs).square().sum())
    _, theirs = gradients(net, lambda: net(input_ids=inputs).logits.square().sum())
    assert_same(ours, theirs, 1e-5)


def test_padded_rows_get_no_probability_and_no_gradient() -> None:
    """A model whose logits are far below zero would give padding, with its logit of 0, all the probability."""
    net = network()
    with torch.no_grad():
        net.transformer.ln_f.bias.fill_(3.0)
        net.transformer.wte.weight.fill_(-1.0)
    inputs, targets = windows()
    loss, ours = gradients(net, lambda: LanguageModel(net)(inputs, targets))
    reference, theirs = gradients(net, lambda: toy.token_loss(net, inputs, targets))
    assert loss == pytest.approx(reference, rel=1e-5)
    assert ours["transformer.wte.weight"].shape == (VOCABULARY, 32)
    assert_same({"w": ours["transformer.wte.weight"]}, {"w": theirs["transformer.wte.weight"]}, 1e-4)


@pytest.mark.parametrize(
    ("tied", "compile", "chunk"),
    [(True, False, 16), (False, False, 16), (False, True, 25)],
)
def test_the_head_in_chunks_equals_cross_entropy_of_the_logits(
    tied: bool, compile: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 50 tokens 16 leave a rest; compiled, in one graph each, each length would be another kernel."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch.manual_seed(0)
    kernels = Kernels(compile)
    hidden = torch.randn(50, 16, requires_grad=True)
    weight = torch.randn(VOCABULARY, 16, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (50,))
    reference = F.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    expected = torch.autograd.grad(reference * 0.37, (hidden, weight))
    padded = F.pad(weight, (0, 0, 0, 84), value=0.5)
    holder = TiedGradient() if tied else None
    loss = token_loss(hidden, padded, targets, VOCABULARY, kernels, chunk=chunk, tied=holder)
    if holder is None:
        found = torch.autograd.grad(loss * 0.37, (hidden, weight))
    else:
        matrix = torch.autograd.grad(loss * 0.37, hidden)[0]
        part = holder.take()
        assert part is not None
        assert part[VOCABULARY:].count_nonzero() == 0
        found = (matrix, part[:VOCABULARY])
    torch.testing.assert_close(loss, reference, rtol=1e-6, atol=0)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        again = token_loss(hidden, padded, targets, VOCABULARY, kernels, chunk=chunk)
    torch.testing.assert_close(again, reference, rtol=1e-6, atol=0)


def test_a_word_without_any_probability_has_a_finite_loss() -> None:
    """exp(-300) is 0 in fp32, its logarithm is not."""
    logits = torch.tensor([[0.0, -300.0, 0.0]])
    loss, at_target = replace_in_groups(logits, torch.tensor([1]), 2, 1.0)
    assert loss.item() == pytest.approx(300)
    assert at_target.tolist() == [[-1]]
    assert logits.tolist() == [[1, 0, 0]]


def test_gradients_in_fp16_keep_what_it_cannot_hold() -> None:
    """A probability of 1.5e-8: in fp16 without a scale its gradient would be 0."""
    hidden = torch.zeros(1, 4, dtype=torch.float16)
    hidden[0, 0] = 1
    weight = torch.zeros(256, 4, dtype=torch.float16)
    weight[1:, 0] = -18.0  # probability of the others: exp(-18) = 1.5e-8
    hidden.requires_grad_()
    tied = TiedGradient()
    token_loss(hidden, weight, torch.tensor([0]), 256, Kernels(compile=False), chunk=8, tied=tied).backward()
    matrix = tied.take()
    assert matrix is not None
    assert float(matrix[1, 0]) == pytest.approx(1.5e-8, rel=0.1)


def test_the_heads_gradient_in_fp16_holds_a_sum_over_many_equal_targets() -> None:
    """It is summed on the way forward, before any loss scale: in fp16 this sum would be infinite."""
    tokens, word = 16_384, 7
    hidden = torch.full((tokens, 4), 8.0, dtype=torch.float16, requires_grad=True)
    weight = torch.zeros(256, 4, dtype=torch.float16)
    targets = torch.randint(8, 256, (tokens,), generator=torch.Generator().manual_seed(0))
    targets[: tokens // 15] = word
    tied = TiedGradient()
    token_loss(hidden, weight, targets, 256, Kernels(compile=False), chunk=tokens, tied=tied).backward()
    matrix = tied.take()
    assert matrix is not None
    count = int((targets == word).sum())
    assert float(matrix[word, 0]) == pytest.approx(8.0 * (tokens / 256 - count), rel=1e-3)


@pytest.mark.parametrize(("capability", "first"), [((9, 0), SDPBackend.CUDNN_ATTENTION), ((8, 0), None)])
def test_hopper_tries_cudnns_attention_first(
    capability: tuple[int, int], first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In forward and backward passes, which autograd runs in a thread of its own."""
    plain = torch._C._get_sdp_priority_order()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with attention.preferred(torch.device("cuda")), ThreadPoolExecutor() as pool:
        seen = [torch._C._get_sdp_priority_order(), pool.submit(torch._C._get_sdp_priority_order).result()]
    expected = plain if first is None else [int(first), *(kind for kind in plain if kind != int(first))]
    assert all(order[: len(expected) - 1] == expected[: len(expected) - 1] for order in seen)
    assert torch._C._get_sdp_priority_order() == plain


def test_the_copies_follow_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after changes that torch's version counter does not see. They are made once a step, not more often."""
    net = network(sharp=2.0)
    ours = LanguageModel(net)
    inputs, targets = windows()

    def loss() -> float:
        with torch.autocast("cpu", torch.bfloat16):
            return ours(inputs, targets).item()

    first = loss()
    with torch.no_grad():
        net.transformer.h[0].mlp.c_fc.weight.mul_(-1)
    second = loss()
    assert second != first
    net.transformer.h[0].mlp.c_fc.weight.data.mul_(-1)
    assert loss() == first
    with torch.autocast("cpu", torch.bfloat16):
        ours(inputs, targets).backward()
    made = []
    monkeypatch.setattr(torch.Tensor, "copy_", lambda own, *rest: made.append(own) or own)
    loss()
    assert made == []  # a gradient is there: the next micro-batch of the same step
    net.requires_grad_(False).zero_grad(set_to_none=True)
    loss()
    assert made == []  # a frozen model, such as a teacher


@pytest.mark.parametrize(("heads", "length"), [(0, 56), (3, 56), (1, 32), (2, 5)])
def test_our_attention_equals_the_plain_one(heads: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """heads: of a group that shares keys and values; 0: in blocks, without groups."""
    monkeypatch.setattr(attention, "ROWS", 16)
    monkeypatch.setattr(attention, "GROUPED_ROWS", 16)
    torch.manual_seed(0)
    query = torch.randn(*((2, heads) if heads else (6,)), length, 8, requires_grad=True)
    key, value = (torch.randn(len(query), length, 8, requires_grad=True) for _ in range(2))
    outer, three = torch.randn(query.shape), (query, key, value)
    each, other = (part[:, None].expand(query.shape) if heads else part for part in (key, value))
    expected = F.scaled_dot_product_attention(query, each, other, is_causal=True, scale=0.3)
    theirs = torch.autograd.grad(expected, three, outer)
    if heads:
        found = attention.grouped_attention(query, key, value, 0.3)
    else:
        found = attention.causal_attention(query, key, value, attention.mask(length), 0.3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(found, three, outer), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [True, False])
def test_attention_in_bf16_bears_keys_with_a_large_common_part(shared: bool) -> None:
    """As Qwen's biases make them: rounded to bf16, scores of hundreds would lose their differences."""
    torch.manual_seed(0)
    shape = (2, 7, 200, 64) if shared else (14, 200, 64)
    query, key, value = torch.randn(shape), torch.randn(shape[0], 200, 64), torch.randn(shape[0], 200, 64)
    query[..., 5] += 10
    key[..., 5] += 200
    three = query, key, value = [part.bfloat16().requires_grad_() for part in (query, key, value)]
    exact, outer = [part.detach().float().requires_grad_() for part in three], torch.randn(shape)
    each, other = (part[:, None].expand(shape) if shared else part for part in exact[1:])
    expected = F.scaled_dot_product_attention(exact[0], each, other, is_causal=True, scale=0.125)
    if shared:
        found = attention.grouped_attention(query, key, value, 0.125)
    else:
        found = attention.causal_attention(query, key, value, attention.mask(200), 0.125)
    theirs = torch.autograd.grad(expected, exact, outer)
    ours = torch.autograd.grad(found, three, outer.bfloat16())
    for one, reference in zip((found, *ours), (expected, *theirs), strict=True):
        assert (one - reference).norm() / reference.norm() < 0.02


@pytest.mark.parametrize(
    ("backend", "tiles"), [pytest.param("inductor", True, marks=can_compile), ("aot_eager", False)]
)
@pytest.mark.usefixtures("without_pulumi")
def test_compiled_in_bf16_stays_close_to_fp32(backend: str, tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph for the blocks: through the C++ compiler with torch's attention, and traced with ours in blocks, whose
    dozen further kernels take the compiler as long again."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    monkeypatch.setattr(attention, "ROWS", 32)
    monkeypatch.setattr(attention, "TILES", tiles)
    net = network(sharp=2.0)
    inputs, targets = windows()
    reference, theirs = gradients(net, lambda: toy.token_loss(net, inputs, targets))
    ours = LanguageModel(net)
    ours.compile()
    with torch.autocast("cpu", torch.bfloat16):
        loss, rounded = gradients(net, lambda: ours(inputs, targets))
    assert loss == pytest.approx(reference, rel=2e-3)
    assert_same(rounded, theirs, 0.06)


def test_the_loss_curve_in_bf16_is_that_of_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty steps on a text that can be learned, through all of the fast path: the curves differ about as much as those
    of two fp32 trainings, of which one begins with weights rounded to bf16."""
    monkeypatch.setattr(attention, "ROWS", 16)
    monkeypatch.setattr(attention, "TILES", False)

    def curve(dtype: torch.dtype, rounded: bool = False) -> torch.Tensor:
        net = networks.from_preset("tiny", VOCABULARY, 0, seed=1)
        with torch.no_grad():
            for value in net.parameters() if rounded else ():
                value.copy_(value.bfloat16())
        ours, adam = LanguageModel(net), torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
        values = []
        for step in range(40):
            start = torch.randint(0, 7, (8, 1), generator=torch.Generator().manual_seed(step))
            ids = (start + torch.arange(25)) ** 2 % 41
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                loss = ours(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()) / (8 * 24)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            adam.step()
            adam.zero_grad()
            values.append(loss.item())
        return torch.tensor(values)

    exact = curve(torch.float32)
    noise = (curve(torch.float32, rounded=True) - exact).abs()
    assert exact[0] > 5.6
    assert exact[-10:].mean() < 1.0
    difference = (curve(torch.bfloat16) - exact).abs()
    assert difference.max() < 3 * noise.max(), f"{difference.max():.4f} against {noise.max():.4f}"
    assert difference.mean() < 3 * noise.mean(), f"{difference.mean():.4f} against {noise.mean():.4f}"


def test_attention_statistics_are_the_extremes_of_the_scores_before_the_mask() -> None:
    net = network("micro", sharp=4.0)
    inputs, _ = windows(count=3)
    net.config._attn_implementation = "eager"
    seen: list[torch.Tensor] = []

    def scores(module: Any, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
        query, key, _ = output.split(128, dim=2)
        heads = [part[0].view(48, 4, 32).transpose(0, 1) for part in (query, key)]
        seen.append(heads[0] @ heads[1].transpose(1, 2) / 32**0.5)

    for layer in net.transformer.h:
        layer.attn.c_attn.register_forward_hook(scores)
    with torch.no_grad():
        net(input_ids=inputs)
    found = LanguageModel(net).attention_statistics((inputs,))
    assert list(found) == [f"layer{n}_attention_weight_{end}" for n in range(4) for end in ("max", "min")]
    for number, values in enumerate(seen):
        assert found[f"layer{number}_attention_weight_max"] == pytest.approx(float(values.max()), rel=1e-4)
        assert found[f"layer{number}_attention_weight_min"] == pytest.approx(float(values.min()), rel=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        near = LanguageModel(net).attention_statistics((inputs,))
    assert near["layer0_attention_weight_max"] == pytest.approx(float(seen[0].max()), rel=0.05)
