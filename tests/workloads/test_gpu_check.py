"""The node check of a stack: its result is an output, and it waits for no training."""

from __future__ import annotations

from review.recording import Recorded, Recording
from tests.infra.recorded import pod, recorded


def node_check(stack: Recording) -> Recorded:
    (job,) = [item for item in stack.resources if item.kind == "Job" and item.name.startswith("gpu-check")]
    return job


def test_the_check_of_the_nodes_never_waits_for_a_training_that_has_them() -> None:
    """A resize does not repeat the check. A repeated check preempts the training, which comes back by itself."""
    small, large = (recorded("gcp-a100", check={"enabled": True}, workers={"count": count}) for count in (1, 2))
    assert node_check(small).urn == node_check(large).urn
    assert node_check(small).inputs["metadata"] == node_check(large).inputs["metadata"]
    sized = {"spec.completions", "spec.parallelism", "spec.backoffLimit", "spec.template.spec.containers[0].args"}
    assert sized == set(node_check(small).ignore_changes)
    before, after = (dict(node_check(stack).inputs["spec"]) for stack in (small, large))
    for spec in (before, after):
        for field in ("completions", "parallelism", "backoffLimit"):
            spec.pop(field)
        spec["template"]["spec"]["containers"][0].pop("args")
    assert before == after
    other = recorded("gcp-a100", check={"enabled": True, "megabytes": 8})
    assert node_check(other).urn != node_check(small).urn
    classes = {item.inputs["metadata"]["name"]: item.inputs for item in large.resources if item.kind == "PriorityClass"}
    check = classes[node_check(large).inputs["spec"]["template"]["spec"]["priorityClassName"]]
    training = classes[pod(large)["priorityClassName"]]
    assert check["value"] > training["value"]
    assert check["preemptionPolicy"] == "PreemptLowerPriority"


def test_the_check_of_the_nodes_ends_in_an_output() -> None:
    assert "gpuCheck" not in recorded("gcp-c3").outputs
    stack = recorded("gcp-a100")
    assert "gpuCheck" in stack.outputs
    job = node_check(stack)
    needs = pod(stack, "Job", job.name)["containers"][0]["resources"]
    assert needs == pod(stack)["containers"][0]["resources"]
    assert job.urn in stack.earlier(stack.one("Job", "training"))
    # It may write its own result and nothing else.
    create, patch = stack.one("Role").inputs["rules"]
    assert (create["resources"], create["verbs"]) == (["configmaps"], ["create"])
    assert (patch["resourceNames"], patch["verbs"]) == ([job.inputs["metadata"]["name"]], ["patch"])
