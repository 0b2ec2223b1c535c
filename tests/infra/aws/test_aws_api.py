"""aws-g4dn's AWS resources, made and deleted through AWS's real API in an emulated account (moto, on loopback).

Every resource of the recorded graph becomes the calls of boto3 that pulumi-aws would make, with the ids that the
account gave to those before it, in the worst order that the graph allows. So a wrong reference, overlapping ranges, a
role that cannot be assumed, a missing right or dependency is refused here as in AWS, and destroy leaves nothing.

What moto 5.2 cannot do, so that only AWS itself tells:
- it has no add-ons, access entries, pod identities and placement groups: tests/standin/aws/emulator.py adds them;
- nothing takes time, and nothing runs: no node joins, no add-on becomes healthy, no spot capacity, no image is pulled;
- it evaluates no policies: statements are read by tests/standin/aws/policies.py, without resources and conditions,
  and nothing is said of the rights of whoever runs `pulumi up`, of key policies and of service control policies;
- it knows no quotas (vCPUs of G instances, addresses, networks) and not which zone takes a control plane;
- versions of Kubernetes, add-ons and AMIs are not checked, nor the contents of user data and add-on configurations;
- it refuses less than AWS: what is in use, and what a resource needs, is checked in prerequisites.py and dependents.py.
"""

from __future__ import annotations

import pytest

from review.recording import record
from tests.infra.aws import built
from tests.infra.aws.built import Built
from tests.infra.aws.conftest import REGION, STACK, account_number
from tests.infra.recorded import changed, recorded
from tests.standin.aws import inventory, resources, settled
from tests.standin.aws.account import Account, Refused


def test_all_of_it_is_made_and_a_training_could_run(living: Built) -> None:
    assert living.ids.keys() == {item.urn for item in built.of_aws(recorded(STACK))}
    assert settled.problems(living.account) == []


def test_in_the_worst_order_that_the_graph_allows_it_comes_and_goes_and_leaves_nothing(endpoint: str) -> None:
    account = Account(endpoint, account_number("worst order"), REGION)
    before = inventory.everything(account)
    there = built.up(recorded(STACK), account, seed=1)
    made = {item.rsplit(" ", 1)[0] for item in inventory.everything(account) - before}
    assert made > {"vpc", "network interface", "NAT gateway", "cluster", "role", "key", "log group", "file system"}
    built.down(recorded(STACK), there, seed=2)
    assert inventory.everything(account) == before


def test_a_stack_with_elastic_fabric_adapters_is_made_and_tags_its_groups(endpoint: str) -> None:
    account = Account(endpoint, account_number("adapters"), REGION)
    nodes = {"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True}
    stack = record(STACK, changed(STACK, nodes=nodes))
    there = built.up(stack, account, seed=3)
    assert {item.urn for item in stack.resources if item.kind == "Tag"} <= there.ids.keys()


@pytest.mark.parametrize(
    ("user", "used", "refusal"),
    [
        ("NodeGroup", "MountTarget", "mount target .* lives with it"),
        ("NodeGroup", "Route", "route .* lives with it"),
        ("NodeGroup", "RolePolicyAttachment", "node group .* acts by it"),
    ],
)
def test_what_would_be_destroyed_too_early_is_found_out(living: Built, user: str, used: str, refusal: str) -> None:
    """The users depend on what they use no more, so it comes late, and goes before them."""
    broken = recorded(STACK)
    for item in recorded(STACK).all("aws:eks/"):
        if item.kind == user:
            broken = built.unordered(broken, user, item.name, used)
    backwards = list(reversed(built.order(broken, seed=0)))
    first_user = min(at for at, item in enumerate(backwards) if item.kind == user)
    too_early = next(item for item in backwards[:first_user] if item.kind == used)
    with pytest.raises(Refused, match=refusal):
        resources.delete(living.account, too_early.type, *living.ids[too_early.urn])


def test_the_cheap_network_works_too(endpoint: str) -> None:
    """Nodes with addresses of their own, no NAT gateway."""
    account = Account(endpoint, account_number("cheap"), REGION)
    public = record(STACK, changed(STACK, eks={"publicNodes": True}))
    before = inventory.everything(account)
    there = built.up(public, account)
    assert settled.problems(account) == []
    assert not any(item.startswith("NAT gateway") for item in inventory.everything(account))
    built.down(public, there)
    assert inventory.everything(account) == before


@pytest.mark.parametrize(
    ("kind", "name", "before", "refusal"),
    [
        ("NodeGroup", "system", "Addon", "failed to join .* the CNI may not ec2:AssignPrivateIpAddresses"),
        ("NodeGroup", "system", "RolePolicyAttachment", r"AccessDenied: nodes may not .*ecr:BatchGetImage"),
        ("Addon", "coredns", "NodeGroup", "add-on coredns has no node to run on"),
    ],
)
def test_a_dependency_that_is_missing_is_found_out(
    endpoint: str, kind: str, name: str, before: str, refusal: str
) -> None:
    """Although the program is written in the right order: here each comes as early as the graph allows."""
    account = Account(endpoint, account_number(kind + before), REGION)
    broken = built.unordered(recorded(STACK), kind, name, before)
    with pytest.raises(Refused, match=refusal):
        built.up_to(broken, account, broken.one(kind, name))
