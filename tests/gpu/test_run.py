"""On a GPU: whole trainings. A CPU can read the model, and too little memory ends a training with one line."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.gpu import small
from trainer.contract import EXIT_DONE, EXIT_RESTART
from trainer.models import networks

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
LIMITED = (
    "import sys, torch; torch.cuda.set_per_process_memory_fraction({bytes} / torch.cuda.mem_get_info()[1]); "
    "from trainer.train import __main__ as train; sys.exit(train.main(sys.argv[1:]))"
)
"""The training in a process that may use this many bytes of the device's memory."""


def arguments(data: str, run: Path, **changes: Any) -> list[str]:
    values = {
        "model.preset": small.PRESET,
        "data.directory": data,
        "run.directory": run,
        "steps": 10,
        "tokens_per_step": 512,
        "sequence_length": 64,
        "micro_batch": 2,
        "optimizer.learning_rate": 3e-3,
        "optimizer.warmup_steps": 2,
        "evaluation.batches": 2,
        "evaluation.sample_tokens": 0,
        "metrics.every": 1,
        "metrics.tensorboard": "false",
    }
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    return [f"{key}={value}" for key, value in values.items()]


def start(device: torch.device, command: list[str], seconds: float = 240) -> subprocess.CompletedProcess[str]:
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device.type == "cpu" else {}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=os.environ | hidden, capture_output=True, text=True, timeout=seconds
    )


def figures(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line for line in lines if "loss" in line]


def test_a_training_learns_and_its_checkpoint_is_read_on_a_processor(
    device: torch.device, dataset: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = start(device, ["-m", "trainer.train", *arguments(dataset, run)])
    assert done.returncode == EXIT_DONE, done.stdout + done.stderr
    found = figures(run)
    assert found[0]["loss"] == pytest.approx(math.log(600), abs=0.3)
    assert found[-1]["loss"] < found[0]["loss"]
    assert found[-1]["memory_bytes"] > 0
    assert any(name.startswith("activations/layer0_attention") for name in found[-1])
    if device.type == "cuda":
        assert found[-1]["communication_seconds"] >= 0
        assert found[-1]["mfu"] is None or 0 < found[-1]["mfu"] < 1
    command = ["-m", "trainer.evaluate", "--run", str(run), "--precision", "fp32", "--json"]
    read = start(torch.device("cpu"), command)
    assert read.returncode == 0, read.stderr
    told = json.loads((run / "DONE").read_text("utf-8"))
    assert json.loads(read.stdout)["loss"] == pytest.approx(told["validation_loss"], abs=0.02)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models of random weights, a Llama and a GPT-2."""
    folder = tmp_path_factory.mktemp("models")
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(1)
    llama = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", vocab_size=600, **shape))
    llama.save_pretrained(folder / "llama")
    networks.from_preset("tiny", 600, 0, seed=1).save_pretrained(folder / "gpt2")
    return folder


PEFT = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
LLAMA = {"model.preset": "", "model.name": "llama"}


@pytest.mark.parametrize(
    ("changes", "compiled"),
    [
        pytest.param({"engine.name": "fsdp"}, True, marks=small.FSDP),
        pytest.param(LLAMA | {"engine.name": "fsdp", "model.checkpointing": "true"}, False, marks=small.FSDP),
        (LLAMA | {"model.checkpointing": "true"}, False),
        # torch 2.11 compiles an adapter without its gradient, which ends the training (compiled.passes).
        pytest.param(LLAMA | {"adapter.kind": "lora"}, small.NEW, marks=PEFT),
        ({"task": "distillation", "distillation.teacher": "gpt2"}, True),
    ],
    ids=["fsdp", "fsdp of a Llama", "a Llama computed twice", "LoRA of a Llama", "distillation"],
)
def test_other_trainings_learn_and_go_on(
    device: torch.device, dataset: str, models: Path, tmp_path: Path, changes: dict[str, Any], compiled: bool
) -> None:
    """The second process starts from the checkpoint of the first."""
    paths = {key: models / value for key, value in changes.items() if value in ("llama", "gpt2")}
    for steps in (6, 10):
        values = {"optimizer__schedule_steps": 10, "steps": steps, "evaluation__sample_tokens": 4, **changes, **paths}
        values["compile"] = "auto" if compiled and device.type == "cuda" else "false"
        done = start(device, ["-m", "trainer.train", *arguments(dataset, tmp_path, **values)])
        assert done.returncode == EXIT_DONE, done.stdout + done.stderr
        (tmp_path / "DONE").rename(tmp_path / f"done-{steps}")
    assert "event=resume" in done.stdout
    found = figures(tmp_path)
    assert [line["step"] for line in found] == list(range(1, 11))
    assert found[-1]["loss"] < found[0]["loss"] - 0.1
    read = start(
        torch.device("cpu"), ["-m", "trainer.evaluate", "--run", str(tmp_path), "--precision", "fp32", "--json"]
    )
    assert read.returncode == 0, read.stderr
    told = json.loads((tmp_path / "done-10").read_text("utf-8"))
    assert json.loads(read.stdout)["loss"] == pytest.approx(told["validation_loss"], abs=0.02)


def test_a_micro_batch_that_does_not_fit_is_halved_in_the_next_round(
    on_cuda: torch.device, dataset: str, tmp_path: Path
) -> None:
    """GPT-2 124M gets 4 GiB: its weights, gradients and moments fit, 32 windows of 1024 tokens do not."""
    changes = {"model__preset": "small", "sequence_length": 1024, "micro_batch": 32}
    given = arguments(dataset, tmp_path, **changes | {"tokens_per_step": 65536, "compile": "false"})
    done = start(on_cuda, ["-c", LIMITED.format(bytes=4 * 2**30), *given])
    assert done.returncode == EXIT_RESTART, done.stdout + done.stderr
    assert "takes micro_batch=16" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "DONE").exists()
