"""The tutorials' files as they are, Hugging Face's with "auto", and files that cannot be followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from infra.config import ConfigError, StackConfig
from infra.parse import parse
from infra.stackfiles import stack_file_values
from tests.trainer import toy
from trainer.config import deepspeed_json
from trainer.config import schema as config
from trainer.errors import UserError
from trainer.parallel.deepspeed import deepspeed_settings
from trainer.train.loop import build_engine
from workloads.training import placed

Z1: dict[str, Any] = {
    "optimizer": {"type": "AdamW", "params": {"lr": 0.0006, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"total_num_steps": 400000, "warmup_max_lr": 0.0006, "warmup_num_steps": 4000},
    },
    "zero_optimization": {
        "stage": 1,
        "allgather_partitions": True,
        "allgather_bucket_size": 2e8,
        "reduce_scatter": True,
        "reduce_bucket_size": 2e8,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "cpu_offload": False,
    },
}
"""Mistral's conf/deepspeed/z1-conf.json."""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """The configuration with this file and further arguments."""

    def load(document: Any, *arguments: str) -> config.Config:
        path = tmp_path / "deepspeed.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        common = ["data.directory=/data", "run.directory=/run", "engine.name=deepspeed"]
        return config.load([*common, f"engine.deepspeed_config={path}", *arguments])

    return load


def following(folder: Path, document: dict[str, Any]) -> Any:
    """The toy's configuration with this file."""
    path = folder / "deepspeed.json"
    path.write_text(json.dumps(document))
    return toy.configuration(engine__name="deepspeed", engine__deepspeed_config=path)


def test_mistrals_z1_file_becomes_our_settings(load: Any, tmp_path: Path) -> None:
    found = load(Z1)
    assert (found.engine.zero_stage, found.optimizer.schedule) == (1, "warmup_decay_log")
    assert (found.optimizer.learning_rate, found.optimizer.warmup_steps) == (6e-4, 4000)
    assert (found.optimizer.schedule_steps, found.optimizer.weight_decay) == (400_000, 0.1)
    assert (found.optimizer.beta1, found.optimizer.beta2, found.optimizer.epsilon) == (0.9, 0.95, 1e-8)
    meaning = deepspeed_json.read(str(tmp_path / "deepspeed.json"), [])
    expected = {key: value for key, value in Z1["zero_optimization"].items() if key != "stage"}
    assert meaning.sections == {"zero_optimization": expected}


def test_z2_with_offload_fp16_and_clipping(load: Any, tmp_path: Path) -> None:
    zero = {**Z1["zero_optimization"], "stage": 2, "offload_optimizer": {"device": "cpu"}}
    found = load({**Z1, "zero_optimization": zero, "fp16": {"enabled": True}, "gradient_clipping": 0.5})
    assert (found.engine.zero_stage, found.precision, found.optimizer.clip) == (2, "fp16", 0.5)
    meaning = deepspeed_json.read(str(tmp_path / "deepspeed.json"), [])
    assert meaning.sections["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}


def test_auto_leaves_every_key_to_our_settings(load: Any) -> None:
    """Each leaf of the tutorial's file as Hugging Face's `auto`: what we say then counts, and contradicts nothing."""
    document: dict[str, Any] = json.loads(json.dumps(Z1)) | {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}
    document["scheduler"]["params"]["warmup_min_lr"] = "auto"
    for section in (document["optimizer"]["params"], document["scheduler"]["params"], document["zero_optimization"]):
        section.update(dict.fromkeys(section, "auto"))
    ours = ["optimizer.warmup_steps=7", "optimizer.learning_rate=0.002", "optimizer.schedule_steps=90"]
    found = load(document, *ours, "optimizer.beta2=0.9", "optimizer.weight_decay=0.3", "precision=bf16")
    assert (found.optimizer.warmup_steps, found.optimizer.learning_rate) == (7, 0.002)
    assert (found.optimizer.schedule_steps, found.optimizer.beta2, found.optimizer.weight_decay) == (90, 0.9, 0.3)
    assert (found.optimizer.schedule, found.precision, found.engine.zero_stage) == ("warmup_decay_log", "bf16", 1)
    del document["scheduler"]["params"]["warmup_num_steps"]
    assert load(document).optimizer.warmup_steps == 1000, "DeepSpeed's own, where the file says nothing"
    document["optimizer"]["type"] = document["scheduler"]["type"] = "auto"
    assert load(document, "optimizer.schedule=wsd").optimizer.schedule == "wsd"


def test_every_key_without_an_effect_is_named(load: Any, tmp_path: Path) -> None:
    unused: dict[str, Any] = {
        "fp16": {"enabled": False, "loss_scale": 0},
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        "scheduler": {"type": "auto", "params": {"total_num_steps": 9}},
        "zero_optimization": {"stage3_max_live_parameters": 1e9, "offload_param": {"device": "cpu"}},
        "steps_per_print": 10,
        "amp": {"enabled": False},
    }
    load(unused)
    named = deepspeed_json.read(str(tmp_path / "deepspeed.json"), []).unused
    assert set(named) == {
        "fp16.enabled",
        "fp16.loss_scale",
        "optimizer.params.torch_adam",
        "scheduler.params.total_num_steps",
        "zero_optimization.stage3_max_live_parameters",
        "zero_optimization.offload_param.device",
        "steps_per_print",
        "amp.enabled",
    }


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_worker_alone_warns_of_each_key_without_an_effect(
    rank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = following(tmp_path, {"steps_per_print": 10})
    deepspeed_settings(toy.work(), settings, toy.place(rank, 2))
    said = "" if rank else "event=deepspeed_config_warning text='steps_per_print is not used'\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("document", "arguments", "said"),
    [
        (Z1, ["optimizer.learning_rate=0.001"], "optimizer.learning_rate: 0.001 was given, but"),
        ({"train_micro_batch_size_per_gpu": 4}, ["micro_batch=8"], "micro_batch: 8 was given, but"),
        ({"zero_optimization": {"stage": 3}}, [], "zero_optimization.stage is 3; supported: 1, 2; engine.name=fsdp"),
        ({"optimizer": {"type": "Adam", "params": {"bias_correction": False}}}, [], "is false; supported: true"),
        ({"fp16": {"enabled": "yes"}}, [], "fp16.enabled is 'yes'; supported: true, false"),
        ('{"fp16": {"enabled": true}, "fp16": {"enabled": false}}', [], "has fp16 twice in one object"),
        ({"scheduler": {"type": "OneCycle"}}, [], "scheduler.type is 'OneCycle'; supported: WarmupDecayLR"),
        ({"curriculum_learning": {"on": True}}, [], "curriculum_learning.on: true is not supported here; remove it"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, [], "says precision twice: fp16 and bf16"),
        ({"fp16": True}, [], "fp16: true is not supported here"),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, [], "betas: [0.9] is not supported here"),
        ("{", [], "not JSON"),
        ([1], [], "holds a list; a DeepSpeed file is an object"),
    ],
)
def test_what_cannot_be_followed_is_told(load: Any, document: Any, arguments: list[str], said: str) -> None:
    with pytest.raises(UserError, match=r"deepspeed\.json") as error:
        load(document, *arguments)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"train_batch_size": 512}, "train_batch_size 512, but a step has 8 sequences"),
        ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps 3, but 4 micro-batches a step on 2 workers"),
    ],
)
def test_batch_sizes_that_contradict_the_run_are_told(tmp_path: Path, document: dict[str, Any], said: str) -> None:
    settings = following(tmp_path, document)
    with pytest.raises(UserError, match=said):
        build_engine(toy.work(), settings, toy.place(1, 2), torch.float32)


def test_batch_sizes_that_agree_with_the_run_are_taken(tmp_path: Path) -> None:
    settings = following(
        tmp_path, {**Z1, "train_batch_size": 8, "gradient_accumulation_steps": 4, "wall_clock_breakdown": True}
    )
    found = deepspeed_settings(toy.work(), settings, toy.place())
    assert found["wall_clock_breakdown"] is True
    assert found["zero_optimization"]["stage"] == 1
    assert found["zero_optimization"]["reduce_bucket_size"] == 2e8
    assert found["zero_optimization"]["overlap_comm"] is False, "a CPU has no second stream"


@pytest.mark.parametrize("asked", [None, True])
def test_an_accelerator_waits_for_no_reduce_unless_the_file_asks_for_it(tmp_path: Path, asked: bool | None) -> None:
    """With overlap_comm DeepSpeed synchronises the device before each of its reduces."""
    settings = following(tmp_path, {"zero_optimization": {"stage": 1} | ({"overlap_comm": asked} if asked else {})})
    found = deepspeed_settings(toy.work(), settings, toy.place(device="cuda"))
    assert found["zero_optimization"]["overlap_comm"] is bool(asked)


@pytest.fixture
def of_stack(tmp_path: Path) -> Any:
    """gcp-a100's configuration with this DeepSpeed file, and the optimizer's numbers left to the file."""

    def of_stack(document: Any, **optimizer: Any) -> StackConfig:
        (tmp_path / "z1-conf.json").write_text(document if isinstance(document, str) else json.dumps(document))
        values = stack_file_values("gcp-a100")
        engine = {"name": "deepspeed", "deepspeedConfig": str(tmp_path / "z1-conf.json")}
        values["training"] |= {"engine": engine, "optimizer": optimizer}
        return parse(values, "gcp-a100")

    return of_stack


def test_pods_of_a_stack_get_what_its_file_says(of_stack: Any, tmp_path: Path) -> None:
    training = of_stack(Z1).training
    assert (training.optimizer.schedule, training.optimizer.schedule_steps) == ("warmup_decay_log", 400_000)
    (tmp_path / "z1-conf.json").unlink()
    file = tmp_path / "training.yaml"
    file.write_text(config.resolved(placed(training, "/data/text", "/data/run", None)))
    found = config.load(["--config", str(file)])
    assert (found.optimizer, found.engine) == (training.optimizer, training.engine)
    meaning = deepspeed_json.read(found.engine.deepspeed_config, [])
    assert meaning.sections["zero_optimization"]["reduce_bucket_size"] == 2e8


@pytest.mark.parametrize(
    ("document", "optimizer", "said"),
    [
        (Z1, {"warmupSteps": 200}, "training.optimizer.warmupSteps: 200 was given, but .*json says 4000; make them"),
        ({"fp16": True}, {}, r"training\.engine\.deepspeedConfig: .*z1-conf\.json: fp16: true is not supported here"),
    ],
)
def test_a_stacks_preview_refuses_what_pods_would(of_stack: Any, document: Any, optimizer: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        of_stack(document, **optimizer)
    assert len(error.value.lines) == 1
