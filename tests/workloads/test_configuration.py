"""The configuration of a training: the file that its pods read, and the run that it names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from infra.config import DatasetConfig, TrainingConfig
from infra.stackfiles import stack_file_values
from review.recording import Recorded, Recording, record, record_anywhere
from tests.infra.recorded import changed, recorded, trained
from trainer.config.base import Section, section_of
from trainer.config.schema import flat
from workloads.training import run_name

#: Sections and settings that change speed, limits or output: a run continues in its folder with another value.
SPEED = (
    *("evaluation.", "checkpoint.", "metrics.", "data.", "engine.name", "engine.zero_stage", "micro_batch", "compile"),
    *("require_capability", "run.directory", "run.collective_timeout_seconds", "model.checkpointing"),
    *("communication.bucket_megabytes", "optimizer.skipped_steps_limit"),
    "recipe",  # the defaults that it changes are keys of their own
    *("question_answering.validation", "question_answering.answer_tokens", "question_answering.null_threshold"),
)
#: Another value of each setting that is a choice.
CHOICES = {
    "task": "finetune",
    "precision": "fp32",
    "compile": "true",
    "model.preset": "tiny",
    "adapter.kind": "lora",
    "data.verify": "always",
    "optimizer.name": "muon",
    "optimizer.schedule": "linear",
    "engine.name": "fsdp",
    "engine.zero_stage": 2,
    "communication.compression": "bf16",
}
OTHER = {bool: True, int: 7, float: 0.25, str: "x", tuple: ("a.txt",)}
KEYS = [(TrainingConfig, key) for key in flat(TrainingConfig())]
KEYS += [(DatasetConfig, key) for key in DatasetConfig.model_fields]


def other(key: str, value: Any) -> Any:
    return CHOICES.get(key, "lines" if key == "documents" else value is not True and OTHER[type(value)])


class Release:
    """The program with another default of one key."""

    def __init__(self) -> None:
        self._undo: list[tuple[type[Section], str, Any]] = []

    def default(self, section: type[Section], key: str, value: Any) -> None:
        name, _, rest = key.partition(".")
        if rest:
            inner = section_of(section.model_fields[name].annotation)
            assert inner is not None
            self.default(inner, rest, value)
            value = inner()
        self._undo.append((section, name, section.model_fields[name].default))
        self._set(section, name, value)

    def undo(self) -> None:
        for section, name, value in self._undo:
            self._set(section, name, value)
        self._undo.clear()

    def _set(self, section: type[Section], name: str, value: Any) -> None:
        section.model_fields[name].default = value
        section.model_rebuild(force=True)


@pytest.fixture
def release() -> Iterator[Release]:
    made = Release()
    yield made
    made.undo()


@pytest.mark.parametrize(("section", "key"), KEYS, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_another_default_makes_another_run_where_it_is_mathematical(
    release: Release, section: type[Section], key: str
) -> None:
    """A newer program does not continue the folder of an older one with other mathematics."""
    before = run_name(TrainingConfig(), DatasetConfig())
    release.default(section, key, value := other(key, flat_value(section, key)))
    assert flat_value(section, key) == value
    speed = (
        key.startswith(SPEED)
        if section is TrainingConfig
        else key in ("private_servers", "timeout_minutes", "cpu", "memory_gib")
    )
    assert (run_name(TrainingConfig(), DatasetConfig()) == before) is speed


def flat_value(section: type[Section], key: str) -> Any:
    found: Any = section()
    for part in key.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("key", ["learning_rate", "clip", "schedule"])
def test_what_a_stack_says_names_the_same_run_whatever_the_default(release: Release, key: str) -> None:
    """gcp-a100 says the rate that is the default today."""
    given = {"optimizer": {key: flat_value(TrainingConfig, f"optimizer.{key}")}}
    before = run_name(TrainingConfig.model_validate(given), DatasetConfig())
    assert before == run_name(TrainingConfig(), DatasetConfig())
    release.default(TrainingConfig, f"optimizer.{key}", other(f"optimizer.{key}", 0.1))
    assert run_name(TrainingConfig.model_validate(given), DatasetConfig()) == before


def configuration(stack: Recording, of: str = "") -> Recorded:
    return stack.one("ConfigMapPatch", f"training{of}-config")


@pytest.mark.parametrize("name", ["local", "gcp-a100", "gcp-c3", "aws-g4dn"])
def test_pods_read_every_setting_whether_the_stack_gives_it_or_not(name: str) -> None:
    stack = record_anywhere(name, stack_file_values(name))
    made, job = configuration(stack), stack.one("Job", "training")
    (text,) = made.inputs["data"].values()
    assert yaml.safe_load(text).keys() == TrainingConfig.model_fields.keys()
    assert flat(trained(stack)).keys() == flat(TrainingConfig()).keys()
    assert trained(stack).run.directory == stack.outputs["runDirectory"]
    assert made.urn in job.dependencies, "no pod waits for it"
    (container,) = job.inputs["spec"]["template"]["spec"]["containers"]
    assert "=" not in "".join(container["args"]), "nothing is said twice"


def test_a_running_job_keeps_the_configuration_that_it_began_with() -> None:
    """By its name, which is the Job's: another one is another object, which nobody can change, and none is deleted."""
    before = recorded("gcp-a100")
    after = record("gcp-a100", changed("gcp-a100", training={"steps": 30_000}))
    for stack in (before, after):
        made = configuration(stack)
        assert made.inputs["metadata"]["name"] == stack.outputs["jobName"]
        assert made.inputs["immutable"]
        assert made.retain_on_delete
        forced = made.inputs["metadata"]["annotations"]["pulumi.com/patchForce"]
        assert (made.kind, forced) == ("ConfigMapPatch", "true"), "back to the former one, an `up` finds what it left"
        assert made.deleted_with == stack.one("Service", "trainer").deleted_with, "it goes with its namespace"
    assert before.outputs["jobName"] != after.outputs["jobName"]


def test_each_training_has_its_own_and_another_ones_change_leaves_it() -> None:
    def told(**b: Any) -> dict[str, Any]:
        values = {**stack_file_values("local"), "trainings": {"a": {"steps": 100}, "b": {"steps": 200, **b}}}
        stack = record_anywhere("local", values)
        assert (trained(stack, "training-a").steps, trained(stack, "training-b").steps) == (100, 200)
        return {each: configuration(stack, f"-{each}").inputs for each in ("a", "b")}

    before, after = told(), told(metrics={"every": 7})
    assert before["a"] == after["a"]
    assert before["b"]["metadata"]["name"] != after["b"]["metadata"]["name"]


def test_one_that_no_config_map_holds_is_refused() -> None:
    from infra.config import ConfigError
    from infra.parse import parse

    values = changed("local", training={"evaluation": {"prompt": "x" * 2**20}})
    with pytest.raises(ConfigError, match=r"training: 1,0..,... bytes with its defaults; allowed: at most 1,000,000"):
        parse(values, "local")
