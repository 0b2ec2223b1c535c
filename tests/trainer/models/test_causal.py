"""Any causal language model: loss and gradients as transformers has them, packed rows, and what a run makes of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.trainer import toy
from tests.trainer.conftest import Settings, Start, done, losses
from trainer.checkpoint.format import checkpoint_folder, load_weights
from trainer.data.batches import open_dataset
from trainer.errors import UserError
from trainer.models import attention, causal, loading, networks
from trainer.models.causal import IGNORED, CausalModel
from trainer.models.generation import continued
from trainer.tasks import pretrain

FP32 = torch.float32

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
    "doge": GROUPED | {"keep_window_size": 64},
    "gpt_neox": SMALL,
    "phi": SMALL,
    "opt": SMALL | {"ffn_dim": 48, "word_embed_proj_dim": 32},
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
    """A model of random weights, so large that each part shows in the loss."""
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
    theirs = gradients(net, lambda: toy.token_loss(net, inputs, targets))
    module = CausalModel(net)
    same(gradients(net, lambda: module(inputs, targets)), theirs)
    assert ("event=logits made_by=model" in capsys.readouterr().out) == (family in OWN_LOGITS)
    with torch.no_grad():
        same(module(inputs, targets), theirs[0])


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt_neox"])
def test_in_bf16_attention_is_ours_and_stays_close_to_fp32(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistral's sliding window of 8 hides more positions: that attention is left to torch."""
    monkeypatch.setattr(attention, "TILES", False)
    net = network(family)
    inputs, targets = batch()
    loss, expected = gradients(net, lambda: toy.token_loss(net, inputs, targets))
    seen: list[tuple[int, ...]] = []
    plain = attention.grouped_attention
    monkeypatch.setattr(attention, "grouped_attention", lambda *given: seen.append(given[0].shape) or plain(*given))
    with torch.autocast("cpu", torch.bfloat16):
        rounded, found = gradients(net, lambda: CausalModel(net)(inputs, targets))
    heads = {"llama": [(6, 2, 24, 8)] * 2, "mistral": [], "gpt_neox": [(12, 1, 24, 8)] * 2}
    assert seen == heads[family]
    assert float(rounded) == pytest.approx(float(loss), rel=2e-3)
    for name, gradient in expected.items():
        assert (found[name].float() - gradient).norm() <= 0.06 * gradient.norm() + 1e-3, name


def test_a_model_that_asks_whether_attention_is_sdpa_keeps_its_mask() -> None:
    """Our attention stands in for that of transformers in every model. DeepSeek V3.2: a query sees its 8 best keys."""
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


def test_a_compiled_layer_is_one_graph_with_our_attention_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TILES", False)
    net = network("llama")
    inputs, targets = batch()
    with torch.autocast("cpu", torch.bfloat16):
        module = CausalModel(net)
        expected = gradients(net, lambda: module(inputs, targets))
        module.compile(backend="aot_eager", fullgraph=True)
        same(gradients(net, lambda: module(inputs, targets)), expected)


@pytest.mark.parametrize("family", ["llama", "gemma2", "doge", "gpt_neox", "gpt2"])
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
    return sum(toy.kept(run).values())


def test_a_llama_from_its_config_trains_and_loads_as_any_model_does(
    start_workers: Start, settings: Settings, dataset: Path, tmp_path: Path
) -> None:
    AutoConfig.for_model("llama", **GROUPED).to_json_file(tmp_path / "llama.json")

    def train(name: str, world: int = 1, **changes: Any) -> dict[str, Any]:
        run = tmp_path / name
        given = {"steps": 6, "tokens_per_step": 512, "optimizer__schedule": "constant"} | changes
        workers = start_workers(world, settings(run, model__config=tmp_path / "llama.json", **given))
        assert workers.wait(120) == [0] * world, workers.output
        assert "event=first_loss_unexpected" not in workers.output
        return done(run)

    straight, both = train("straight"), train("two", world=2, model__checkpointing="true")
    saved = Path(straight["checkpoint"]) / "model"
    weights = load_file(saved / "model.safetensors")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "straight"), abs=1e-5)
    assert straight["validation_loss"] < straight["initial_validation_loss"] - 0.2
    assert both["sample"].startswith("The")

    stock: Any = AutoModelForCausalLM.from_pretrained(saved)
    words: Any = AutoTokenizer.from_pretrained(saved)
    assert words.eos_token_id == stock.config.eos_token_id == 0
    held_out = pretrain.Validation(
        open_dataset(str(dataset)).validation, 32, 2, 4, tokenizer=dataset / "tokenizer.json"
    )
    theirs = held_out.loss(toy.Stock(stock), toy.place(), FP32)
    assert theirs == pytest.approx(straight["validation_loss"], abs=1e-5)

    # As model.name it loads from any number of files.
    stock.save_pretrained(tmp_path / "parts", max_shard_size="30KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    again = networks.load(str(tmp_path / "parts"), 500, 32, None)
    assert torch.equal(again.lm_head.weight, weights["lm_head.weight"])


@pytest.mark.parametrize(("family", "head"), [("qwen2", False), ("llama", True)])
def test_a_checkpoint_in_several_files_is_read_whole_and_another_models_refused(
    family: str, head: bool, tmp_path: Path
) -> None:
    """Tied (Qwen) the head is saved once, as the embedding."""
    net, again = network(family), network(family)
    net.save_pretrained(tmp_path / "model", max_shard_size="30KB")
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())["weight_map"]
    assert ("lm_head.weight" in index) == head
    with torch.no_grad():
        for value in again.parameters():
            value.zero_()
    load_weights(tmp_path, again)
    for name, value in net.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert (again.lm_head.weight is again.model.embed_tokens.weight) != head
    with pytest.raises(UserError, match=r"another model: .* is None there and"):
        load_weights(tmp_path, network("gpt_neox"))


def test_a_shape_that_does_not_fit_the_data_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for family, said in (("llama", "has a vocabulary of 500, the data of 501"), ("t5", "is a t5 model (no decoder)")):
        AutoConfig.for_model(family, **FAMILIES.get(family, {})).to_json_file(path)
        with pytest.raises(UserError) as caught:
            networks.from_config(str(path), 501, 0, 64, seed=1)
        assert str(caught.value).startswith(f"model.config: {path} {said}")
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"model.config: .*nothing.json cannot be read"):
        networks.from_config(str(tmp_path / "nothing.json"), 500, 0, 64, seed=1)


@pytest.mark.parametrize("family", ["falcon", "bloom"])
def test_a_model_that_lets_packed_texts_see_each_other_is_refused(family: str) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500}
    net = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape))
    assert isinstance(networks.module(net), CausalModel)
    with pytest.raises(UserError, match=f"a {family} model attends across packed conversations"):
        networks.module(net, packed=True)


def test_what_generates_is_kept_by_a_resume_and_always_saved(tmp_path: Path) -> None:
    """Some models name a temperature without sampling, which transformers reads and refuses to write."""
    network("llama").save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.9, "eos_token_id": [0, 7]}')
    net: Any = networks.load(str(tmp_path), 500, 32, None)
    net.generation_config.eos_token_id = [3, 0, 7]
    net.save_pretrained(tmp_path / "again")
    kept = networks.shaped_as(tmp_path / "again").generation_config
    assert (kept.eos_token_id, kept.temperature) == ([3, 0, 7], 0.9)


def test_the_way_of_attention_is_not_the_files_to_choose(tmp_path: Path) -> None:
    network("llama").save_pretrained(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | {"attn_implementation": "someone/kernel"}))
    for read in (networks.load(str(tmp_path), 500, 32, None), loading.load(loading.from_name(str(tmp_path), "model"))):
        assert read.config._attn_implementation == "sdpa"


def test_a_text_from_compiled_layers_compiles_nothing() -> None:
    """Layers would be compiled again for each length of the key-value cache."""
    net, compiled = network("llama"), list[str]()

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        compiled.append(str(graph))
        return graph.forward

    CausalModel(net.eval()).compile(backend=backend)
    drawn: dict[str, Any] = {"seed": 0, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "count": 1}
    [found] = continued(net, [1, 2, 3], 5, **drawn)
    assert (len(found), compiled) == (8, [])
    net(torch.tensor([[1, 2, 3]]))
    assert compiled, "compiled layers stay so"


def test_a_damaged_newest_checkpoint_leaves_the_shape_to_the_one_before(dataset: Path, tmp_path: Path) -> None:
    for step, words in ((1, 500), (2, 600)):
        folder = checkpoint_folder(tmp_path, step) / "model"
        AutoConfig.for_model("llama", **GROUPED | {"vocab_size": words}).save_pretrained(folder)
    config = toy.configuration(model__name="/gone", run__directory=tmp_path)
    opened = open_dataset(str(dataset))
    assert pretrain.network(config, opened, dataset / "tokenizer.json").config.vocab_size == 600
    (folder / "config.json").write_text("")
    assert pretrain.network(config, opened, dataset / "tokenizer.json").config.vocab_size == 500


def test_a_mixture_of_experts_goes_on_from_its_checkpoint_and_loads_as_any_model_does(tmp_path: Path) -> None:
    """transformers joins the experts of a layer in one tensor when it reads them, and splits them when it writes."""
    shape = AutoConfig.for_model("mixtral", **GROUPED, num_local_experts=4)
    net, again = (AutoModelForCausalLM.from_config(shape) for _ in range(2))
    net.save_pretrained(tmp_path / "model", state_dict=net.state_dict(), save_original_format=False)
    load_weights(tmp_path, again)
    for read in (again, AutoModelForCausalLM.from_pretrained(tmp_path / "model")):
        for name, value in net.state_dict().items():
            assert torch.equal(value, read.state_dict()[name]), name
