"""The configuration of a training: the file that its pods read, and the run that it names."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from infra.config import DatasetConfig, TrainingConfig
from review.recording import Recorded, Recording
from tests.infra.recorded import recorded, trained
from trainer.config.schema import flat, mathematics
from workloads.training import run_name

#: Sections and settings that change speed, limits or output: a run continues in its folder with another value.
SPEED = (
    *("evaluation.", "checkpoint.", "metrics.", "data.", "engine.name", "engine.zero_stage", "micro_batch", "compile"),
    *("require_capability", "run.directory", "run.collective_timeout_seconds", "model.checkpointing"),
    *("communication.bucket_megabytes", "optimizer.skipped_steps_limit"),
    "recipe",  # the defaults that it changes are keys of their own
    *("question_answering.validation", "question_answering.answer_tokens", "question_answering.null_threshold"),
)


def test_a_run_is_named_by_every_key_that_is_mathematics_with_its_default() -> None:
    """A newer program with another default does not continue the folder of an older one."""
    named, others = mathematics(TrainingConfig()), {key for key in flat(TrainingConfig()) if key.startswith(SPEED)}
    assert {*named} == flat(TrainingConfig()).keys() - others
    of_data = DatasetConfig.model_fields.keys() - {"private_servers", "timeout_minutes", "cpu", "memory_gib"}
    assert mathematics(DatasetConfig()).keys() == of_data
    run = run_name(TrainingConfig(), DatasetConfig())
    rate = {"optimizer": {"learning_rate": named["optimizer.learning_rate"]}}  # gcp-a100 says the default
    assert run_name(TrainingConfig.model_validate(rate), DatasetConfig()) == run
    assert run_name(TrainingConfig(steps=7), DatasetConfig()) != run
    assert run_name(TrainingConfig(), DatasetConfig(documents="lines")) != run
    assert run_name(TrainingConfig(compile="true"), DatasetConfig(cpu=7)) == run


def configuration(stack: Recording, of: str = "") -> Recorded:
    return stack.one("ConfigMapPatch", f"training{of}-config")


@pytest.mark.parametrize("name", ["local", "gcp-a100"])
def test_pods_read_every_setting_whether_the_stack_gives_it_or_not(name: str) -> None:
    stack = recorded(name)
    told, job = configuration(stack), stack.one("Job", "training")
    (text,) = told.inputs["data"].values()
    assert yaml.safe_load(text).keys() == TrainingConfig.model_fields.keys()
    assert flat(trained(stack)).keys() == flat(TrainingConfig()).keys()
    assert trained(stack).run.directory == stack.outputs["runDirectory"]
    assert told.urn in job.dependencies, "no pod waits for it"
    (container,) = job.inputs["spec"]["template"]["spec"]["containers"]
    assert "=" not in "".join(container["args"]), "nothing is said twice"


def test_a_running_job_keeps_the_configuration_that_it_began_with() -> None:
    """By its name, which is the Job's: another one is another object, which nobody can change, and none is deleted."""
    before = recorded("gcp-a100")
    after = recorded("gcp-a100", training={"steps": 30_000})
    for stack in (before, after):
        told = configuration(stack)
        assert told.inputs["metadata"]["name"] == stack.outputs["jobName"]
        assert told.inputs["immutable"]
        assert told.retain_on_delete
        forced = told.inputs["metadata"]["annotations"]["pulumi.com/patchForce"]
        assert (told.kind, forced) == ("ConfigMapPatch", "true"), "back to the former one, an `up` finds what it left"
        assert told.deleted_with == stack.one("Service", "trainer").deleted_with, "it goes with its namespace"
    assert before.outputs["jobName"] != after.outputs["jobName"]


def test_each_training_has_its_own_and_another_ones_change_leaves_it() -> None:
    def told(**b: Any) -> dict[str, Any]:
        stack = recorded("local", trainings={"a": {"steps": 100}, "b": {"steps": 200, **b}})
        assert (trained(stack, "training-a").steps, trained(stack, "training-b").steps) == (100, 200)
        return {each: configuration(stack, f"-{each}").inputs for each in ("a", "b")}

    before, after = told(), told(metrics={"every": 7})
    assert before["a"] == after["a"]
    assert before["b"]["metadata"]["name"] != after["b"]["metadata"]["name"]
