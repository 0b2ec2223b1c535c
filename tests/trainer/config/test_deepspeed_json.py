"""The tutorials' files as they are, Hugging Face's with "auto", and files that cannot be followed."""

from __future__ import annotations

import json
import re
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
from trainer.parallel.world import World
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


def test_mistrals_z1_file_becomes_our_settings(load: Any, tmp_path: Path) -> None:
    found = load(Z1)
    assert (found.engine.zero_stage, found.optimizer.schedule) == (1, "warmup_decay_log")
    assert (found.optimizer.learning_rate, found.optimizer.warmup_steps) == (6e-4, 4000)
    assert (found.optimizer.schedule_steps, found.optimizer.weight_decay) == (400_000, 0.1)
    assert (found.optimizer.beta1, found.optimizer.beta2, found.optimizer.epsilon) == (0.9, 0.95, 1e-8)
    meaning = deepspeed_json.read(str(tmp_path / "deepspeed.json"), [])
    assert meaning.sections["zero_optimization"]["reduce_bucket_size"] == 2e8
    assert "cpu_offload" not in meaning.sections["zero_optimization"]
    assert meaning.warnings == ["zero_optimization.cpu_offload is deprecated: read as offload_optimizer=none"]


def test_z2_with_offload_fp16_and_clipping(load: Any, tmp_path: Path) -> None:
    zero = {**Z1["zero_optimization"], "stage": 2, "cpu_offload": True}
    found = load({**Z1, "zero_optimization": zero, "fp16": {"enabled": True}, "gradient_clipping": 0.5})
    assert (found.engine.zero_stage, found.precision, found.optimizer.clip) == (2, "fp16", 0.5)
    meaning = deepspeed_json.read(str(tmp_path / "deepspeed.json"), [])
    assert meaning.sections["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}


def test_auto_leaves_it_to_our_settings(load: Any) -> None:
    document = {
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
        "steps_per_print": 100,
    }
    found = load(document, "optimizer.learning_rate=0.001")
    assert (found.engine.zero_stage, found.optimizer.learning_rate, found.optimizer.clip) == (2, 0.001, 1.0)


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


UNUSED: dict[str, dict[str, Any]] = {
    "fp16.loss_scale": {"fp16": {"enabled": True, "loss_scale": 0}},
    "fp16.initial_scale_power": {"fp16": {"enabled": True, "initial_scale_power": 12}},
    "fp16.enabled": {"fp16": {"enabled": False}},
    "bf16.immediate_grad_update": {"bf16": {"enabled": True, "immediate_grad_update": True}},
    "optimizer.params.torch_adam": {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}},
    "optimizer.params.fused": {"optimizer": {"type": "AdamW", "params": {"fused": True}}},
    "optimizer.legacy_fusion": {"optimizer": {"type": "AdamW", "legacy_fusion": True}},
    "scheduler.name": {"scheduler": {"type": "WarmupDecayLR", "name": "mine", "params": {"total_num_steps": 9}}},
    "scheduler.params.total_num_steps": {"scheduler": {"type": "auto", "params": {"total_num_steps": 9}}},
    "zero_optimization.stage3_max_live_parameters": {"zero_optimization": {"stage3_max_live_parameters": 1e9}},
    "zero_optimization.offload_param": {"zero_optimization": {"offload_param": {"device": "cpu"}}},
    "steps_per_print": {"steps_per_print": 10},
    "amp": {"amp": {"enabled": False}},
}


@pytest.mark.parametrize("key", UNUSED)
def test_every_key_without_an_effect_is_named(load: Any, tmp_path: Path, key: str) -> None:
    load(UNUSED[key])
    warnings = deepspeed_json.read(str(tmp_path / "deepspeed.json"), []).warnings
    assert [warning.partition(" is not used: ")[0] for warning in warnings] == [key]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_worker_alone_warns_of_each_key_without_an_effect(
    rank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainer.parallel.deepspeed import deepspeed_settings

    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps({"steps_per_print": 10, "amp": {"enabled": False}}))
    settings = toy.configuration(engine__name="deepspeed", engine__deepspeed_config=path)
    deepspeed_settings(toy.work(), settings, World(rank, 2, rank, round=1, device=torch.device("cpu")))
    lines = capsys.readouterr().out.splitlines()
    said = [re.match(r"event=deepspeed_config_warning text='(\S+) is not used: ", line) for line in lines]
    assert [found and found[1] for found in said] == ([] if rank else ["steps_per_print", "amp"])


@pytest.mark.parametrize(
    ("document", "arguments", "said"),
    [
        (Z1, ["optimizer.learning_rate=0.001"], "optimizer.learning_rate: 0.001 was given, but"),
        ({"train_micro_batch_size_per_gpu": 4}, ["micro_batch=8"], "micro_batch: 8 was given, but"),
        ({"zero_optimization": {"stage": 3}}, [], "zero_optimization.stage is 3; 1 and 2 are supported"),
        ({"zero_optimization": {"stage": 3}}, [], "take engine.name=fsdp"),
        ({"optimizer": {"type": "Adam", "params": {"bias_correction": False}}}, [], "bias_correction is false; Adam"),
        ({"fp16": {"enabled": "yes"}}, [], 'fp16.enabled is "yes"; give true, false or auto'),
        ('{"fp16": {"enabled": true}, "fp16": {"enabled": false}}', [], "has fp16 twice in one object"),
        ('{"a": ' * 99_999, [], "not JSON"),
        ('{"steps_per_print": ' + "1" * 5000 + "}", [], "not JSON: Exceeds the limit"),
        ({"optimizer": {"type": "OneBitAdam"}}, [], "optimizer.type is 'OneBitAdam'; AdamW is supported"),
        ({"scheduler": {"type": "OneCycle"}}, [], "scheduler.type is 'OneCycle'; WarmupDecayLR is supported"),
        ({"curriculum_learning": {"enabled": True}}, [], "curriculum_learning is not supported here; remove it"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, [], "fp16 and bf16 are both enabled"),
        ({"fp16": True}, [], "fp16 is true; give an object"),
        ({"zero_optimization": 1}, [], "zero_optimization is 1; give an object"),
        ({"optimizer": "Adam"}, [], 'optimizer is "Adam"; give an object'),
        ({"optimizer": {"type": "Adam", "params": [1e-3]}}, [], "optimizer.params is [0.001]; give an object"),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, [], "betas is [0.9]; give two numbers"),
        ({"optimizer": {"type": "Adam", "params": {"betas": 0.9}}}, [], "betas is 0.9; give two numbers"),
        ({"scheduler": {"type": "WarmupDecayLR", "params": 5}}, [], "scheduler.params is 5; give an object"),
        (
            {"zero_optimization": {"cpu_offload": True, "offload_optimizer": "cpu"}},
            [],
            'zero_optimization.offload_optimizer is "cpu"; give an object',
        ),
        ("{", [], "not JSON"),
        ([1], [], "holds a list; a DeepSpeed file is an object"),
    ],
)
def test_what_cannot_be_followed_is_told(load: Any, document: Any, arguments: list[str], said: str) -> None:
    with pytest.raises(UserError, match=r"deepspeed\.json") as error:
        load(document, *arguments)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_value_of_the_wrong_form_is_told_by_the_setting_that_it_is_for(load: Any) -> None:
    with pytest.raises(UserError, match=r"^communication\.compression: \[fp16\] is not known; allowed: [^\n]*$"):
        load({"communication_data_type": ["fp16"]})


def test_a_file_without_its_engine_is_refused(load: Any) -> None:
    with pytest.raises(UserError, match=r"given, but engine\.name is ddp; add engine\.name=deepspeed"):
        load(Z1, "engine.name=ddp")


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"train_batch_size": 512}, "train_batch_size 512, but a step has 8 sequences"),
        ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps 3, but 4 micro-batches a step on 2 workers"),
    ],
)
def test_batch_sizes_that_contradict_the_run_are_told(tmp_path: Path, document: dict[str, Any], said: str) -> None:
    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps(document))
    settings = toy.configuration(engine__name="deepspeed", engine__deepspeed_config=path)
    world = World(rank=1, size=2, local_rank=1, round=1, device=torch.device("cpu"))
    with pytest.raises(UserError, match=said):
        build_engine(toy.work(), settings, world, torch.float32)


def test_batch_sizes_that_agree_with_the_run_are_taken(tmp_path: Path) -> None:
    from trainer.parallel.deepspeed import deepspeed_settings

    path = tmp_path / "deepspeed.json"
    path.write_text(
        json.dumps({**Z1, "train_batch_size": 8, "gradient_accumulation_steps": 4, "wall_clock_breakdown": True})
    )
    settings = toy.configuration(engine__name="deepspeed", engine__deepspeed_config=path)
    world = World(rank=0, size=1, local_rank=0, round=1, device=torch.device("cpu"))
    found = deepspeed_settings(toy.work(), settings, world)
    assert found["wall_clock_breakdown"] is True
    assert found["zero_optimization"]["stage"] == 1
    assert found["zero_optimization"]["reduce_bucket_size"] == 2e8
    assert found["zero_optimization"]["overlap_comm"] is False, "a CPU has no second stream"


@pytest.mark.parametrize("asked", [None, True])
def test_an_accelerator_waits_for_no_reduce_unless_the_file_asks_for_it(tmp_path: Path, asked: bool | None) -> None:
    """With overlap_comm DeepSpeed synchronises the device before each of its reduces."""
    from trainer.parallel.deepspeed import deepspeed_settings

    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 1} | ({"overlap_comm": asked} if asked else {})}))
    settings = toy.configuration(engine__name="deepspeed", engine__deepspeed_config=path)
    world = World(rank=0, size=1, local_rank=0, round=1, device=torch.device("cuda"))
    assert deepspeed_settings(toy.work(), settings, world)["zero_optimization"]["overlap_comm"] is bool(asked)


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


def test_a_file_on_the_volume_says_what_the_stack_leaves_open(tmp_path: Path) -> None:
    """Nobody knows it before the pods do: a default of the stack does not contradict it, and what is given does."""
    (tmp_path / "z1.json").write_text(json.dumps(Z1))
    file = tmp_path / "training.yaml"

    def load(**optimizer: Any) -> config.Config:
        values = stack_file_values("gcp-a100")
        values["training"] |= {
            "engine": {"name": "deepspeed", "deepspeedConfig": "/data/z1.json"},
            "optimizer": optimizer,
        }
        training = placed(parse(values, "gcp-a100").training, "/data/text", "/data/run", None)
        text = config.resolved(training, unread=True)
        file.write_text(text.replace("/data/z1.json", str(tmp_path / "z1.json")))
        return config.load(["--config", str(file)])

    assert load().optimizer.schedule_steps == 400_000
    with pytest.raises(UserError, match=r"optimizer\.warmup_steps: 200 was given, but .* says 4000"):
        load(warmupSteps=200)


@pytest.mark.parametrize(
    ("document", "optimizer", "said"),
    [
        (Z1, {"warmupSteps": 200}, "training.optimizer.warmupSteps: 200 was given, but .*json says 4000; make them"),
        ({"fp16": True}, {}, r"training\.engine\.deepspeedConfig: .*z1-conf\.json: fp16 is true; give an object"),
        ("{", {}, r"training\.engine\.deepspeedConfig: .*z1-conf\.json: not JSON"),
        ({"zero_optimization": {"stage": 3}}, {}, r"z1-conf\.json: zero_optimization\.stage is 3"),
    ],
)
def test_a_stacks_preview_refuses_what_pods_would(of_stack: Any, document: Any, optimizer: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        of_stack(document, **optimizer)
    assert len(error.value.lines) == 1
