"""Any causal language model: loss and gradients as transformers has them, packed rows, and what a run makes of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from trainer.models import causal, networks
from trainer.models.causal import IGNORED, CausalModel

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "vocab_size": 500,
    "pad_token_id": None,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
GROUPED: dict[str, Any] = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "qwen2": GROUPED | {"tie_word_embeddings": True},
    "qwen3": GROUPED,
    "mistral": GROUPED | {"sliding_window": 8},
    "gemma": GROUPED,
    "gemma2": GROUPED | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_neox": SMALL,
    "phi": SMALL,
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": 500,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}
OWN_LOGITS = {"gemma2", "phi"}


def network(family: str) -> Any:
    """A model of random weights, large enough that each part tells."""
    config = AutoConfig.for_model(family, **FAMILIES[family])
    networks._drop_nothing(config)
    torch.manual_seed(3)
    net = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for value in net.parameters():
            value.mul_(2.0).add_(torch.randn_like(value) * 0.02)
    return net


def gradients(net: Any, loss: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    net.zero_grad(set_to_none=True)
    total = loss()
    total.backward()
    return total.detach(), {name: value.grad.clone() for name, value in net.named_parameters() if value.requires_grad}


def batch(rows: int = 3, length: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(500, (rows, length + 1), generator=torch.Generator().manual_seed(7))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_every_gradient_are_those_of_transformers(
    family: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(causal, "CHUNK", 40)  # several chunks, the last one short
    net = network(family)
    inputs, targets = batch()
    theirs = gradients(net, lambda: networks.token_loss(net, inputs, targets))
    module = CausalModel(net)
    same(gradients(net, lambda: module(inputs, targets)), theirs)
    assert ("event=logits made_by=model" in capsys.readouterr().out) == (family in OWN_LOGITS)
    with torch.no_grad():
        same(module(inputs, targets), theirs[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_packed_in_a_row_are_as_each_by_itself(family: str) -> None:
    net = network(family)
    module = CausalModel(net)
    inputs, targets = batch(rows=2, length=24)
    targets[0, :5] = targets[0, 17:20] = targets[1, 12:] = IGNORED
    cuts = [(0, 0, 10), (0, 10, 13), (0, 13, 24), (1, 0, 24)]
    positions = torch.empty_like(inputs)
    for row, first, last in cuts:
        positions[row, first:last] = torch.arange(last - first)

    def apart() -> torch.Tensor:
        total = torch.zeros(())
        for row, first, last in cuts:
            logits = net(input_ids=inputs[row : row + 1, first:last]).logits[0]
            total = total + F.cross_entropy(logits, targets[row, first:last], reduction="sum", ignore_index=IGNORED)
        return total

    same(gradients(net, lambda: module(inputs, targets, positions)), gradients(net, apart))
    nothing = module(inputs, torch.full_like(targets, IGNORED), positions)
    nothing.backward()
    assert float(nothing.detach()) == 0


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_layers_computed_again_give_the_same_gradients(family: str) -> None:
    net = network(family)
    inputs, targets = batch()
    plain = networks.module(net)
    expected, before = gradients(net, lambda: plain(inputs, targets)), kept(lambda: plain(inputs, targets))
    again = networks.module(net, checkpointing=True)
    assert kept(lambda: again(inputs, targets)) < 0.7 * before
    same(gradients(net, lambda: again(inputs, targets)), expected)


def kept(run: Callable[[], torch.Tensor]) -> int:
    """Bytes that autograd keeps for the way back."""
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        run()
    return sum(found.values())
