"""What a causal model learns is what its own code computes; a model that sees later tokens is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.trainer import toy
from tests.trainer.conftest import Settings, Start
from tests.trainer.models.test_causal import FAMILIES, GROUPED, SMALL, network
from trainer.errors import UserError
from trainer.models import checks, networks
from trainer.tasks import pretrain

EXPERTS = GROUPED | {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SOUND: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", EXPERTS),
    "a balancing loss of weight 0": ("mixtral", EXPERTS | {"output_router_logits": True, "router_aux_loss_coef": 0.0}),
    "granite": ("granite", GROUPED | {"logits_scaling": 4.0}),
    "mamba": ("mamba", {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 500}),
    "codegen": ("codegen", {"n_embd": 16, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "vocab_size": 500}),
    "bert, a decoder": ("bert", SMALL | {"is_decoder": True}),
}
BALANCED = "it learns something else; .* output_router_logits: false for a mixture of experts"
LATER = "sees later tokens: its logits before a changed token differ by .* of their size; name a causal"
UNSOUND: dict[str, tuple[str, dict[str, Any], str]] = {
    "mixtral with a balancing loss": ("mixtral", EXPERTS | {"output_router_logits": True}, BALANCED),
    "a faint balancing loss": (
        "mixtral",
        EXPERTS | {"output_router_logits": True, "router_aux_loss_coef": 1e-9},
        BALANCED,
    ),
    "bert": ("bert", SMALL, LATER),
    "xlnet": ("xlnet", {"d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 64, "vocab_size": 500}, LATER),
    "gemma3 both ways": ("gemma3_text", GROUPED | {"use_bidirectional_attention": True}, LATER),
    "roberta": ("roberta", SMALL | {"is_decoder": True}, r"this roberta model cannot compute a text \("),
    "modernbert": (
        "modernbert-decoder",
        SMALL | {"pad_token_id": 1},
        r"a modernbert-decoder model is not trained from scratch \(.*pad_token_id",
    ),
}


def built(kind: str, shape: dict[str, Any], dataset: Path, folder: Path) -> Any:
    AutoConfig.for_model(kind, **shape).to_json_file(folder / "config.json")
    config = toy.configuration(
        model__config=folder / "config.json", data__directory=dataset, run__directory=folder / "run", sequence_length=32
    )
    return pretrain.make_work(config)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_model_passes_and_nothing_of_it_changes(name: str, dataset: Path, tmp_path: Path) -> None:
    model = built(*SOUND[name], dataset, tmp_path)
    before = {key: value.clone() for key, value in model.module.state_dict().items()}
    random, modes = torch.get_rng_state(), [part.training for part in model.module.modules()]
    model.check(torch.float32)
    assert torch.equal(torch.get_rng_state(), random)
    assert [part.training for part in model.module.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.module.state_dict().items())
    assert all(value.grad is None for value in model.module.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_with_large_weights_in_half_precision(family: str) -> None:
    checks.check("model.name", networks.module(network(family).to(torch.bfloat16)), torch.bfloat16)


def test_half_precision_hides_no_loss_that_a_model_adds() -> None:
    """Bamba's z-loss, half a percent of the whole."""
    state = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "attn_layer_indices": [1]}
    shape: Any = AutoConfig.for_model("bamba", **GROUPED, **state, z_loss_coefficient=1e-3)
    net: Any = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    with pytest.raises(UserError, match=r"bamba model in transformers is .*: it learns something else"):
        checks.check("model.name", networks.module(net), torch.bfloat16)


@pytest.mark.parametrize("name", UNSOUND)
def test_a_model_that_learns_something_else_is_refused_in_one_line(name: str, dataset: Path, tmp_path: Path) -> None:
    kind, shape, expected = UNSOUND[name]
    with pytest.raises(UserError, match=f"^model.config: .*{expected}") as raised:
        built(kind, shape, dataset, tmp_path).check(torch.float32)
    assert "\n" not in str(raised.value)


def test_a_run_ends_before_its_first_step(start_workers: Start, settings: Settings, tmp_path: Path) -> None:
    AutoConfig.for_model("bert", **SMALL).to_json_file(tmp_path / "bert.json")
    workers = start_workers(2, settings(tmp_path / "run", model__config=tmp_path / "bert.json"))
    assert workers.wait() == [42, 42]
    assert "model.config: this bert model sees later tokens" in workers.output
    assert "Traceback" not in workers.output
