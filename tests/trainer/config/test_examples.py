"""Each example that comes with the package loads as it is, and finds a loss with its model and data made small."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from tests.trainer.conftest import ROOT
from tests.trainer.tasks.test_squad import QUESTIONS, encoder
from trainer import prepare, tasks
from trainer.config import schema as config
from trainer.config.schema import EXAMPLES
from trainer.errors import UserError

__all__ = ["encoder"]  # a fixture

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
FOLDERS = ["data.directory=/data/text", "run.directory=/data/runs/example"]
SMALL = """
    sequence_length=32 micro_batch=2 tokens_per_step=512
    steps=1 precision=fp32 compile=false engine.name=ddp evaluation.batches=2
    evaluation.sample_tokens=8 metrics.every=1 metrics.tensorboard=false
"""


def test_an_example_loads_by_name_and_by_path() -> None:
    name = NAMES[0]
    by_name = config.load(["--config", name, *FOLDERS])
    assert by_name == config.load([f"--config={EXAMPLES / name}.yaml", *FOLDERS])
    assert by_name == config.load(["--config", f"{name}.yaml", *FOLDERS])
    assert by_name != config.load(FOLDERS), "it says something"
    assert config.load(["--config", name, *FOLDERS, "steps=7"]).steps == 7, "an argument wins"


@pytest.mark.parametrize("name", NAMES)
def test_the_arithmetic_of_its_header_is_right(name: str) -> None:
    text = (EXAMPLES / f"{name}.yaml").read_text("utf-8")
    header = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    settings = config.load(["--config", name, *FOLDERS])
    assert f"{settings.steps:,} steps" in header
    if settings.tokens_per_step and settings.task != "question_answering":
        windows = settings.tokens_per_step // settings.sequence_length
        assert (
            f"{windows} windows x {settings.sequence_length:,} tokens = {settings.tokens_per_step:,} tokens" in header
        )
        assert f"{windows // settings.micro_batch} micro-batches of {settings.micro_batch} windows" in header


def test_an_example_that_does_not_exist_is_told_with_those_that_do() -> None:
    with pytest.raises(UserError, match=r"--config gpt3: cannot be read .* examples: .*gpt2-small-c3-bf16"):
        config.load(["--config", "gpt3", *FOLDERS])


def test_the_examples_are_installed_with_the_package(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import setuptools; setuptools.setup()",
        "-q",
        "build",
        "--build-base",
        str(tmp_path),
    ]
    source = tmp_path / "source"
    (source / "trainer").parent.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "trainer"):
        (source / name).symlink_to(ROOT / name)
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    assert sorted(path.stem for path in (tmp_path / "lib" / "trainer" / "config" / "examples").iterdir()) == NAMES


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 in the place of one from the hub."""
    folder = tmp_path_factory.mktemp("weights")
    ends: dict[str, Any] = {"bos_token_id": 499, "eos_token_id": 499}
    net = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_embd=32, n_layer=2, n_head=2, n_positions=128, **ends))
    net.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """A tiny Llama in the place of one from the hub, with its tokenizer."""
    folder = tmp_path_factory.mktemp("llama")
    shape: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    LlamaForCausalLM(LlamaConfig(vocab_size=500, **shape, **heads, **ends)).save_pretrained(folder)
    shutil.copy(tokenizer / "tokenizer.json", folder)
    return folder


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    folder = tmp_path_factory.mktemp("chats")
    said = [{"role": "user", "content": "What is light?"}, {"role": "assistant", "content": "Rays."}]
    (folder / "chats.jsonl").write_text(f"{json.dumps({'messages': said})}\n" * 60)
    arguments = ["--input", str(folder / "chats.jsonl"), "--output", str(folder / "data"), "--conversations"]
    assert prepare.main([*arguments, "--tokenizer", str(llama)]) == 0
    return folder / "data"


@pytest.mark.parametrize("name", NAMES)
def test_an_example_finds_a_loss_with_everything_small(
    name: str,
    dataset: Path,
    weights: Path,
    encoder: Path,
    llama: Path,
    conversations: Path,
    tmp_path: Path,
) -> None:
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text("utf-8"))
    data = conversations if document.get("task") == "finetune" else dataset
    changes = [f"data.directory={data}", f"run.directory={tmp_path / 'run'}", *SMALL.split()]
    if document.get("task") == "finetune":
        weights = llama
    if document.get("task") == "question_answering":
        weights = encoder
        changes += ["sequence_length=64", "tokens_per_step=512"]
        changes += ["question_answering.document_stride=8", "question_answering.question_tokens=16"]
        changes += [f"question_answering.{split}={QUESTIONS}" for split in ("train", "validation")]
    if document.get("model", {}).get("name") or document.get("task") == "question_answering":
        changes += [f"model.name={weights}"]
    else:
        changes += ["model.preset=tiny"]
    if "distillation" in document:
        changes += [f"distillation.teacher={weights}"]
    settings = config.load(["--config", name, *changes])
    work = tasks.load(settings.task).make_work(settings)
    batch = tuple(torch.from_numpy(part) for part in work.batches.get(0, 0))
    loss = work.module(*batch) / work.items_per_step * work.batches.per_step
    assert 0 < float(loss.detach()) < 2 * math.log(500)
