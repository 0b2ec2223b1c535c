"""What is broken in aws-g4dn's graph is refused, each by its reason, in an account in which all else is right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from local.plugin.errors import PluginError
from review import computed
from review.recording import Recorded, record
from tests.infra.aws import built
from tests.infra.aws.built import Built
from tests.infra.aws.conftest import STACK, account_number
from tests.infra.recorded import changed, recorded
from tests.standin.aws import policies, resources, settled
from tests.standin.aws.account import Account, Refused
from tests.standin.aws.emulator import CALLER

NOWHERE = "arn:aws:iam::aws:policy/AmazonEKSClusterPolice"
ZONE = "use2-az1"


def one(kind: str, name: str) -> Recorded:
    return recorded(STACK).one(kind, name)


def inputs(living: Built, kind: str, name: str, changes: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """(type, inputs) of a resource of the stack with AWS's values, some changed."""
    item = one(kind, name)
    resolved = {**living.resolved(item.inputs), **(changes or {})}
    return item.type, resources.named(item.type, resolved, name)


def made(living: Built, kind: str, name: str) -> tuple[str, str, dict[str, Any]]:
    """(type, id, outputs) of a resource that exists."""
    item = one(kind, name)
    return (item.type, *living.ids[item.urn])


def vpc_config(living: Built, **changes: Any) -> dict[str, Any]:
    return {**inputs(living, "Cluster", "cluster")[1]["vpcConfig"], **changes}


def subnet(living: Built, zone: str) -> str:
    return living.ids[one("Subnet", f"nodes-{zone}").urn][0]


def arn(living: Built, role: str) -> str:
    return made(living, "Role", role)[2]["arn"]


Change = Callable[[Built], dict[str, Any]]
NODES, OTHER = f"workers-{ZONE}", {"cidrBlock": "10.0.128.0/19"}
BROKEN: list[tuple[str, str, Change, str]] = [
    ("Subnet", f"nodes-{ZONE}", lambda _: {"cidrBlock": "10.0.40.0/21"}, r"InvalidSubnet\.Conflict"),
    ("Subnet", f"nodes-{ZONE}", lambda _: {"cidrBlock": "10.1.0.0/19"}, r"InvalidSubnet\.Range"),
    ("Subnet", f"nodes-{ZONE}", lambda _: {"vpcId": "vpc-0"}, r"InvalidVpcID\.NotFound"),
    ("Subnet", f"nodes-{ZONE}", lambda _: {**OTHER, "availabilityZoneId": "use2-az9"}, "InvalidParameterValue"),
    ("Route", "private", lambda _: {"natGatewayId": "nat-0"}, r"InvalidNatGatewayID\.NotFound"),
    ("Route", "public", lambda _: {"gatewayId": "igw-0"}, r"igw-0 and route table belong to different networks"),
    ("NatGateway", "nat", lambda _: {"allocationId": "eipalloc-0"}, r"InvalidAllocationID\.NotFound"),
    ("VpcEndpoint", "s3", lambda _: {"serviceName": "com.amazonaws.us-east-1.s3"}, "InvalidServiceName"),
    ("VpcEndpoint", "s3", lambda _: {"routeTableIds": ["rtb-0"]}, r"InvalidRouteTableID\.NotFound"),
    ("SecurityGroupIngressRule", "nfs", lambda _: {"referencedSecurityGroupId": "sg-0"}, r"InvalidGroup\.NotFound"),
    ("MountTarget", f"data-{ZONE}", lambda _: {"subnetId": "subnet-00000000"}, r"InvalidSubnetID\.NotFound"),
    ("MountTarget", f"data-{ZONE}", lambda _: {"securityGroups": ["sg-00000000"]}, r"InvalidGroup\.NotFound"),
    ("MountTarget", f"data-{ZONE}", lambda b: {"subnetId": subnet(b, "use2-az2")}, "MountTargetConflict"),
    ("AccessPoint", "data", lambda _: {"fileSystemId": "fs-00000000"}, "FileSystemNotFound"),
    ("RolePolicyAttachment", "cluster-AmazonEKSClusterPolicy", lambda _: {"policyArn": NOWHERE}, "NoSuchEntity"),
    ("RolePolicy", "efs-driver-look", lambda _: {"policy": '{"Statement": []'}, "MalformedPolicyDocument"),
    ("Role", "nodes", lambda _: {"name": "x", "assumeRolePolicy": "{}"}, "MalformedPolicy"),
    ("Cluster", "cluster", lambda b: {"roleArn": arn(b, "nodes")}, "does not let eks.amazonaws.com do sts:AssumeRole"),
    ("Cluster", "cluster", lambda _: {"roleArn": "arn:aws:iam::1:role/x"}, "because it does not exist"),
    ("Cluster", "cluster", lambda b: {"vpcConfig": vpc_config(b, subnetIds=[subnet(b, ZONE)])}, "two different AZs"),
    ("Cluster", "cluster", lambda _: {"name": "other"}, "logs to /aws/eks/other/cluster, which does not exist"),
    ("Cluster", "cluster", lambda _: {}, "ResourceInUseException: Cluster already exists"),
    ("NodeGroup", NODES, lambda b: {"nodeRoleArn": arn(b, "cluster")}, r"not let ec2\.amazonaws\.com do sts"),
    ("NodeGroup", NODES, lambda _: {"amiType": "AL2023_x86_64_STANDARD"}, "does not fit g4dn"),
    ("NodeGroup", NODES, lambda _: {"instanceTypes": ["g4dn.tiny"]}, "InvalidInstanceType"),
    (
        "NodeGroup",
        NODES,
        lambda _: {"nodeGroupName": "x", "diskSize": 100.0},
        "Disk size must be specified within the launch template",
    ),
    ("NodeGroup", NODES, lambda b: {"subnetIds": [made(b, "Subnet", "nat")[1]]}, "no way to the internet"),
    ("NodeGroup", NODES, lambda b: {"launchTemplate": {"id": "lt-0", "version": "1"}}, r"LaunchTemplateId\.NotFound"),
    ("NodeGroup", NODES, lambda _: {"scaling": {}}, "create_nodegroup has no parameter scaling"),
    ("Addon", "vpc-cni", lambda _: {"addonName": "vpc-cnl"}, "Addon vpc-cnl specified is not supported"),
    (
        "Addon",
        "aws-efs-csi-driver",
        lambda b: {"podIdentityAssociations": [{"serviceAccount": "a", "roleArn": arn(b, "nodes")}]},
        r"does not let pods\.eks\.amazonaws\.com do sts:AssumeRole",
    ),
    (
        "PodIdentityAssociation",
        "autoscaler",
        lambda b: {"roleArn": arn(b, "cluster")},
        r"does not let pods\.eks\.amazonaws\.com do sts:AssumeRole",
    ),
    ("Repository", "images", lambda _: {"name": "Images"}, "InvalidParameterException"),
    ("Repository", "images", lambda _: {"name": "other", "imageTagMutability": "FIXED"}, "InvalidParameterException"),
]


@pytest.mark.parametrize(
    ("kind", "name", "change", "refusal"), BROKEN, ids=[f"{kind} {why}" for kind, _, _, why in BROKEN]
)
def test_a_broken_resource_is_refused(living: Built, kind: str, name: str, change: Change, refusal: str) -> None:
    with pytest.raises(Refused, match=refusal):
        resources.create(living.account, *inputs(living, kind, name, change(living)))


@pytest.mark.parametrize(
    ("kind", "name", "holder"),
    [
        ("Vpc", "network", "internet gateway"),
        ("Subnet", f"nodes-{ZONE}", "network interface"),
        ("Subnet", "nat", "network interface"),
        ("SecurityGroup", "storage", "network interface"),
        ("InternetGateway", "internet", "mapped public addresses"),
        ("NatGateway", "nat", "node group"),
        ("Route", "private", "node group"),
        ("Eip", "nat", "in use by eipassoc"),
        ("Addon", "vpc-cni", "nobody else gives back the network interfaces of node group"),
        ("Cluster", "cluster", "Cluster has nodegroups attached"),
        ("LaunchTemplate", "workers", "starts its nodes from it"),
        ("Role", "nodes", "acts by it"),
        ("RolePolicyAttachment", "nodes-AmazonEKSWorkerNodePolicy", "acts by it"),
        ("RolePolicyAttachment", "cluster-AmazonEKSClusterPolicy", "cluster .* acts by it"),
        ("Key", "secrets", "reads its secrets with it"),
        ("FileSystem", "data", "mount targets"),
        ("MountTarget", f"data-{ZONE}", "node group .* lives with it"),
    ],
)
def test_what_is_in_use_is_not_deleted(living: Built, kind: str, name: str, holder: str) -> None:
    with pytest.raises(Refused, match=holder):
        resources.delete(living.account, *made(living, kind, name))


@contextmanager
def lacking(living: Built, kind: str, name: str) -> Iterator[None]:
    """The account without one resource for a while, as if the program had forgotten it."""
    type_, id_, outputs = made(living, kind, name)
    resources.kind(type_).delete(living.account, id_, outputs)
    try:
        yield
    finally:
        living.create(one(kind, name))


@pytest.mark.parametrize(
    ("missing", "kind", "name", "refusal"),
    [
        ("cluster-secrets", "Cluster", "cluster", "secrets_encryption: role .*-cluster has no kms:Encrypt"),
        ("eks-node-monitoring-agent", "NodeGroup", NODES, "node_repair: the add-on eks-node-monitoring-agent is not"),
        ("eks-pod-identity-agent", "NodeGroup", NODES, "nodes: the add-on eks-pod-identity-agent is not there"),
        ("cluster-AmazonEKSClusterPolicy", "Cluster", "cluster", "the control plane may not ec2:"),
        ("nodes-AmazonEKSWorkerNodePolicy", "NodeGroup", NODES, "nodes may not .*eks-auth:AssumeRoleForPodIdentity"),
        ("nodes-AmazonEC2ContainerRegistryPullOnly", "NodeGroup", NODES, "nodes may not ecr:GetAuthorizationToken"),
        ("network-AmazonEKS_CNI_Policy", "NodeGroup", NODES, "the CNI may not ec2:AssignPrivateIpAddresses"),
    ],
)
def test_a_missing_policy_or_add_on_is_refused(living: Built, missing: str, kind: str, name: str, refusal: str) -> None:
    of = next(item.kind for item in recorded(STACK).all("aws:") if item.name == missing)
    with lacking(living, of, missing), pytest.raises(Refused, match=refusal):
        resources.create(living.account, *inputs(living, kind, name))


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        ("RolePolicy", "autoscaler-scale", "pods of kube-system/cluster-autoscaler may not autoscaling:Describe"),
        ("RolePolicy", "efs-driver-look", "pods of kube-system/efs-csi-controller-sa may not elasticfilesystem:"),
        ("Addon", "eks-pod-identity-agent", "no pod gets its role's credentials without the add-on"),
        ("MountTarget", f"data-{ZONE}", f"no mount target in {ZONE}, where nodes are"),
        ("SecurityGroupIngressRule", "nfs", "port 2049 is closed for the nodes of trainyard-aws-g4dn"),
    ],
)
def test_what_would_show_only_when_pods_run_is_told(living: Built, kind: str, name: str, problem: str) -> None:
    with lacking(living, kind, name):
        assert problem in "\n".join(settled.problems(living.account))


def test_a_group_of_nodes_in_a_zone_without_its_machines_is_refused_when_all_else_is_built(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that believes in g4dn in every zone of us-west-2: what aws-g4dn was, before it asked."""
    zones = [f"usw2-az{number}" for number in "1234"]
    said = {"id": "x", "locations": zones, "instanceTypes": ["g4dn.xlarge"] * 4}
    monkeypatch.setitem(computed.ANSWERS, "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings", lambda *_: said)
    graph = record(STACK, changed(STACK, eks={"region": "us-west-2", "zones": zones}))
    account = Account(endpoint, account_number("oregon"), "us-west-2")
    with pytest.raises(Refused, match=r"InvalidRequestException: Your requested instance type \(g4dn\.xlarge\) is not"):
        built.up_to(graph, account, graph.one("NodeGroup", "workers-usw2-az4"))
    assert account.call("eks", "list_clusters")["clusters"], "a control plane is up by then, and billed"
    with pytest.raises(Refused, match=r"choosing us-west-2a, us-west-2b, us-west-2c\."):
        built.up(graph, Account(endpoint, account_number("portland"), "us-west-2"))


def test_who_creates_the_cluster_is_no_admin_a_second_time(living: Built) -> None:
    entry = {
        "clusterName": "trainyard-aws-g4dn",
        "principalArn": f"arn:aws:iam::{living.account.number}:user/{CALLER}",
    }
    with pytest.raises(Refused, match="ResourceInUseException"):
        resources.create(living.account, "aws:eks/accessEntry:AccessEntry", entry)


def test_one_missing_action_is_enough(living: Built) -> None:
    type_, given = inputs(living, "RolePolicy", "autoscaler-scale")
    less = json.loads(given["policy"].replace('"autoscaling:SetDesiredCapacity", ', ""))
    with lacking(living, "RolePolicy", "autoscaler-scale"):
        resources.create(living.account, type_, {**given, "policy": json.dumps(less)})
        assert settled.problems(living.account)[0].endswith(
            "may not autoscaling:SetDesiredCapacity with role trainyard-aws-g4dn-autoscaler"
        )


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
def test_statements_are_read_as_iam_reads_them(living: Built, statements: list[tuple[str, Any]], allowed: bool) -> None:
    document = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": effect, "Action": action, "Resource": "*"} for effect, action in statements],
    }
    role = {"name": "reader", "assumeRolePolicy": inputs(living, "Role", "nodes")[1]["assumeRolePolicy"]}
    role_type, policy_type = "aws:iam/role:Role", "aws:iam/rolePolicy:RolePolicy"
    id_, state = resources.create(living.account, role_type, role)
    try:
        if statements:
            policy = {"role": id_, "name": "p", "policy": json.dumps(document)}
            policy_id, policy_state = resources.create(living.account, policy_type, policy)
        missing = policies.missing(living.account, id_, ["ec2:DescribeInstances"])
        assert missing == ([] if allowed else ["ec2:DescribeInstances"])
    finally:
        if statements:
            resources.delete(living.account, policy_type, policy_id, policy_state)
        resources.delete(living.account, role_type, id_, state)


def test_a_type_that_nobody_looked_at_is_refused(living: Built) -> None:
    with pytest.raises(PluginError, match="aws:rds/cluster:Cluster is not known here: say how AWS makes it"):
        resources.create(living.account, "aws:rds/cluster:Cluster", {})
