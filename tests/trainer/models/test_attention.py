"""Our attention stands in for that of transformers in every model, whatever the model asks about it."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.trainer.models.test_causal import SMALL
from trainer.models.causal import CausalModel


def test_a_model_that_asks_whether_attention_is_sdpa_keeps_its_mask() -> None:
    """DeepSeek V3.2: a query sees its 8 best keys."""
    of_8 = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim")
    few = dict.fromkeys(("num_experts_per_tok", "n_group", "topk_group", "index_n_heads"), 1)
    sizes = SMALL | few | dict.fromkeys((*of_8, "index_topk"), 8) | {"num_key_value_heads": 4, "n_routed_experts": 4}
    found = []
    for way in ("eager", "sdpa"):
        torch.manual_seed(3)
        config = AutoConfig.for_model("deepseek_v32", **sizes)
        net = AutoModelForCausalLM.from_config(config, attn_implementation=way, dtype=torch.float32)
        inputs = torch.randint(500, (2, 32))
        found.append(
            net(input_ids=inputs, labels=inputs).loss
            if way == "eager"
            else CausalModel(net)(inputs[:, :-1], inputs[:, 1:]) / 62
        )
    assert found[0].item() == pytest.approx(found[1].item(), rel=1e-5)
