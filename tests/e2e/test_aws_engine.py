"""What the real Pulumi engine creates, updates, replaces and deletes in the stacks on AWS, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import JOB, CloudStack, assert_lines, by_change, replaced

pytestmark = pytest.mark.engine
WORKERS = {f"aws:eks/nodeGroup:NodeGroup workers-use2-az{number}" for number in "123"}
CLUSTER = "aws:eks/cluster:Cluster cluster"


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> CloudStack:
    stack = cloud_stack.make("aws-g4dn", tmp_path_factory.mktemp("aws"))
    stack.planned = stack.preview()
    stack.up()
    return stack


@pytest.fixture
def stack(created: CloudStack) -> Iterator[CloudStack]:
    """Restore the configuration after the test."""
    yield from created.restored()


def test_the_first_preview_shows_all_that_up_makes_and_a_second_up_changes_nothing(stack: CloudStack) -> None:
    assert stack.planned == {"create": stack.made()}
    assert stack.preview() == {}


def test_the_shipped_file_is_previewed_and_not_built(tmp_path: Any) -> None:
    """It allows a documentation address only: nobody could reach the control plane that it pays for."""
    stack = cloud_stack.make("aws-g4dn", tmp_path)
    stack.configure(eks={"apiAllowedCidrs": ["203.0.113.7/32"]})
    assert CLUSTER in stack.preview()["create"]
    assert "`pulumi up` refuses it" in stack.text
    stack.up(fails=True)
    assert "eks.apiAllowedCidrs: 203.0.113.7/32 is a documentation address" in stack.text
    assert stack.cloud.journal == []


def test_the_smallest_stack_comes_up_and_goes_whole(tmp_path: Any) -> None:
    stack = cloud_stack.make("aws-smoke", tmp_path)
    stack.up()
    stack.configure(workers={"count": 2}, nodes={"fallback": "on_demand"})
    stack.up()
    assert "aws:eks/nodeGroup:NodeGroup fallback-use2-az1" in stack.cloud.titles()
    stack.destroy()
    assert stack.cloud.things == []


@pytest.mark.parametrize(
    ("change", "replaces", "updates"),
    [
        # While they train. Only the autoscaler learns of more nodes: a change of a node group would end its nodes.
        (
            {"workers": {"count": 3}, "nodes": {"max": 6}, "eks": {"apiAllowedCidrs": ["1.2.3.0/24"]}},
            set(),
            {
                "kubernetes:batch/v1:JobPatch training-size",
                "kubernetes:apps/v1:Deployment cluster-autoscaler",
                CLUSTER,
            },
        ),
        # New images reach the nodes in place.
        (
            {"eks": {"nodeRelease": "1.36.9-20261122"}},
            set(),
            {"aws:eks/nodeGroup:NodeGroup system", *WORKERS},
        ),
        # The launch template gets a new version, whose number only AWS knows; the node groups follow it.
        ({"nodes": {"diskGib": 300}}, set(), {"aws:ec2/launchTemplate:LaunchTemplate workers", *WORKERS}),
    ],
    ids=by_change,
)
def test_a_change_updates_and_replaces_no_more_than_it_must(
    stack: CloudStack, change: dict[str, dict[str, Any]], replaces: set[str], updates: set[str]
) -> None:
    stack.configure(**change)
    plan = stack.preview()
    assert replaced(plan) == replaces
    assert plan.get("update", set()) == updates


def test_each_change_that_cannot_be_made_is_refused_in_a_line(stack: CloudStack) -> None:
    change = {"vpcCidr": "10.1.0.0/16", "secretsEncryption": False, "publicNodes": True}
    expected = (
        "eks.publicNodes: true on a stack that lives with false; running nodes have no public",
        "eks.secretsEncryption: false on a stack that lives with true; EKS takes no",
        "eks.vpcCidr: 10.1.0.0/16 on a stack that lives with 10.0.0.0/16; EKS keeps a cluster in the network that it "
        "was made in; set it back to 10.0.0.0/16, or change it after `pulumi destroy`",
    )
    assert_lines(stack.refused(eks=change), expected)


def test_zones_come_and_go_on_a_living_stack(stack: CloudStack) -> None:
    """Control plane, system nodes, NAT gateway and the other zones stay as they are."""
    stack.configure(eks={"zones": ["use2-az3"]})
    stack.up()
    stack.configure(eks={"zones": ["use2-az1", "use2-az2", "use2-az3"]})
    before = len(stack.cloud.journal)
    stack.up()
    made = {(operation, thing) for operation, thing in stack.cloud.journal[before:] if thing.startswith("aws:")}
    assert made == {("create", f"aws:eks/nodeGroup:NodeGroup workers-use2-az{number}") for number in "12"}


def test_other_instances_replace_the_node_groups_and_the_job_alone(stack: CloudStack) -> None:
    """A node group's name is taken until the old group is gone."""
    stack.configure(nodes={"machineType": "g4dn.2xlarge", "alternatives": ["g4dn.4xlarge"]})
    there, before = stack.cloud.titles(), len(stack.cloud.journal)
    stack.up()
    journal = stack.cloud.journal[before:]
    assert {thing for operation, thing in journal if operation == "create"} & there == {*WORKERS, *JOB}
    for group in WORKERS:
        assert [operation for operation, thing in journal if thing == group] == ["delete", "create"]


def test_destroy_goes_in_order_and_leaves_nothing(created: CloudStack) -> None:
    before = len(created.cloud.journal)
    created.destroy()
    assert created.cloud.things == []
    assert created.made() == set()
    order = [thing for operation, thing in created.cloud.journal[before:] if operation == "delete"]
    assert all(order.index(group) < order.index(CLUSTER) for group in WORKERS)
    for later in (
        "aws:cloudwatch/logGroup:LogGroup control-plane",
        "aws:kms/key:Key secrets",
        "aws:efs/mountTarget:MountTarget data-use2-az1",
        "aws:efs/fileSystem:FileSystem data",
        "aws:ec2/vpc:Vpc network",
    ):
        assert max(order.index(group) for group in WORKERS) < order.index(later)
    # These go with their cluster, in one operation.
    assert [name for name in order if name.startswith(("kubernetes:", "aws:eks/addon"))] == []
