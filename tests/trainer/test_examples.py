"""Each example that comes with the package loads as it is, and trains a step with its model and data made small."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

from tests.trainer.conftest import ROOT, Workers, losses
from tests.trainer.tasks.test_squad import QUESTIONS, encoder
from trainer.config import schema as config
from trainer.config.schema import EXAMPLES
from trainer.errors import UserError

__all__ = ["encoder"]  # a fixture

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
FOLDERS = ["data.directory=/data/text", "run.directory=/data/runs/example"]
SMALL = """
    run.collective_timeout_seconds=60 sequence_length=32 micro_batch=2 tokens_per_step=512
    steps=1 precision=fp32 compile=false engine.name=ddp evaluation.batches=2
    evaluation.sample_tokens=8 metrics.every=1 metrics.tensorboard=false
"""
"""DeepSpeed compiles a part of itself when it starts: its own tests have that."""


@pytest.mark.parametrize("name", NAMES)
def test_an_example_loads_by_name_and_by_path(name: str) -> None:
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


@pytest.mark.parametrize("name", NAMES)
def test_an_example_trains_a_step_with_everything_small(
    name: str,
    start_workers: Callable[[int, list[str]], Workers],
    dataset: Path,
    weights: Path,
    encoder: Path,
    tmp_path: Path,
) -> None:
    changes = ["model.preset=tiny", f"data.directory={dataset}", f"run.directory={tmp_path / 'run'}", *SMALL.split()]
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text("utf-8"))
    if document.get("task") == "question_answering":
        weights = encoder
        changes += ["sequence_length=64", "tokens_per_step=512"]
        changes += ["question_answering.document_stride=8", "question_answering.question_tokens=16"]
        changes += [f"question_answering.{split}={QUESTIONS}" for split in ("train", "validation")]
    if document.get("model", {}).get("name") or document.get("task") == "question_answering":
        changes += [f"model.name={weights}"]
    if "distillation" in document:
        changes += [f"distillation.teacher={weights}"]
    workers = start_workers(1, ["--config", name, *changes])
    assert workers.wait() == [0], workers.output
    assert list(losses(tmp_path / "run")) == [1]
