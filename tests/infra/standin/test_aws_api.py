"""aws-g4dn's AWS resources, created and deleted through AWS's real API in an emulated account (moto, on loopback).

Every resource of the recorded graph becomes the call of boto3 that pulumi-aws would make, with the ids that the account
gave to earlier ones, in the worst order that the graph allows. So a wrong reference, overlapping ranges, a missing
right or a missing dependency is refused as in AWS, and destroy leaves nothing.

Only AWS itself can show the rest. Here nothing takes time and nothing runs: no node joins, no add-on becomes healthy,
there is always capacity. moto evaluates no policies, knows no quotas, and checks neither versions nor the content of
user data.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from infra.clouds import CLOUDS
from review.recording import Recorded, record
from tests.infra.recorded import changed, recorded
from tests.infra.standin import built
from tests.infra.standin.built import Built
from tests.infra.standin.conftest import REGION, STACK, account_number
from tests.standin.aws import rules
from tests.standin.aws.account import Account
from tests.standin.cloud import Thing, order
from tests.standin.naming import PluginError, Urn

ZONE = "use2-az1"
NODES = f"workers-{ZONE}"


def title(item: Recorded) -> str:
    return f"{item.type} {item.name}"


def test_in_the_worst_order_that_the_graph_allows_it_comes_and_goes_and_leaves_nothing(endpoint: str) -> None:
    account = Account(endpoint, account_number("worst order"), REGION)
    before = account.everything()
    there = built.up(recorded(STACK), account, seed=1)
    assert there.ids.keys() == {item.urn for item in built.of_aws(recorded(STACK))}
    made = {item.rsplit(" ", 1)[0] for item in account.everything() - before}
    assert made > {"vpc", "network interface", "NAT gateway", "cluster", "role", "key", "log group", "file system"}
    built.down(recorded(STACK), there, seed=2)
    assert account.everything() == before


def test_a_stack_with_elastic_fabric_adapters_is_made(endpoint: str) -> None:
    nodes = {"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True}
    stack = record(STACK, changed(STACK, nodes=nodes))
    there = built.up(stack, Account(endpoint, account_number("adapters"), REGION), seed=3)
    assert {item.urn for item in stack.resources if item.kind in ("Tag", "PlacementGroup")} <= there.ids.keys()


def test_the_cheap_network_works_too(endpoint: str) -> None:
    """Nodes with public addresses and no NAT gateway."""
    account = Account(endpoint, account_number("cheap"), REGION)
    public = record(STACK, changed(STACK, eks={"publicNodes": True}))
    before = account.everything()
    there = built.up(public, account)
    assert account.ids("NAT gateway") == []
    built.down(public, there)
    assert account.everything() == before


@pytest.mark.parametrize("used", ["MountTarget", "Route", "RolePolicyAttachment"])
def test_what_would_be_destroyed_too_early_is_found_out(living: Built, used: str) -> None:
    """Drop the node groups' dependency on what they use: it is created late and deleted before them."""
    broken = recorded(STACK)
    for item in recorded(STACK).all("aws:eks/nodeGroup"):
        broken = built.unordered(broken, item.name, used)
    backwards = list(reversed(built.order(broken, seed=0)))
    first = next(at for at, item in enumerate(backwards) if item.kind == "NodeGroup")
    too_early = next(item for item in backwards[:first] if item.kind == used)
    with pytest.raises(PluginError, match=r"aws:eks/nodeGroup:NodeGroup \S+ works with it"):
        living.delete(too_early)


#: The pods' roles and access point are in use only once pods run; no node is in the NAT gateway's subnet.
FREE = re.compile(r"aws:iam/.* (autoscaler|efs-driver|efs-node|network)|RouteTableAssociation nat|AccessPoint")
HELD = {*order("in_use"), *order("beside"), *order("needed")}
#: Sorted: the order of a recording varies, and every process must collect the same tests.
IN_USE = sorted(
    (item for item in built.of_aws(recorded(STACK)) if item.type in HELD and not FREE.search(title(item))), key=title
)


@pytest.mark.parametrize("item", IN_USE, ids=title)
def test_what_is_in_use_is_not_deleted(living: Built, item: Recorded) -> None:
    with pytest.raises(PluginError, match=r"used by|works with it"):
        living.delete(item)


@pytest.mark.parametrize(
    ("kind", "name", "missing", "refusal"),
    [
        ("NodeGroup", "system", "vpc-cni", "nodes: the add-on vpc-cni is not there"),
        ("NodeGroup", "system", "eks-pod-identity-agent", "nodes: the add-on eks-pod-identity-agent is not there"),
        ("NodeGroup", NODES, "eks-node-monitoring-agent", "node_repair: the add-on eks-node-monitoring-agent is not"),
        ("NodeGroup", "system", "nodes-AmazonEKSWorkerNodePolicy", "role .*-nodes has no AmazonEKSWorkerNodePolicy"),
        ("NodeGroup", "system", "nodes-AmazonEC2ContainerRegistryPullOnly", "registry: role .*-nodes has no"),
        ("NodeGroup", "system", "Route private", "no way to the internet from subnet"),
        ("NodeGroup", "system", f"data-{ZONE}", f"no mount target in {ZONE}, where nodes are"),
        ("NodeGroup", "system", "nfs", "port 2049 is closed for the nodes"),
        ("Cluster", "cluster", "cluster-AmazonEKSClusterPolicy", "role .*-cluster has no AmazonEKSClusterPolicy"),
        ("Cluster", "cluster", "cluster-secrets", "secrets_encryption: role .*-cluster has no kms:Encrypt"),
        ("Addon", "vpc-cni", "network-AmazonEKS_CNI_Policy", "pod_addresses: role .*-network has no AmazonEKS_CNI"),
        ("Addon", "coredns", "system", "timed out: no node to run on"),
        ("Addon", "aws-efs-csi-driver", "efs-driver-look", "efs: role .*-efs-driver has no elasticfilesystem:"),
        ("PodIdentityAssociation", "autoscaler", "autoscaler-scale", "role .*-autoscaler has no autoscaling:"),
    ],
)
def test_what_is_missing_or_comes_too_late_is_found_out(
    endpoint: str, kind: str, name: str, missing: str, refusal: str
) -> None:
    """Each resource comes as early as the graph allows, after its dependencies only."""
    account = Account(endpoint, account_number(kind + missing), REGION)
    broken = built.without(recorded(STACK), missing)
    with pytest.raises(PluginError, match=refusal):
        built.up_to(broken, account, broken.one(kind, name))


@pytest.mark.parametrize(
    ("kind", "name", "change", "refusal"),
    [
        ("Subnet", f"nodes-{ZONE}", {"cidrBlock": "10.0.40.0/21"}, r"InvalidSubnet\.Conflict"),
        ("Subnet", f"nodes-{ZONE}", {"vpcId": "vpc-0"}, r"InvalidVpcID\.NotFound"),
        (
            "RolePolicyAttachment",
            "cluster-AmazonEKSClusterPolicy",
            {"policyArn": "arn:aws:iam::aws:policy/x"},
            "NoSuch",
        ),
        ("Cluster", "cluster", {"roleArn": "arn:aws:iam::1:role/x"}, "role x has no AmazonEKSClusterPolicy"),
        ("NodeGroup", NODES, {"instanceTypes": ["g4dn.tiny"]}, "g4dn.tiny"),
        ("NodeGroup", NODES, {"nodeGroupName": "x", "diskSize": 100.0}, "within the launch template"),
        ("NodeGroup", NODES, {"nodeGroupName": "x", "scaling": {}}, "create_nodegroup has no parameter scaling"),
        ("Addon", "coredns", {"configurationValues": {"replicas": 2}}, "ParamValidation: .*configurationValues"),
        ("Repository", "images", {"name": "Images"}, "InvalidParameterException"),
    ],
)
def test_a_broken_resource_is_refused(
    living: Built, kind: str, name: str, change: dict[str, Any], refusal: str
) -> None:
    """By moto, which refuses as AWS does, and by AWS's model of what its operations take."""
    item = recorded(STACK).one(kind, name)
    with pytest.raises(PluginError, match=refusal):
        living.package.create(Urn(item.urn), living.inputs(item, **change), 0, preview=False)


def test_a_group_of_nodes_in_a_zone_without_its_machines_is_refused_when_all_else_is_built(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that expects g4dn in every zone of us-west-2, as aws-g4dn did before it asked AWS."""
    zones = [f"usw2-az{number}" for number in "1234"]
    said = {"id": "x", "locations": zones, "instanceTypes": ["g4dn.xlarge"] * 4}
    monkeypatch.setitem(
        CLOUDS["eks"].answers, "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings", lambda *_: said
    )
    graph = record(STACK, changed(STACK, eks={"region": "us-west-2", "zones": zones}))
    account = Account(endpoint, account_number("oregon"), "us-west-2")
    with pytest.raises(
        PluginError, match=r"type \(g4dn\.xlarge\) is not .* choosing us-west-2a, us-west-2b, us-west-2c"
    ):
        built.up_to(graph, account, graph.one("NodeGroup", "workers-usw2-az4"))
    assert account.ids("cluster"), "a control plane is up by then, and billed"


@pytest.mark.parametrize(
    ("statements", "allowed"),
    [
        ([("Allow", "ec2:*")], True),
        ([("Allow", ["s3:Get*", "EC2:describeinstances"])], True),
        ([("Allow", "ec2:Describe")], False),
        ([("Allow", "*"), ("Deny", "ec2:DescribeInstances")], False),
        ([], False),
    ],
)
def test_statements_are_read_as_iam_reads_them(statements: list[tuple[str, Any]], allowed: bool) -> None:
    said = [{"Effect": effect, "Action": action, "Resource": "*"} for effect, action in statements]
    inputs = {"role": "reader", "policy": json.dumps({"Statement": said})}
    policy = Thing("aws:iam/rolePolicy:RolePolicy", "p", "p", inputs, inputs)
    assert rules.grants("reader", "ec2:DescribeInstances", [policy]) is allowed
