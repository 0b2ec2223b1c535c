"""job.runtime: trainjob is the same training in Kubeflow's form, and nothing at all when it is off."""

from __future__ import annotations

from typing import Any

import pytest

from review.recording import Recorded, Recording
from tests.infra.recorded import recorded
from tests.workloads import schema
from workloads.custom_resources import job_of


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    """Kind -> schema."""
    names = {"TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes"}
    files = {path.stem.split("_")[1]: path for path in schema.kubeflow_definitions()}
    return {kind: schema.schema(files[name]) for kind, name in names.items()}


@pytest.fixture
def usual() -> Recording:
    return recorded("local")


@pytest.fixture
def as_trainjob() -> Recording:
    return recorded("local", job={"runtime": "trainjob"})


def spec(item: Recorded) -> dict[str, Any]:
    return item.inputs["spec"]


def job_in(stack: Recording) -> dict[str, Any]:
    """The Job's specification inside the runtime."""
    (replicated,) = spec(stack.one("TrainingRuntime"))["template"]["spec"]["replicatedJobs"]
    return replicated["template"]["spec"]


@pytest.mark.parametrize("kind", ["TrainJob", "TrainingRuntime"])
def test_it_is_what_the_definition_allows(
    as_trainjob: Recording, schemas: dict[str, dict[str, Any]], kind: str
) -> None:
    assert schema.problems(schemas[kind], as_trainjob.one(kind).inputs) == []


def test_it_trains_the_same(usual: Recording, as_trainjob: Recording) -> None:
    job, inside = usual.one("Job", "training").inputs["spec"], job_in(as_trainjob)
    differing = {key for key in {*job, *inside} if job.get(key) != inside.get(key)}
    assert differing == {"podFailurePolicy", "template"}  # by the container's name
    (before,), (now,) = (item["template"]["spec"]["containers"] for item in (job, inside))
    assert {key for key in {*before, *now} if before.get(key) != now.get(key)} == {"name", "args"}
    # Their configuration is the same, whatever the name of the object that has it.
    configurations = (each.one("ConfigMapPatch", "training-config").inputs for each in (usual, as_trainjob))
    assert len({str(each["data"]) for each in configurations}) == 1
    # The number of nodes is the controller's, so the launcher does not wait for more.
    changed = [(old, new) for old, new in zip(before["args"], now["args"], strict=True) if old != new]
    assert changed == [("1:1000", "1:2")]


def test_the_controller_finds_what_it_fills_in(as_trainjob: Recording) -> None:
    runtime, train_job = as_trainjob.one("TrainingRuntime"), as_trainjob.one("TrainJob")
    (replicated,) = spec(runtime)["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert [item["name"] for item in job_in(as_trainjob)["template"]["spec"]["containers"]] == ["node"]
    assert spec(train_job)["runtimeRef"]["name"] == runtime.inputs["metadata"]["name"]
    assert spec(train_job)["trainer"]["numNodes"] == spec(runtime)["mlPolicy"]["numNodes"] == 2
    assert runtime.urn in train_job.dependencies
    policy = job_in(as_trainjob)["podFailurePolicy"]["rules"]
    assert {rule["onExitCodes"]["containerName"] for rule in policy if "onExitCodes" in rule} == {"node"}


def test_the_tools_find_the_job_that_the_controller_makes() -> None:
    """Also under the longest name, with which those of its pods still fit a DNS label."""
    stack = recorded("local", job={"runtime": "trainjob", "name": "n" * 40})
    name = stack.one("TrainJob").inputs["metadata"]["name"]
    assert stack.outputs["jobName"] == job_of(name) == f"{name}-node-0"
    assert len(f"{job_of(name)}-999-abcde") <= 63


def test_it_costs_nothing_when_off_and_the_run_stays_the_same(usual: Recording, as_trainjob: Recording) -> None:
    assert not [item for item in usual.resources if "kubeflow" in item.type]
    assert not [item for item in as_trainjob.resources if item.name == "training" and item.kind in ("Job", "JobPatch")]
    assert as_trainjob.outputs["runDirectory"] == usual.outputs["runDirectory"]
