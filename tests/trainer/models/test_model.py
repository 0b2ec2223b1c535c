"""Where weights come from and what is saved: Hugging Face folders both ways, runs, checkpoints; what does not fit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertModel

from tests.trainer.conftest import Settings, Start, done
from trainer.config.presets import PRESETS
from trainer.errors import UserError
from trainer.models import gpt2, networks
from trainer.models.gpt2 import LanguageModel

INPUTS = torch.arange(40).reshape(2, 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a GPT-2 of 500 words, made by transformers alone, dropout as in OpenAI's."""
    path = tmp_path_factory.mktemp("weights") / "hf"
    net = networks.from_preset("tiny", 500, 0, seed=5)
    net.config.update({"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})
    net.save_pretrained(path)
    return path


def load(weights: Path | str, **changes: Any) -> Any:
    return networks.load(**dict[str, Any](name=str(weights), vocabulary=500, length=32) | changes)


def test_a_run_from_given_weights_is_saved_for_transformers_and_resumes_without_them(
    start_workers: Start, settings: Settings, folder: Path, tmp_path: Path
) -> None:
    """From a Hugging Face folder through a training into a Hugging Face folder, tokenizer and all."""
    copy, run = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(folder, copy)
    first = start_workers(1, settings(run, model__name=copy, steps=2, precision="bf16"))
    assert first.wait() == [0], first.output
    assert done(run)["initial_validation_loss"] > 0
    saved = Path(done(run)["checkpoint"]) / "model"
    tensors = load_file(saved / "model.safetensors")
    assert tensors["transformer.wte.weight"].shape == (500, 32)
    net: Any = AutoModelForCausalLM.from_pretrained(saved).eval()
    for source in (run, saved.parent, saved):
        ours = load(source, tokenizer=None)
        assert ours.config.resid_pdrop == 0
        with torch.no_grad():
            logits = LanguageModel(ours).logits(INPUTS)
            torch.testing.assert_close(logits, net(input_ids=INPUTS).logits, rtol=1e-5, atol=1e-5)
    tokenizer: Any = AutoTokenizer.from_pretrained(saved)
    assert tokenizer.decode(tokenizer("light and colours")["input_ids"]) == "light and colours"
    # It began with the given weights and not with fresh ones: they have hardly moved.
    begin = load_file(folder / "model.safetensors")["transformer.wte.weight"]
    assert (tensors["transformer.wte.weight"] - begin).abs().max() < 0.02
    # The folder is gone by the time the run goes on: its own checkpoint is enough.
    shutil.rmtree(copy)
    (run / "DONE").unlink()
    again = start_workers(1, settings(run, model__name=copy, steps=4, precision="bf16"))
    assert again.wait() == [0], again.output
    assert "event=resume step=2" in again.output
    assert done(run)["step"] == 4


def test_weights_that_do_not_fit_are_refused_in_one_line(folder: Path, dataset: Path, tmp_path: Path) -> None:
    bert = tmp_path / "bert"
    BertModel(
        BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    ).save_pretrained(bert)
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(folder / "config.json", bare)
    (tmp_path / "empty").mkdir()
    partial = tmp_path / "partial"
    shutil.copytree(folder, partial)
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file(tensors, partial / "model.safetensors", {"format": "pt"})
    renamed = tmp_path / "renamed"
    shutil.copytree(folder, renamed)
    tokenizer = dataset / "tokenizer.json"
    words = json.loads(tokenizer.read_text("utf-8"))
    vocabulary = words["model"]["vocab"]
    one, other = "a", "b"
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (renamed / "tokenizer.json").write_text(json.dumps(words), "utf-8")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    cases: list[tuple[Path | str, dict[str, Any], str]] = [
        (tmp_path / "nowhere", {}, "is no folder; give a folder or a name on the hub"),
        ("nobody/no-such-model", {}, "cannot be read"),
        (tmp_path / "empty", {}, "holds no config.json"),
        (bare, {}, "holds a config.json but no weights"),
        (bert, {}, "is a bert model (BertModel), which does not continue text"),
        (partial, {}, "lacks 1 of the model's tensors, such as transformer.h.1.mlp.c_fc.weight"),
        (tmp_path / "run", {}, "holds no checkpoint that verifies"),
        (folder, {"vocabulary": 501}, "has a vocabulary of 500, the data of 501"),
        (folder, {"length": 129}, "has 128 positions, sequence_length is 129"),
        (renamed, {"tokenizer": tokenizer}, "has another tokenizer than the data; prepare the data with --tokenizer"),
    ]
    for weights, changes, said in cases:
        with pytest.raises(UserError) as caught:
            load(weights, **{"tokenizer": None} | changes)
        assert said in str(caught.value), weights
        assert str(caught.value).startswith("model.name: ")
        assert "\n" not in str(caught.value)
    assert load(folder, vocabulary=400, tokenizer=None).config.n_layer == 2


def test_fresh_weights_are_drawn_as_the_paper_says() -> None:
    net: Any = networks.from_preset("micro", 500, 0, seed=1)
    layer = net.transformer.h[1]
    assert float(layer.mlp.c_fc.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    for projection in (layer.attn.c_proj, layer.mlp.c_proj):
        assert float(projection.weight.detach().std()) == pytest.approx(0.02 / (2 * 4) ** 0.5, rel=0.05)
    assert net.lm_head.weight is net.transformer.wte.weight
    assert not torch.equal(networks.from_preset("micro", 500, 0, seed=2).lm_head.weight, net.lm_head.weight)


def test_what_the_layers_add_up_in_is_fp32_where_products_are_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded in each layer, the small parts that layers add would be lost."""
    seen = []
    real = gpt2.block

    def block(hidden: torch.Tensor, *given: Any, **more: Any) -> torch.Tensor:
        made = real(hidden, *given, **more)
        seen.extend([hidden.dtype, made.dtype])
        return made

    monkeypatch.setattr(gpt2, "block", block)
    module, tokens = LanguageModel(networks.from_preset("tiny", 500, 0, seed=1)), torch.arange(34).reshape(2, 17)
    with torch.autocast("cpu", torch.bfloat16):
        module(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()).backward()
    assert len(seen) >= 4
    assert {*seen} == {torch.float32}


@pytest.mark.parametrize(("preset", "millions"), [("distil", 82), ("xl", 1558)])
def test_presets_have_the_parameters_of_openais_models(preset: str, millions: int) -> None:
    with torch.device("meta"):
        net = networks.from_preset(preset, 50257, 50256, seed=1)
    assert round(sum(parameter.numel() for parameter in net.parameters()) / 1e6) == millions
    assert PRESETS[preset].positions == 1024


def test_flops_per_token_of_gpt2() -> None:
    """855 million at length 1024: 6 x 123.65M parameters and 12 x 12 x 768 x 1024 for attention."""
    with torch.device("meta"):
        net = networks.from_preset("small", 50257, 50256, seed=1)
    assert networks.flops_per_token(net, 1024) == pytest.approx(855e6, rel=1e-3)
