"""Which stacks have what lets go of nodes that are held in vain, and what its pod may do."""

from __future__ import annotations

from typing import Any

import pytest

from review.policy import broken
from tests.infra.recorded import recorded
from tests.workloads.test_trainings import jobs

TWO = {"workers": {"count": 2, "min": 2}}


def test_it_may_change_the_trainings_jobs_and_nothing_else() -> None:
    stack = recorded("local", trainings={"b": TWO, "a": None})
    own = [item.inputs["metadata"]["name"] for item in jobs(stack).values()]
    (role,) = [item for item in stack.resources if item.kind == "Role"]
    assert [
        (rule["resources"], rule["verbs"], sorted(rule.get("resourceNames", []))) for rule in role.inputs["rules"]
    ] == [
        (["jobs"], ["get", "patch"], sorted(own)),
        (["pods"], ["list"], []),
    ]
    (policy,) = [item for item in stack.resources if item.kind == "NetworkPolicy" and item.name == "requeue"]
    assert [rule.get("to") for rule in policy.inputs["spec"]["egress"]] == [None]
    assert not broken(stack)


def test_it_knows_the_order_and_how_many_nodes_there_can_be() -> None:
    stack = recorded("gcp-c3", trainings={"b": TWO, "a": None}, nodes={"max": 3}, job={"holdMinutes": 2.5})
    (item,) = [item for item in stack.resources if item.kind == "Deployment" and item.name == "requeue"]
    (box,) = item.inputs["spec"]["template"]["spec"]["containers"]
    b, a = (jobs(stack)[name].inputs["metadata"]["name"] for name in ("b", "a"))
    assert box["args"] == ["python", "-m", "trainer.requeue", "--minutes", "2.5", "--nodes", "3", b, a]


@pytest.mark.parametrize(
    ("stack", "sections"),
    [
        ("local", {"workers": {"count": 2, "min": 1}}),
        ("local", {"workers": {"count": 2, "min": 2}, "job": {"holdMinutes": None}}),
        ("local", {"workers": {"count": 2, "min": 2}, "job": {"runtime": "trainjob"}}),
        (
            "gcp-a100",
            {"workers": {"count": 2, "min": 2}, "nodes": {"consumption": "queued"}, "check": {"enabled": False}},
        ),
    ],
)
def test_nothing_of_it_where_no_nodes_are_held_or_they_are_to_be(stack: str, sections: dict[str, Any]) -> None:
    assert not [item for item in recorded(stack, trainings={"a": None}, **sections).resources if item.name == "requeue"]
