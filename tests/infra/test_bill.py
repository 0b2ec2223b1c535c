"""The bill of every stack that creates a cluster: its lines and its amounts."""

from __future__ import annotations

import pytest

from infra import cost
from infra.parse import parse
from infra.stackfiles import stack_file_values
from tests.infra import billed
from tests.infra.billed import line
from tests.infra.recorded import CLOUD_STACKS, recorded

#: Type that is billed as long as it exists -> its line of the bill; node groups have their own tests.
BILLED = {
    "gcp:container/cluster:Cluster": "control plane",
    "gcp:compute/routerNat:RouterNat": "Cloud NAT",
    "gcp:compute/disk:Disk": "data disk",
    "gcp:filestore/instance:Instance": "Filestore",
    "gcp:artifactregistry/repository:Repository": "images",
    "aws:eks/cluster:Cluster": "control plane",
    "aws:ec2/natGateway:NatGateway": "NAT gateway",
    "aws:ec2/eip:Eip": "NAT gateway",
    "aws:efs/fileSystem:FileSystem": "EFS",
    "aws:kms/key:Key": "KMS key",
    "aws:ecr/repository:Repository": "images",
}
#: Types that are free, or billed through those above.
FREE = (
    "gcp:projects/",
    "gcp:serviceaccount/",
    "gcp:container/nodePool:",
    "gcp:compute/network:",
    "gcp:compute/subnetwork:",
    "gcp:compute/router:",
    "gcp:artifactregistry/repositoryIamMember:",
    "gcp:storage/bucketIAMMember:",
    "aws:cloudwatch/logGroup:",
    "aws:ec2/defaultSecurityGroup:",
    "aws:ec2/internetGateway:",
    "aws:ec2/launchTemplate:",
    "aws:ec2/route",
    "aws:ec2/securityGroup:",
    "aws:ec2/subnet:",
    "aws:ec2/vpc:",
    "aws:ec2/vpcEndpoint:",
    "aws:ecr/lifecyclePolicy:",
    "aws:efs/",
    "aws:eks/addon:",
    "aws:eks/nodeGroup:",
    "aws:eks/podIdentityAssociation:",
    "aws:iam/",
    "aws:kms/alias:",
    "aws:vpc/securityGroupIngressRule:",
)
#: Kinds of which several share one line.
SEVERAL = ("Repository",)


@pytest.mark.parametrize("stack", CLOUD_STACKS)
def test_all_that_is_declared_is_on_the_bill_or_free(stack: str) -> None:
    config = parse(stack_file_values(stack), stack)
    estimate = billed.estimate(config)
    declared = [item for item in recorded(stack).resources if item.type.startswith(("gcp:", "aws:"))]
    for item in declared:
        assert item.type in BILLED or item.type.startswith(FREE), f"what does {item.type} cost?"
        if what := BILLED.get(item.type):
            line(estimate, what)
    kinds = [item.kind for item in declared if item.type in BILLED and item.kind not in SEVERAL]
    assert len(kinds) == len(set(kinds)), "a second one is billed, too"


@pytest.mark.parametrize("stack", CLOUD_STACKS)
def test_at_rest_a_stack_costs_less_than_half_a_dollar_an_hour(stack: str) -> None:
    output = recorded(stack).outputs["costPerHour"]
    assert 0.2 < output["atRest"] < min(0.5, output["atFullSize"])
    assert billed.estimate(parse(stack_file_values(stack), stack)).date in output["prices"]


@pytest.mark.parametrize("stack", [name for name in CLOUD_STACKS if name.endswith("smoke")])
def test_a_small_stack_is_proved_for_less_than_two_dollars(stack: str) -> None:
    """Two hours at full size: for `up`, the whole proof and `destroy`."""
    full = billed.estimate(parse(stack_file_values(stack), stack)).at_full
    assert full
    assert 2 * full < 2


def test_whose_cluster_it_is_pays() -> None:
    assert cost.estimate(parse(stack_file_values("local"), "local")) is None
