"""Models that also read images: text trains the text decoder, and leaves the rest as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.gemma3.configuration_gemma3 import Gemma3Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3ForConditionalGeneration

from tests.trainer import toy
from trainer.models import adapters, loading, networks
from trainer.models.adapters import Adapter
from trainer.models.causal import CausalModel

INPUTS = torch.arange(40).reshape(2, 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Gemma 3 with a vision encoder."""
    heads = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    text = {**heads, "num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 300}
    eye = {**heads, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    torch.manual_seed(3)
    shape = Gemma3Config(text_config=text, vision_config=eye, mm_tokens_per_image=4)
    Gemma3ForConditionalGeneration(shape).save_pretrained(tmp_path / "gemma")
    return tmp_path / "gemma"


def gradients(net: Any) -> dict[str, bool]:
    """Whether text gives each trained parameter a gradient: workers would wait for one that has none."""
    CausalModel(net)(INPUTS[:, :-1].contiguous(), INPUTS[:, 1:].contiguous()).backward()
    return {name: value.grad is not None for name, value in net.named_parameters() if value.requires_grad}


def test_all_that_is_trained_gets_a_gradient_and_the_rest_is_saved_as_it_was(folder: Path, tmp_path: Path) -> None:
    net = networks.load(str(folder), 300, 32, None)
    found = gradients(net)
    assert all(found.values())
    assert "model.language_model.layers.1.self_attn.q_proj.weight" in found
    assert not any("vision" in name for name in found)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.save_pretrained(tmp_path / "saved", state_dict=adapters.trainables(net), save_original_format=False)
    assert not any("vision" in name for name in gradients(networks.shaped_as(tmp_path / "saved")))
    again = networks.load(str(tmp_path / "saved"), 300, 32, None).state_dict()
    assert before.keys() == again.keys()
    assert all(torch.equal(value, again[name]) for name, value in before.items())


@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj"])
def test_an_adapter_lies_in_the_decoder_alone(folder: Path, tmp_path: Path, targets: str) -> None:
    net = networks.load(str(folder), 300, 32, None)
    changes: dict[str, Any] = {"model__name": folder, "adapter__kind": "lora", "adapter__targets": targets}
    adapter = Adapter(net, toy.configuration(**changes))
    found = gradients(net)
    assert found
    assert all(found.values())
    assert all(name.startswith("model.language_model.") for name in found)
    (tmp_path / "adapter").mkdir()
    adapter.save(adapters.trainables(net), tmp_path / "adapter")
    loading.load(loading.from_name(str(tmp_path / "adapter"), "--model"))
