"""Scaling, spares and priorities, as the stack declares them."""

from __future__ import annotations

import pytest

from review.recording import Recording
from tests.infra.recorded import pod, recorded


def option(made: Recording, name: str) -> str:
    arguments = pod(made)["containers"][0]["args"]
    return arguments[arguments.index(name) + 1]


def test_another_count_changes_the_running_job_and_makes_no_new_one() -> None:
    before, after = recorded("local", workers={"count": 2}), recorded("local", workers={"count": 4, "min": 2})
    same = recorded("local", workers={"count": 2, "min": 2})
    assert after.outputs["jobName"] == same.outputs["jobName"] != before.outputs["jobName"]
    patch = after.one("JobPatch", "training-size")
    assert patch.inputs["metadata"]["name"] == after.outputs["jobName"]
    assert patch.inputs["spec"] == {"completions": 4, "parallelism": 4, "maxFailedIndexes": 2}
    job = after.one("Job", "training")
    assert pod(after) == pod(same), "a change in the template would replace the Job"
    assert job.ignore_changes == ("spec.completions", "spec.parallelism", "spec.maxFailedIndexes")


def test_spares_are_pods_beyond_the_number_that_trains() -> None:
    made = recorded("local", workers={"count": 3, "spares": 2})
    spec = made.one("Job", "training").inputs["spec"]
    assert (spec["parallelism"], spec["completions"], spec["maxFailedIndexes"]) == (5, 5, 4)
    assert option(made, "--nnodes") == "1:3"
    assert not [item for item in made.resources if item.kind == "JobPatch"]


def test_what_a_stack_gives_nccl_counts_before_what_we_set() -> None:
    """Behind a pod's eth0 NCCL sees no network card, and would take one socket."""

    def variables(made: Recording) -> dict[str, str]:
        return {each["name"]: each.get("value", "") for each in pod(made)["containers"][0]["env"]}

    own, given = variables(recorded("gcp-a100")), {"NCCL_SOCKET_NTHREADS": "8", "NCCL_DEBUG": "INFO"}
    assert own["NCCL_SOCKET_NTHREADS"] == "4"
    assert variables(recorded("gcp-a100", workers={"environment": given})) == own | given


def test_drains_leave_as_many_workers_as_a_round_needs_and_never_block_for_ever() -> None:
    for count, least in ((4, [2]), (2, [])):
        stack = recorded("local", workers={"count": count, "min": 2})
        budgets = [item for item in stack.resources if item.kind == "PodDisruptionBudget"]
        assert [item.inputs["spec"]["minAvailable"] for item in budgets] == least


@pytest.mark.parametrize(("name", "given"), [("gcp-a100", 90), ("local", 30)])
def test_what_the_launcher_gives_its_workers_fits_what_the_cloud_gives_the_pod(name: str, given: int) -> None:
    made = recorded(name)
    assert pod(made)["terminationGracePeriodSeconds"] == given
    assert int(option(made, "--shutdown-timeout")) == given - 5


def test_a_training_is_ended_after_its_hours() -> None:
    for job, hours in (({"maxHours": 1.5}, 1.5), ({}, 7 * 24)):  # a week by default
        spec = recorded("local", job=job).one("Job", "training").inputs["spec"]
        assert spec["activeDeadlineSeconds"] == hours * 3600


@pytest.mark.parametrize("name", ["local", "gcp-a100"])
def test_every_job_ends_by_itself_and_up_waits_long_enough_to_hear_why(name: str) -> None:
    """A template that loops, a rendezvous that only begins rounds: whatever it is, it ends before anybody looks."""
    jobs = recorded(name).all("kubernetes:batch/v1:Job")
    limits = {item.name: item.inputs["spec"].get("activeDeadlineSeconds") for item in jobs if "Patch" not in item.type}
    assert len(limits) >= 2
    assert all(limit and 60 <= limit <= 7 * 24 * 3600 for limit in limits.values()), limits
    for item in jobs:
        waits = item.inputs["metadata"].get("annotations", {}).get("pulumi.com/timeoutSeconds")
        assert waits is None or int(waits) == limits[item.name] + 60
