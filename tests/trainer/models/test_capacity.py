"""The default micro-batch: it fits the memory, divides the step and leaves no worker without work."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from tests.trainer import toy
from trainer.config import schema as config
from trainer.config.container import limit
from trainer.config.memory import (
    LARGEST_CONFIG,
    needed,
    of_document,
    of_preset,
    of_size,
    pass_bytes,
    saved,
    shape_of,
    state_bytes,
)
from trainer.config.presets import PRESETS
from trainer.data.batches import Tokens
from trainer.errors import UserError
from trainer.models import attention, capacity, loading, networks
from trainer.models.causal import CausalModel
from trainer.models.gpt2 import LanguageModel
from trainer.parallel import communication
from trainer.tasks import pretrain
from trainer.train import __main__ as train

GIB = 2**30
NEEDED = ["data.directory=/d", "run.directory=/r"]


def shape(preset: str) -> Any:
    return SimpleNamespace(to_dict=lambda: PRESETS[preset].document(50_257, 1024))


def kept(module: torch.nn.Module, length: int) -> int:
    """Bytes that autograd keeps for the backward pass of two windows, besides weights and their copies."""
    weights = {value.untyped_storage().data_ptr() for value in module.parameters()}
    tokens = torch.randint(512, (2, length + 1))
    with torch.autocast("cpu", torch.bfloat16):
        found = toy.kept(lambda: module(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()))
    kept_copies = getattr(module, "_weight_cache", SimpleNamespace(_kept={}))._kept  # pyrefly: ignore[missing-attribute]
    copies = {copy.untyped_storage().data_ptr() for _, copy in kept_copies.values()}
    return sum(size for place, size in found.items() if place not in weights | copies)


@pytest.mark.parametrize("kind", ["ours", "llama"])
def test_the_estimate_counts_parameters_and_what_autograd_keeps_of_each_token(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured by what two more layers keep, with torch's attention, as on an accelerator: ours keeps other tensors."""
    monkeypatch.setattr(attention, "TILES", True)
    size = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 224, "vocab_size": 512}
    size |= {"num_key_value_heads": 2, "head_dim": 16} if kind == "llama" else {"n_inner": 224}
    found = []
    for layers in (1, 3):
        made = AutoConfig.for_model(
            kind.replace("ours", "gpt2"), **size, num_hidden_layers=layers, bos_token_id=0, eos_token_id=0
        )
        networks._drop_nothing(made)
        net: Any = AutoModelForCausalLM.from_config(made, attn_implementation="sdpa")
        module = LanguageModel(net) if kind == "ours" else CausalModel(net)
        found.append((kept(module, 128) - kept(module, 64)) / 128)
        shape = of_document(made.to_dict())
        assert shape is not None
        assert shape.parameters == pytest.approx(sum(value.numel() for value in net.parameters()), rel=0.02)
    assert (found[1] - found[0]) / 2 == pytest.approx(shape.kept, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "precision", "bytes_a_parameter"),
    [
        ([], "bf16", 4 + 8 + 8 + 2),
        (["engine.name=deepspeed"], "bf16", 2 + 4 + 12 / 4),
        (["engine.name=deepspeed"], "fp16", 4 + 2 + 4 + 12 / 4),
        (["engine.name=deepspeed", "engine.zero_stage=2"], "bf16", 2 + (4 + 12) / 4),
    ],
)
def test_each_of_four_workers_holds_weights_gradients_and_moments(
    changes: list[str], precision: str, bytes_a_parameter: float
) -> None:
    """As ZeRO's paper counts them (arXiv:1910.02054, section 3.1); under DDP gradients twice."""
    xl = of_preset("xl")
    assert state_bytes(xl, config.load([*NEEDED, *changes]), precision, 4) == bytes_a_parameter * xl.parameters


def test_what_is_divided_frozen_or_computed_twice_takes_less() -> None:
    xl = of_preset("xl")

    def with_(*changes: str) -> config.Config:
        return config.load([*NEEDED, *changes])

    plain, divided, adapted = with_(), with_("engine.name=fsdp"), with_("adapter.kind=lora", "model.name=gpt2-xl")
    assert state_bytes(xl, divided, "bf16", 1) == state_bytes(xl, plain, "bf16", 1), "alone it gathers nothing"
    assert state_bytes(xl, divided, "bf16", 8) < state_bytes(xl, plain, "bf16", 8) / 3
    assert 2 * xl.parameters < state_bytes(xl, adapted, "bf16", 1) < 2.5 * xl.parameters
    assert saved(xl, adapted) < saved(xl, plain) / 10
    assert pass_bytes(xl, adapted, "bf16", 1) < pass_bytes(xl, plain, "bf16", 1) / 10, "a frozen head has no gradient"
    twice = with_("model.checkpointing=true")
    others, inputs = (xl.layers - 1) * xl.kept, xl.layers * 4 * xl.width
    assert pass_bytes(xl, plain, "bf16", 1024) - pass_bytes(xl, twice, "bf16", 1024) == 1024 * (others - inputs)
    assert pass_bytes(xl, plain, "fp32", 9000, False) < pass_bytes(xl, plain, "fp32", 9000), "logits in parts"


@pytest.mark.parametrize(("kind", "targets"), [("gpt2", "all-linear"), ("gpt2", "c_attn"), ("llama", "all-linear")])
def test_an_adapter_is_estimated_by_its_rank_and_targets(kind: str, targets: str) -> None:
    """Against the layers of the model itself."""
    size = {"hidden_size": 320, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 500}
    made = AutoConfig.for_model(kind, **size, **({"intermediate_size": 832} if kind == "llama" else {}))
    with torch.device("meta"):
        net = AutoModelForCausalLM.from_config(made)
    names = [name for name, part in net.named_modules() if part.__class__.__name__ in ("Linear", "Conv1D")]
    met = [name for name in names if name.endswith(targets) or (targets == "all-linear" and name != "lm_head")]
    numbers = 7 * sum(sum(net.get_submodule(name).weight.shape) for name in met)
    shape = of_document(made.to_dict())
    chosen = config.load(
        [*NEEDED, "model.name=gpt2", "adapter.kind=lora", "adapter.rank=7", f"adapter.targets={targets}"]
    )
    assert shape is not None
    assert shape.adapter(chosen.adapter) == pytest.approx(numbers, rel=0.02)


def test_a_config_json_that_no_model_has_is_not_read_for_an_estimate(tmp_path: Path) -> None:
    document = PRESETS["small"].document(50_257, 1024)
    (tmp_path / "config.json").write_text(json.dumps(document))
    for given in (f"model.config={tmp_path / 'config.json'}", f"model.config={tmp_path}", f"model.name={tmp_path}"):
        assert shape_of(config.load([*NEEDED, given])) is not None
    (tmp_path / "config.json").write_text(json.dumps(document) + " " * LARGEST_CONFIG)
    assert shape_of(config.load([*NEEDED, f"model.name={tmp_path}"])) is None
    (tmp_path / "config.json").write_text("[" * 200_000)
    assert shape_of(config.load([*NEEDED, f"model.name={tmp_path}"])) is None


@pytest.mark.parametrize(
    ("preset", "gib", "windows"),
    [
        ("small", 14.6, 16),  # T4
        ("small", 39.4, 32),  # A100 40 GB
        ("xl", 39.4, 2),
        ("xl", 14.6, 1),
    ],
)
def test_the_micro_batch_follows_from_model_and_memory(
    preset: str, gib: float, windows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator(monkeypatch, gib * GIB)
    assert capacity.micro_batch(config.load([*NEEDED, f"model.preset={preset}"]), None, shape(preset)) == windows


def accelerator(monkeypatch: pytest.MonkeyPatch, memory: float) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(capacity, "device_memory", lambda: memory)


def test_it_divides_the_step_and_leaves_work_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator(monkeypatch, 80e9)
    step = config.load([*NEEDED, "tokens_per_step=49152", "micro_batch=auto"])  # 48 windows
    for workers, windows in ((1, 16), (6, 8), (100, 1)):
        monkeypatch.setenv("WORLD_SIZE", str(workers))
        assert capacity.micro_batch(step, None, shape("small")) == windows


def test_what_is_given_is_taken_and_a_cpu_takes_eight() -> None:
    given = config.load([*NEEDED, "micro_batch=64"])
    assert capacity.micro_batch(given, None, shape("xl")) == 64
    assert capacity.micro_batch(given, 16, shape("xl")) == 16, "more was too much"
    assert capacity.micro_batch(given, 5, shape("xl")) == 4, "of another step, or by hand: no part of it"
    assert capacity.micro_batch(config.load(NEEDED), None, shape("small")) == 8
    assert capacity.micro_batch(config.load(NEEDED), 2, shape("small")) == 2
    with pytest.raises(UserError, match=r"micro_batch: 'many' is not a whole number or auto"):
        config.load([*NEEDED, "micro_batch=many"])


LLAMA_2 = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11_008}
LLAMA_3 = LLAMA_2 | {"intermediate_size": 14_336, "num_key_value_heads": 8}


@pytest.mark.parametrize(
    ("billions", "described"), [(6.74, LLAMA_2 | {"vocab_size": 32_000}), (8.03, LLAMA_3 | {"vocab_size": 128_256})]
)
def test_a_size_stands_for_a_llama_that_needs_about_what_the_real_ones_need(
    billions: float, described: dict[str, int]
) -> None:
    real = of_document({"model_type": "llama", "tie_word_embeddings": False, **described})
    estimate = of_size(billions * 1e9)
    assert real is not None
    assert estimate.parameters == pytest.approx(real.parameters, rel=0.02)
    step = config.load([*NEEDED, "engine.name=deepspeed"])
    guessed, counted = (pass_bytes(each, step, "bf16", 8192) for each in (estimate, real))
    assert 0.85 * counted < guessed < 1.05 * counted, "infra/training_rules.py refuses from 1.18 times the memory on"


@pytest.mark.parametrize(("limit", "windows"), [(32 * GIB, 8), (8 * GIB, 4)])
def test_a_cpu_takes_what_its_container_may_hold(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, windows: int
) -> None:
    monkeypatch.setattr(capacity.container, "limit", lambda: limit)
    assert capacity.micro_batch(config.load(NEEDED), None, shape("small")) == windows


def test_a_container_finds_its_limit_in_cgroups_of_both_kinds(tmp_path: Path) -> None:
    new, old = tmp_path / "memory.max", tmp_path / "limit_in_bytes"
    assert limit([str(new), str(old)]) is None
    old.write_text("9223372036854771712\n")
    assert limit([str(new), str(old)]) is None
    old.write_text("4294967296\n")
    assert limit([str(new), str(old)]) == 4 * GIB
    new.write_text("max\n")
    assert limit([str(new), str(old)]) is None
    new.write_text("2147483648\n")
    assert limit([str(new), str(old)]) == 2 * GIB


def test_the_validation_set_is_of_the_whole_split_and_does_not_depend_on_the_micro_batch(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(bytes(2 * 40_000))
    tokens = Tokens([tmp_path / "shard"])
    sizes = {
        pretrain.Validation(tokens, 32, size, 4, capacity.UNIT, tokenizer=Path()).tokens for size in (1, 4, 32, 64)
    }
    assert sizes == {4 * 8 * 32}
    assert pretrain.spread(100, 4).tolist() == [0, 33, 66, 99], "over the whole split"


def test_workers_whose_memories_differ_take_what_the_smallest_allows(tmp_path: Path) -> None:
    world: Any = SimpleNamespace(
        device=torch.device("cpu"),
        together=lambda task: task(),
        gather=lambda told: [told, [2, "one"]],
    )
    task: Any = SimpleNamespace(make_work=lambda settings, most: SimpleNamespace(windows=min(most or 4, 4), data="one"))
    assert train.agreed_work(task, config.Config(), tmp_path, world).windows == 2


@pytest.mark.parametrize(
    ("given", "device", "dtype", "sent"),
    [
        ([], "cuda", torch.bfloat16, "bf16"),
        ([], "cuda", torch.float32, "none"),
        ([], "cpu", torch.bfloat16, "none"),
        (["communication.compression=none"], "cuda", torch.bfloat16, "none"),
        (["communication.compression=fp16"], "cpu", torch.float32, "fp16"),
    ],
)
def test_gradients_travel_in_bf16_between_accelerators(
    given: list[str], device: str, dtype: torch.dtype, sent: str
) -> None:
    assert communication.wire(config.load([*NEEDED, *given]), torch.device(device), dtype) == sent


def test_a_model_that_its_container_cannot_hold_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the kernel would kill the process, or another one of the container: TensorBoard's."""
    net = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=128))
    size = sum(parameter.numel() for parameter in net.parameters())
    net.save_pretrained(tmp_path, max_shard_size=4 * size // 3)
    assert loading.weights(tmp_path) == size
    monkeypatch.setattr(capacity.container, "limit", lambda: 4 * size - 1)
    with pytest.raises(UserError, match=HUGE):
        loading.load(loading.from_name(str(tmp_path), "--model"))


LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 500, "architectures": ["LlamaForCausalLM"]}
GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 500}
HUGE = "numbers, which take .* GiB; this machine or its container has .*; give a smaller one"
ABSENT = "describes no .* model that can be built"
SIZES: dict[str, tuple[dict[str, Any], str]] = {
    "deep llama": (LLAMA | {"num_hidden_layers": 10_000_000}, "num_hidden_layers is 10,000,000; at most 2,000"),
    "wide": (LLAMA | {"hidden_size": 1 << 22}, HUGE),
    "many experts": (LLAMA | {"model_type": "mixtral", "num_local_experts": 10**7}, "num_local_experts is 10,000,000"),
    "another's keys": (LLAMA | {"n_embd": 64}, "a llama model has no n_embd, which transformers would pass over"),
    "beyond floats": (GPT2 | {"n_layer": 10**400}, "n_layer is 10,000,"),
    "less than nothing": (GPT2 | {"n_layer": -2}, "has -2 layers"),
    "heads that do not divide": (GPT2 | {"n_head": 5}, ABSENT),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_nothing_can_hold_is_refused_before_anything_is_built(name: str, tmp_path: Path) -> None:
    document, expected = SIZES[name]
    (tmp_path / "config.json").write_text(json.dumps(document | {"architectures": None}))
    with pytest.raises(UserError, match=f"^model.config: {tmp_path}/config.json.*{expected}") as raised:
        networks.from_config(str(tmp_path / "config.json"), 500, 0, 8, 1)
    assert "\n" not in str(raised.value)
    chosen = config.load([*NEEDED, f"model.config={tmp_path / 'config.json'}"])
    assert (found := shape_of(chosen)) is None or needed(found, chosen, "bf16", 1), "a preview meets it first"


def test_the_size_of_a_part_is_no_number_of_parts(tmp_path: Path) -> None:
    """Qwen1.5-MoE-A2.7B's shared expert is 5,632 wide."""
    shape = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    document = LLAMA | shape | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632}
    (tmp_path / "config.json").write_text(json.dumps(document | {"architectures": None}))
    assert networks.from_config(str(tmp_path / "config.json"), 500, 0, 8, 1).config.model_type == "qwen2_moe"


@pytest.mark.parametrize("workers", [1, 3])
def test_what_the_machine_can_just_hold_is_built(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    size = sum(value.numel() for value in networks.from_config(str(tmp_path), 500, 0, 8, 1).parameters())
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(workers))
    for build, numbers in (
        (lambda: networks.from_config(str(tmp_path), 500, 0, 8, 1), size),
        (lambda: networks.from_preset("tiny", 500, 0, 1), of_preset("tiny", 500).parameters),
    ):
        monkeypatch.setattr(capacity.container, "limit", lambda room=numbers * workers * 4 + 1000: room)
        assert build() is not None
        monkeypatch.setattr(capacity.container, "limit", lambda room=numbers * workers * 4 - 1000: room)
        with pytest.raises(UserError, match="numbers, which take"):
            build()


def test_no_number_of_a_training_is_without_a_limit() -> None:
    keys = ("adapter.rank", "micro_batch", "run.seed", "steps")
    with pytest.raises(UserError) as caught:
        config.load([*NEEDED, "model.name=gpt2", "adapter.kind=lora", *(f"{key}=1{'0' * 30}" for key in keys)])
    assert {line.partition(" ")[0] for line in str(caught.value).splitlines()} == {f"{key}:" for key in keys}
