"""Folders of models that others made: what is opened, what is refused and why, and one fingerprint for each model."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.trainer import toy
from trainer.errors import UserError
from trainer.models import adapters, loading, networks

SHAPE = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 1048576\n"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "llama"
    torch.manual_seed(0)
    LlamaForCausalLM(SHAPE).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def lora(original: Path) -> Path:
    """peft's folder of a plain LoRA, which is read."""
    net: Any = get_peft_model(LlamaForCausalLM.from_pretrained(original), LoraConfig(r=2, target_modules=["q_proj"]))
    net.save_pretrained(str(original.parent / "lora"))
    assert loading.load(loading.from_name(str(original.parent / "lora"), "--model")) is not None
    return original.parent / "lora"


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "model")
    return tmp_path / "model"


OPENERS: dict[str, Callable[[Path], Any]] = {
    "sample": lambda folder: loading.load(loading.from_name(str(folder), "--model")),
    "training": lambda folder: networks.load(str(folder), 256, 8, None),
}
opened = pytest.mark.parametrize("opener", OPENERS)


def refusal(opener: str, folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        OPENERS[opener](folder)
    said = str(caught.value)
    assert "\n" not in said
    assert "HF_HUB_OFFLINE" not in said
    return said


@opened
@pytest.mark.parametrize("name", ["pytorch_model.bin", "../other/model.safetensors", 5])
def test_an_index_that_names_anything_but_safetensors_beside_it_is_refused(
    opener: str, name: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    names = dict.fromkeys(load_file(folder / "model-1.safetensors"), "model-1.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {**names, "lm_head.weight": name}}))
    torch.save({}, folder / "pytorch_model.bin")
    assert f"its {INDEX} names" in refusal(opener, folder)


@opened
def test_weights_that_are_none_are_called_that(opener: str, folder: Path, tmp_path: Path) -> None:
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    for damaged in (b"", content[:5000]):
        weights.write_bytes(damaged)
        assert re.search("cannot be read .*header", refusal(opener, folder), re.IGNORECASE)
    weights.write_bytes(POINTER)
    assert "is a Git LFS pointer" in refusal(opener, folder)
    weights.rename(tmp_path / "elsewhere.safetensors")
    weights.symlink_to(tmp_path / "elsewhere.safetensors")
    assert "leads out of its folder" in refusal(opener, folder)


def test_a_config_larger_than_any_models_is_not_read(folder: Path) -> None:
    described(folder, id2label={str(number): "x" * 99 for number in range(80_000)})
    for opener in OPENERS:
        assert re.search(r"its config.json has 8,\d{3},\d{3} bytes.*at most 8,388,608", refusal(opener, folder))
    with pytest.raises(UserError, match=r"^model.config: .* has [\d,]+ bytes"):
        networks.from_config(str(folder / "config.json"), 256, 0, 8, 0)


@opened
@pytest.mark.parametrize("kind", ["gptq", "none said"])
def test_a_quantisation_that_is_not_read_is_named(kind: str, opener: str, folder: Path) -> None:
    described(folder, quantization_config={"load_in_4bit": True} | ({"quant_method": kind} if " " not in kind else {}))
    said = refusal(opener, folder)
    assert f"is quantised by {kind if ' ' not in kind else 'bitsandbytes'}, which is not read here" in said
    assert "give the model that it was made from" in said


def test_links_that_a_person_or_the_hubs_cache_makes_are_followed(folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--org--tiny"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(repository / "blobs" / f"{number:040x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:040x}")
    (tmp_path / "mine").symlink_to(snapshot)
    (tmp_path / "further").symlink_to("mine")
    for place in (snapshot, tmp_path / "mine", tmp_path / "further"):
        for opener in OPENERS.values():
            assert opener(place).config.hidden_size == 64


def fp8(folder: Path) -> None:
    """As DeepSeek and Qwen publish models: 8-bit weights and a scale for each block."""
    tensors: dict[str, torch.Tensor] = {}
    for name, value in load_file(folder / "model.safetensors").items():
        tensors[name] = value.bfloat16()
        if "proj" in name:
            scale = value.abs().max() / 448 * 1.00037
            tensors[name] = (value / scale).to(torch.float8_e4m3fn)
            tensors[name + "_scale_inv"] = scale.reshape(1, 1)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
    described(folder, quantization_config=blocks, dtype="bfloat16")


def described(folder: Path, file: str = "config.json", **changes: Any) -> None:
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | changes))


def sharded(folder: Path) -> None:
    net = LlamaForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    net.save_pretrained(folder, max_shard_size="50KB")
    assert (folder / INDEX).exists()


def tied(folder: Path) -> None:
    """The head is the embedding, and is saved twice, as some programs do."""
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    described(folder, tie_word_embeddings=True)


STORED: dict[str, Callable[[Path], None]] = {
    "fp32": lambda folder: None,
    "fp8": fp8,
    "fp32, called bf16": lambda folder: described(folder, dtype="bfloat16"),
    "sharded": sharded,
    "tied, saved twice": tied,
}


@pytest.mark.parametrize("stored", STORED)
def test_an_adapter_belongs_to_its_model_however_that_is_stored(stored: str, folder: Path, tmp_path: Path) -> None:
    STORED[stored](folder)
    config = toy.configuration(adapter__kind="lora", model__name=folder, precision="fp32")
    net = networks.load(str(folder), 256, 8, None, dtype="auto")
    adapter = adapters.Adapter(net, config)
    weights = {name: torch.randn_like(value) / 10 for name, value in adapters.trained(net).items()}
    (tmp_path / "adapter").mkdir()
    adapter.save(weights, tmp_path / "adapter")
    merged = loading.load(loading.from_name(str(tmp_path / "adapter"), "--model"))
    with torch.no_grad():
        for name, value in adapters.trained(net).items():
            value.copy_(weights[name])
        tokens = torch.arange(12).reshape(1, 12)
        expected = net.float().eval()(tokens).logits
    torch.testing.assert_close(merged(tokens).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"peft_type": "XLORA"}, "is an adapter of type 'XLORA'; only LORA is read"),
        ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "megatron_config, megatron_core of its"),
        ({"corda_config": {"cache_file": "/data/evil.bin"}}, "corda_config of its"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa of its"),
        ({"a_key_of_tomorrow": True}, "a_key_of_tomorrow of its"),
    ],
    ids=str,
)
def test_an_adapter_that_is_no_plain_lora_is_refused_by_name(
    change: dict[str, Any], expected: str, lora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    shutil.copytree(lora, tmp_path / "adapter")
    described(tmp_path / "adapter", "adapter_config.json", **change)
    assert expected in refusal("sample", tmp_path / "adapter")


@opened
def test_a_model_that_brings_an_adapter_is_refused(opener: str, folder: Path) -> None:
    """transformers would add the adapter to it, or take the model that it names."""
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/evil"}')
    with pytest.raises(UserError, match="adapter"):
        networks.load(str(folder), 256, 8, None) if opener == "training" else loading._read(str(folder))


def test_a_hub_folder_with_a_manifest_of_its_own_is_no_checkpoint(folder: Path) -> None:
    (folder / "manifest.json").write_text("{}")
    assert loading.from_name(str(folder), "--model").model == str(folder)
