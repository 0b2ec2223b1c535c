"""Several trainings of one stack: what each has of its own, what they share, and who gives way to whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.stackfiles import stack_file_values
from review.recording import Recorded, Recording, record
from tests.conftest import write_kubeconfig
from tests.infra.recorded import recorded, trained
from workloads.objects import EXPENDABLE, TRAINING, TRAINING_PRIORITY


def jobs(stack: Recording) -> dict[str, Recorded]:
    """Training -> its Job."""
    found = [item for item in stack.resources if item.kind == "Job" and TRAINING in item.inputs["metadata"]["labels"]]
    return {item.inputs["metadata"]["labels"][TRAINING]: item for item in sorted(found, key=lambda item: item.name)}


def names(stack: Recording, kind: str) -> list[str]:
    return sorted(item.inputs["metadata"]["name"] for item in stack.resources if item.kind == kind)


AB: dict[str, Any] = {"a": {"steps": 100}, "b.2": {"optimizer": {"learningRate": 0.001}}}


def test_each_has_a_job_a_service_a_budget_and_a_folder() -> None:
    stack = recorded("local", trainings=AB)
    found = jobs(stack)
    assert list(found) == ["a", "b.2"]
    for training, service in (("a", "trainer-a"), ("b.2", "trainer-b-2")):
        pod = found[training].inputs["spec"]["template"]
        assert pod["spec"]["subdomain"] == service
        assert pod["metadata"]["labels"][TRAINING] == training
        (spread,) = pod["spec"]["topologySpreadConstraints"]
        selectors = [spread["labelSelector"]["matchLabels"]]
        for kind in ("Service", "PodDisruptionBudget"):
            (own,) = (one for one in stack.resources if one.kind == kind and one.inputs["metadata"]["name"] == service)
            selector = own.inputs["spec"]["selector"]
            selectors.append(selector.get("matchLabels", selector))
        assert all(selector[TRAINING] == training for selector in selectors)
        run = stack.outputs["trainings"][training]["runDirectory"]
        assert run.startswith(f"/data/runs/{training}-")
        assert trained(stack, found[training].name).run.directory == run
        assert stack.outputs["trainings"][training]["jobName"] == found[training].inputs["metadata"]["name"]
    assert "." not in "".join(names(stack, "Job")), "a pod's host name is a part of a domain name"
    assert "jobName" not in stack.outputs


def test_what_belongs_to_the_stack_is_there_once() -> None:
    one, two = recorded("aws-g4dn", trainings={"a": None}), recorded("aws-g4dn", trainings=AB)
    own = ("Training", "Job", "JobPatch", "Service", "PodDisruptionBudget", "PriorityClass")
    shared = (
        {(item.type, item.name) for item in each.resources if item.kind not in own and "-config" not in item.name}
        for each in (one, two)
    )
    assert next(shared) == next(shared)
    assert len([name for name in names(two, "Job") if name.startswith("dataset-")]) == 1, "both read the same data"


def test_other_data_are_prepared_beside_and_a_model_is_fetched_once_at_a_time() -> None:
    finer = {"dataset": {"documents": "lines"}}
    stack = recorded("aws-g4dn", trainings={"a": None, "b": finer, "c": {"model": {"name": "gpt2"}, **finer}})
    prepared = [item for item in stack.resources if item.kind == "Job" and item.name.startswith("dataset-")]
    assert len(prepared) == 3, "with another model another tokenizer"
    waits = {item.name: [other.name for other in prepared if other.urn in item.dependencies] for item in prepared}
    assert sorted(map(len, waits.values())) == [0, 0, 1], "two fetch distilgpt2 into one folder"
    accounts = [item for item in stack.resources if item.kind == "ServiceAccount" and "dataset" in str(item.inputs)]
    assert len(accounts) <= 1


@pytest.mark.parametrize(("stack", "values"), [("aws-g4dn", [37, 36]), ("local", [-63, -64])])
def test_the_order_is_the_priority_and_only_trainings_give_way(stack: str, values: list[int]) -> None:
    """Pods of others have priority 0: they are preempted on nodes that nobody else may use, if at all."""
    found = recorded(stack, trainings=AB)
    of_trainings = [
        item for item in found.resources if item.kind == "PriorityClass" and "-training-" in str(item.inputs)
    ]
    classes = {item.inputs["metadata"]["name"]: item for item in of_trainings}
    assert [int(item.inputs["value"]) for item in classes.values()] == values
    assert {item.inputs["preemptionPolicy"] for item in classes.values()} == {"PreemptLowerPriority"}
    # The API server lets nobody change it.
    assert {item.replace_on_changes for item in classes.values()} == {("value",)}
    for job, name in zip(jobs(found).values(), classes, strict=True):
        assert job.inputs["spec"]["template"]["spec"]["priorityClassName"] == name
        assert classes[name].urn in job.dependencies
    assert 0 < min(values) < TRAINING_PRIORITY or max(values) < 0
    more = recorded(stack, trainings={"new": None, **AB})
    same = {item.inputs["metadata"]["name"]: item.inputs["value"] for item in more.all("kubernetes:scheduling")}
    assert {name: item.inputs["value"] for name, item in classes.items()}.items() <= same.items()


def test_on_other_peoples_nodes_none_is_expendable_to_their_autoscaler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", "theirs", None)))
    given = {**stack_file_values("local"), "cluster": {"context": "theirs"}, "sweep": {"run.seed": list(range(14))}}
    given["image"] = {"builder": "prebuilt", "ref": f"example.com/trainer@sha256:{'0' * 64}"}
    found = record("local", given)
    classes = [item for item in found.resources if item.kind == "PriorityClass" and "training-seed" in item.name]
    values = sorted(int(item.inputs["value"]) for item in classes)
    assert values == [*range(EXPENDABLE, 1), *[0] * 3]


def test_a_training_that_comes_or_goes_leaves_the_others_jobs_as_they_are() -> None:
    """Also where it moves their priority: the Job names its class, whose value changes beside it."""
    before, after = (jobs(recorded("local", trainings=given)) for given in (AB, {"new": {"run": {"seed": 7}}, **AB}))
    for name, job in before.items():
        assert (job.name, job.inputs) == (after[name].name, after[name].inputs)
    assert "new" in after
    removed = jobs(recorded("local", trainings={"b.2": AB["b.2"]}))
    assert removed["b.2"].inputs == before["b.2"].inputs


def test_queued_nodes_are_asked_for_each_job_alone() -> None:
    nodes = {"consumption": "queued", "maxRunHours": 24, "compactPlacement": False}
    found = recorded(
        "gcp-a100", trainings={"a": None, "b": {"run": {"seed": 7}}}, nodes=nodes, check={"enabled": False}
    )
    found_requests = (item for item in found.resources if item.kind == "ProvisioningRequest")
    requests = sorted(found_requests, key=lambda item: item.name)
    assert [item.name for item in requests] == ["nodes-wanted-a", "nodes-wanted-b"]
    for request, job in zip(requests, jobs(found).values(), strict=True):
        assert request.inputs["metadata"]["name"] == job.inputs["metadata"]["name"]
