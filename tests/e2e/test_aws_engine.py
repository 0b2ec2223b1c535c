"""What the real Pulumi engine updates, replaces and deletes in aws-g4dn, and in which order, over AWS's own API.

moto emulates the account and refuses what AWS refuses (tests/standin/aws).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import JOB, CloudStack, assert_a_token_is_hidden, assert_lines, of_cloud, replaced
from tests.standin.aws.account import Account, aws

pytestmark = pytest.mark.engine
STACK, REGION = "aws-g4dn", "us-east-2"
WORKERS = {f"aws:eks/nodeGroup:NodeGroup workers-use2-az{number}" for number in "123"}


@dataclass
class OnAws:
    """A stack with an account of its own."""

    stack: CloudStack
    account: Account
    empty: set[str]
    """What a new account has."""

    def left(self) -> set[str]:
        return self.account.everything() - self.empty


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with aws() as address:
        yield address


def on_aws(endpoint: str, number: str, factory: pytest.TempPathFactory) -> OnAws:
    account = Account(endpoint, number, REGION)
    stack = cloud_stack.make(STACK, factory.mktemp("aws"), account)
    return OnAws(stack, account, account.everything())


@pytest.fixture(scope="module")
def created(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> OnAws:
    there = on_aws(endpoint, "500000000001", tmp_path_factory)
    there.stack.planned = there.stack.preview()
    there.stack.up()
    return there


@pytest.fixture
def stack(created: OnAws) -> Iterator[CloudStack]:
    """Restore the configuration after the test."""
    yield from created.stack.restored()


def test_the_shipped_file_is_previewed_and_not_built(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It allows a documentation address only: nobody could reach the control plane that it pays for."""
    there = on_aws(endpoint, "500000000002", tmp_path_factory)
    stack = there.stack
    stack.configure(eks={"apiAllowedCidrs": ["203.0.113.7/32"]})
    assert "aws:eks/cluster:Cluster cluster" in stack.preview()["create"]
    assert "`pulumi up` refuses it" in stack.text
    stack.up(fails=True)
    assert "eks.apiAllowedCidrs: 203.0.113.7/32 is a documentation address" in stack.text
    assert there.left() == set()
    assert stack.cloud.things() == {}


def test_the_smallest_stack_comes_up_and_goes_whole(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    account = Account(endpoint, "500000000003", REGION)
    stack = cloud_stack.make("aws-smoke", tmp_path_factory.mktemp("smoke"), account)
    empty = account.everything()
    stack.up()
    assert stack.preview() == {}
    stack.configure(workers={"count": 2}, nodes={"fallback": "on_demand"})
    stack.up()
    assert "aws:eks/nodeGroup:NodeGroup fallback-use2-az1" in stack.existing()
    stack.destroy()
    assert account.everything() - empty == set()


def test_the_first_preview_shows_all_that_up_makes(created: OnAws) -> None:
    resources = json.loads(created.stack.state())["deployment"]["resources"]
    made = {f"{item['type']} {item['urn'].rsplit('::', 1)[-1]}" for item in resources}
    assert created.stack.planned == {"create": {name for name in made if not cloud_stack.DEFAULT.search(name)}}


def test_the_number_of_workers_changes_while_they_train(stack: CloudStack) -> None:
    stack.configure(workers={"count": 3})
    plan = stack.preview()
    assert replaced(plan) == set()
    assert "kubernetes:batch/v1:JobPatch training-size" in plan["update"]
    assert of_cloud(set().union(*plan.values())) == set()


def test_zones_come_and_go_on_a_living_stack(created: OnAws, stack: CloudStack) -> None:
    """Also with a real `up`: control plane, system nodes, NAT gateway and the other zones stay as they are.

    The stand-in refuses nodes in a zone without a mount target, and the deletion of a mount target where nodes are.
    """
    stack.configure(eks={"zones": ["use2-az3"]})
    stack.up()
    stack.configure(eks={"zones": ["use2-az2", "use2-az3"]})
    before = len(stack.cloud.journal())
    assert of_cloud(replaced(stack.preview())) == set()
    stack.up()
    journal = [(operation, thing) for operation, thing in stack.cloud.journal()[before:] if thing.startswith("aws:")]
    assert journal == [("create", "aws:eks/nodeGroup:NodeGroup workers-use2-az2")]
    assert stack.preview() == {}
    stack.configure(eks={"zones": ["use2-az1", "use2-az2", "use2-az3"]})
    stack.up()


def test_new_images_reach_the_nodes_in_place(stack: CloudStack) -> None:
    stack.configure(eks={"nodeRelease": "1.36.9-20261122"})
    plan = stack.preview()
    assert of_cloud(plan["update"]) == {"aws:eks/nodeGroup:NodeGroup system", *WORKERS}
    assert replaced(plan) == set()


def test_another_training_replaces_the_job_alone(stack: CloudStack) -> None:
    stack.configure(training={"steps": 30_000})
    plan = stack.preview()
    assert set().union(*plan.values()) == JOB
    assert replaced(plan) == JOB


def test_more_nodes_and_who_may_reach_the_api_are_updates(stack: CloudStack) -> None:
    """Only the autoscaler learns of more nodes: a change of a node group would end its nodes."""
    stack.configure(nodes={"max": 6}, eks={"apiAllowedCidrs": ["1.2.3.0/24"]})
    assert stack.preview() == {
        "update": {"kubernetes:apps/v1:Deployment cluster-autoscaler", "aws:eks/cluster:Cluster cluster"}
    }


def test_each_change_that_cannot_be_made_is_refused_in_a_line(stack: CloudStack) -> None:
    change = {"vpcCidr": "10.1.0.0/16", "secretsEncryption": False, "publicNodes": True}
    expected = (
        "eks.publicNodes: true on a stack that lives with false; running nodes have no public",
        "eks.secretsEncryption: false on a stack that lives with true; EKS takes no",
        "eks.vpcCidr: 10.1.0.0/16 on a stack that lives with 10.0.0.0/16; EKS keeps a cluster in the network that it "
        "was made in; set it back to 10.0.0.0/16, or change it after `pulumi destroy`",
    )
    assert_lines(stack.refused(eks=change), expected)


def test_a_larger_disk_rolls_the_node_groups_in_place(stack: CloudStack) -> None:
    """The launch template gets a new version, whose number only AWS knows; the node groups follow it."""
    stack.configure(nodes={"diskGib": 300})
    plan = stack.preview()
    assert of_cloud(plan["update"]) == {"aws:ec2/launchTemplate:LaunchTemplate workers", *WORKERS}
    assert of_cloud(replaced(plan)) == set()


def test_other_instances_replace_the_node_groups_and_the_job_alone(created: OnAws, stack: CloudStack) -> None:
    """Also with a real `up`: a node group's name is taken until the old group is gone."""
    stack.configure(nodes={"machineType": "g4dn.2xlarge", "alternatives": ["g4dn.4xlarge"]})
    plan = stack.preview()
    assert of_cloud(replaced(plan)) == WORKERS
    assert replaced(plan) - of_cloud(replaced(plan)) == JOB
    before = len(stack.cloud.journal())
    stack.up()
    journal = stack.cloud.journal()[before:]
    for group in WORKERS:
        assert [operation for operation, thing in journal if thing == group] == ["delete", "create"]


def test_a_token_is_in_no_state_or_output_and_goes_with_its_key(stack: CloudStack) -> None:
    assert_a_token_is_hidden(stack, "get-token")
    stack.configure()
    stack.up()
    assert stack.preview() == {}


def test_destroy_goes_in_order_can_be_blocked_and_leaves_nothing(created: OnAws) -> None:
    """Somebody's network interface in a subnet blocks it at first, with AWS's own DependencyViolation."""
    stack, account = created.stack, created.account
    subnets = [thing for thing in stack.cloud.things().values() if thing.type == "aws:ec2/subnet:Subnet"]
    theirs = account.call("ec2", "create_network_interface", SubnetId=subnets[0].id, Description="theirs")
    before = len(stack.cloud.journal())
    stack.destroy(fails=True)
    assert "DependencyViolation" in stack.text
    assert "theirs" in stack.text
    id_ = theirs["NetworkInterface"]["NetworkInterfaceId"]
    account.call("ec2", "delete_network_interface", NetworkInterfaceId=id_)
    stack.destroy()
    assert created.left() == set()
    assert stack.cloud.things() == {}
    assert "resources" not in json.loads(stack.state())["deployment"]
    order = [thing for operation, thing in stack.cloud.journal()[before:] if operation == "delete"]
    cluster = order.index("aws:eks/cluster:Cluster cluster")
    assert all(order.index(group) < cluster for group in WORKERS)
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
