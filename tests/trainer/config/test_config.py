"""All mistakes in a configuration are reported together, with what is allowed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.config import schema as config
from trainer.errors import UserError

NEEDED = ["data.directory=/data/x", "run.directory=/runs/x", "sequence_length=128", "model.preset=tiny"]


def problems(*arguments: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        config.load([*NEEDED, *arguments])
    return str(caught.value).splitlines()


def test_overrides_win_over_the_file_and_defaults_stay(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("steps: 7\nprecision: fp32\noptimizer: {learning_rate: 1e-3}\n")
    loaded = config.load(["--config", str(file), *NEEDED, "steps=9"])
    assert (loaded.steps, loaded.precision) == (9, "fp32")
    assert loaded.optimizer.learning_rate == 1e-3
    assert loaded.optimizer.clip == 1.0


def test_epochs_take_the_place_of_steps() -> None:
    loaded = config.load([*NEEDED, "epochs=2", "optimizer.warmup_steps=3"])
    assert (loaded.steps, loaded.epochs) == (0, 2.0), "no step of the default is left"
    assert problems("epochs=2", "steps=9") == ["epochs: 2 given together with steps=9; give only one"]
    assert problems("steps=0") == ["steps: 0 is not allowed; must be greater than 0"]
    assert problems("epochs=-1") == ["epochs: -1 is not allowed; must be greater than or equal to 0"]
    task = ["task=finetune", "model.name=gpt2", "data.directory=/d", "run.directory=/r", "epochs=1"]
    assert config.load(task).steps == 0, "nor of the task"


def test_steps_follow_from_epochs_rounded_up() -> None:
    loaded = config.load([*NEEDED, "epochs=3", "optimizer.warmup_steps=3", "metrics.profile=2:4"])
    assert [config.with_steps(loaded, part).steps for part in (0.1, 0.3, 0.7, 0.299)] == [30, 10, 5, 11]
    assert config.with_steps(config.load([*NEEDED, "steps=7"]), 0.1).steps == 7
    with pytest.raises(UserError, match="warmup_steps: 3 leaves nothing of 3 steps, which epochs=3 makes of this data"):
        config.with_steps(loaded, 1.0)


def test_keys_in_a_file_may_be_dotted(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("optimizer.clip: 2.0\noptimizer: {beta1: 0.8}\n")
    loaded = config.load(["--config", str(file), *NEEDED])
    assert (loaded.optimizer.clip, loaded.optimizer.beta1) == (2.0, 0.8)


@pytest.mark.parametrize(
    "given",
    [
        ["checkpoint.every_minutes=2.5", "compile=true"],
        ["epochs=3", "optimizer.epsilon=1e-12", "evaluation.prompt= yes: [1.30]\t"],
        ["task=question_answering", "sequence_length=384", "tokens_per_step=384", "model.preset="],
        ["task=finetune", "model.preset=", "model.name=1e3", "adapter.kind=lora", "optimizer.learning_rate=1e-3"],
    ],
    ids=lambda given: given[0],
)
def test_the_resolved_configuration_is_whole_and_loads_again(tmp_path: Path, given: list[str]) -> None:
    loaded = config.load([*NEEDED, *given])
    assert config.stored(config.resolved(loaded)).keys() == config.flat(config.Config()).keys()
    file = tmp_path / "config.yaml"
    file.write_text(config.resolved(loaded))
    assert config.load(["--config", str(file)]) == loaded


def test_an_unknown_key_is_answered_with_the_nearest() -> None:
    assert problems("step=10") == ["step: unknown key; did you mean steps?"]
    assert problems("learning_rate=1") == ["learning_rate: unknown key; did you mean optimizer.learning_rate?"]
    assert problems("microBatch=-1")[0].startswith("microBatch: -1 is not allowed; ")


def test_all_problems_come_together() -> None:
    found = problems("step=10", "steps=-1", "optimizer.clip=high", "precision=fp8", "nonsense")
    assert [line.split(":")[0] for line in sorted(found)] == [
        "nonsense",
        "optimizer.clip",
        "precision",
        "step",
        "steps",
    ]
    assert "fp8" in "".join(found)
    assert "'auto', 'fp32', 'bf16', 'fp16'" in "".join(found)


def test_what_is_required_is_asked_for() -> None:
    with pytest.raises(UserError) as caught:
        config.load([])
    assert "data.directory: missing" in str(caught.value)
    assert "run.directory: missing" in str(caught.value)
    assert config.load(["run.directory=/runs/x", "task=question_answering"]), "its questions are its data"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tokens_per_step=1000", "micro_batch=4"], "nearest: 1024"),
        (["sequence_length=256"], "longer than the 128 positions of preset tiny"),
        (["model.preset=huge"], "tiny, micro, distil, small, medium, large, xl"),
        (["steps=1.5"], "steps: 1.5 is not a whole number"),
        (["steps=inf"], "'inf' is not a whole number"),
        (["optimizer.learning_rate=nan"], "is not a number"),
        (["metrics.tensorboard=maybe"], "true or false"),
        (["optimizer.beta2=1"], "must be less than 1"),
        (["--config", "/nowhere.yaml"], "cannot be read"),
        (
            ["engine.name=deepspeed", "optimizer.name=muon"],
            "optimizer.name: muon needs whole matrices, which deepspeed",
        ),
        (["engine.name=fsdp", "adapter.kind=lora"], "engine.name: fsdp trains whole models, not adapters"),
        (["engine.name=fsdp", "task=question_answering"], "engine.name: fsdp is not for task question_answering"),
        (["engine.name=fsdp", "engine.deepspeed_config=z.json"], "given, but engine.name is fsdp"),
        (["model.config=x.json"], "model.preset: given together with model.config"),
        (["adapter.rank=4"], "adapter.rank: given, but adapter.kind is none"),
        (["adapter.kind=lora", "optimizer.name=muon"], "optimizer.name: muon is for the matrices of whole models"),
        (["task=distillation"], "distillation.teacher: missing"),
        (["task=distillation", "adapter.kind=lora"], "adapter.kind: not for task distillation"),
        (
            ["task=question_answering", "question_answering.document_stride=60"],
            "sequence_length - question_tokens - 4 = 60",
        ),
        (["metrics.profile=9:13", "steps=12"], "metrics.profile: '9:13' is not FIRST:LAST from 1 to steps=12"),
        (["metrics.profile=3"], "metrics.profile: '3' is not FIRST:LAST"),
        (["metrics.profile=4:3"], "metrics.profile: '4:3' is not FIRST:LAST"),
    ],
)
def test_each_rule_says_what_is_allowed(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("z.json").write_text("{}")
    assert said in "\n".join(problems(*arguments))


def test_what_is_just_allowed_is_taken() -> None:
    assert config.load([*NEEDED, "metrics.profile=12:12", "steps=12"]).metrics.profile == "12:12"
    near = ["task=question_answering", "question_answering.document_stride=59", "model.preset="]
    assert config.load([*NEEDED, *near]).question_answering.document_stride == 59


def test_an_adapter_brings_its_own_rate_whatever_the_task() -> None:
    def rate(*arguments: str) -> float:
        return config.load([*NEEDED, "model.preset=", "model.name=gpt2", *arguments]).optimizer.learning_rate

    tuned, adapted = rate("task=finetune"), rate("task=finetune", "adapter.kind=lora")
    assert tuned < adapted == rate("adapter.kind=lora"), "few weights take larger steps"
    assert rate("task=finetune", "adapter.kind=lora", "optimizer.learning_rate=1e-3") == 1e-3


def test_a_file_of_ones_own_goes_before_an_example_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = sorted(config.EXAMPLES.glob("*.yaml"))[0].name
    (tmp_path / name).write_text("steps: 7\n")
    monkeypatch.chdir(tmp_path)
    assert config.load(["--config", name, *NEEDED]).steps == 7


def test_a_file_that_is_no_mapping_is_told(tmp_path: Path) -> None:
    for text in (b"- a\n", b"optimizer: 5\n", b"steps: [1]\n", b"a: [\n", "steps: 5  # für\n".encode("latin-1")):
        file = tmp_path / "run.yaml"
        file.write_bytes(text)
        assert len(problems("--config", str(file))) == 1


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(sorted(config.flat(config.Config()))), st.text(max_size=12), max_size=5))
def test_no_value_gives_anything_but_a_configuration_or_a_list_of_problems(values: dict[str, str]) -> None:
    with contextlib.suppress(UserError):
        assert yaml.safe_load(config.resolved(config.load([f"{key}={value}" for key, value in values.items()])))
