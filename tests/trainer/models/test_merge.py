"""A merged adapter is the adapter: on one end of a tied pair, on both, on peft's copies; else it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear
from transformers import AutoConfig, AutoModelForCausalLM

from tests.trainer.models.test_causal import GROUPED
from trainer.errors import UserError
from trainer.export import __main__ as export
from trainer.models import adapters, loading

WORDS = 100
SMALL = GROUPED | {"vocab_size": WORDS}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}
SHAPES = {"gpt2": GPT2, "gpt_neox": SMALL, "mixtral": SMALL | {"num_local_experts": 4}}
NAMES = {
    "gpt2": {"embedding": "wte", "head": "lm_head", "layer": "c_attn"},
    "gpt_neox": {"embedding": "embed_in", "head": "lm_head", "layer": "query_key_value"},
}
LLAMA = {"embedding": "embed_tokens", "head": "lm_head", "layer": "q_proj"}
SETTINGS: dict[str, dict[str, Any]] = {
    "the embedding": {"target_modules": ["embedding"]},
    "a layer and the head": {"target_modules": ["layer", "head"]},
    "both ends as one": {"target_modules": ["layer", "embedding"], "ensure_weight_tying": True},
    "a whole embedding": {"target_modules": ["layer"], "modules_to_save": ["embedding"]},
    "whole ends": {"target_modules": ["layer"], "modules_to_save": ["embedding", "head"]},
    "DoRA of the head": {"target_modules": ["layer", "head"], "use_dora": True},
    "some words": {"target_modules": ["layer"], "trainable_token_indices": [3, 5]},
    "layers alone": {"target_modules": "all-linear", "use_rslora": True, "alpha_pattern": {"layer": 64}},
}
CASES = [("llama", True, name) for name in SETTINGS]
CASES += [("gpt2", tied, "a layer and the head") for tied in (True, False)]
CASES += [
    ("gpt2", True, "the embedding"),
    ("mixtral", True, "a whole embedding"),
    ("gpt_neox", True, "a layer and the head"),
]


def named(kind: str, value: Any) -> Any:
    names = NAMES.get(kind, LLAMA)
    if isinstance(value, dict):
        return {names.get(key, key): each for key, each in value.items()}
    return [names.get(each, each) for each in value] if isinstance(value, list) else value


def made(folder: Path, kind: str, tied: bool, settings: dict[str, Any]) -> Path:
    """A base model in folder/base and an adapter that has learned something in folder/adapter."""
    torch.manual_seed(3)
    shape = AutoConfig.for_model(kind, **SHAPES.get(kind, SMALL), tie_word_embeddings=tied)
    net: Any = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    with torch.no_grad():
        for value in net.parameters():
            value.mul_(2).add_(torch.randn_like(value) * 0.02)
    net.save_pretrained(folder / "base")
    given = {key: named(kind, value) for key, value in settings.items()}
    adapted = get_peft_model(net, LoraConfig(r=4, fan_in_fan_out=kind == "gpt2", task_type="CAUSAL_LM", **given))
    with torch.no_grad():
        for value in adapted.parameters():
            if value.requires_grad:
                value.add_(torch.randn_like(value) * 0.3)
    adapted.save_pretrained(str(folder / "adapter"))
    return folder / "adapter"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "tied", "name"), CASES)
def test_what_is_exported_has_the_logits_of_the_adapter(kind: str, tied: bool, name: str, tmp_path: Path) -> None:
    adapter = made(tmp_path, kind, tied, SETTINGS[name])
    ids = torch.arange(WORDS).reshape(2, -1)
    base: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    expected = PeftModel.from_pretrained(base, str(adapter)).eval()(input_ids=ids).logits
    export.export(
        loading.Source(str(adapter), base=str(tmp_path / "base")), tmp_path / "whole", "fp32", True, merge=True
    )
    whole: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    torch.testing.assert_close(whole(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)
    ends = whole.get_input_embeddings().weight, whole.get_output_embeddings().weight
    kept = tied and torch.equal(*ends)
    assert kept or name not in ("layers alone", "some words")
    assert (ends[0] is ends[1]) == whole.config.tie_word_embeddings == kept, "a pair that is equal stays tied"


@pytest.mark.filterwarnings("ignore")
def test_a_merge_that_computes_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = made(tmp_path, "llama", True, SETTINGS["a layer and the head"])
    plain = Linear.get_delta_weight
    monkeypatch.setattr(Linear, "get_delta_weight", lambda layer, name: plain(layer, name) * 1.01)
    with pytest.raises(UserError, match=r"no adapter of LlamaForCausalLM \(merged, its logits differ by 0\.0"):
        adapters.merge(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), adapter)
