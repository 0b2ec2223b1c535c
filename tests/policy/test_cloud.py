"""The rules for what a cloud bills, on resources that no stack of the repository has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from policy.rules import UNKNOWN, Resource
from tests.policy.test_rules import LABELLED, Inputs, declared, problems

INTERNET = "0.0.0.0/0"


def efs_policy(principal: Any) -> str:
    """A file system's policy with which a principal may mount."""
    allow = {"Effect": "Allow", "Principal": principal, "Action": "elasticfilesystem:ClientMount"}
    return json.dumps({"Statement": [allow, {"Effect": "Deny", "Principal": {"AWS": "*"}, "Action": "*"}]})


def endpoint(enabled: bool) -> Inputs:
    """Inputs of a GKE cluster with or without an IP address of its API."""
    return {"controlPlaneEndpointsConfig": {"ipEndpointsConfig": {"enabled": enabled}}}


@pytest.mark.parametrize(
    "resource",
    [
        declared("gcp:compute/firewall:Firewall", sourceRanges=["10.0.0.0/8", "::/0"]),
        declared("gcp:compute/firewall:Firewall", direction="INGRESS"),
        declared("gcp:compute/firewall:Firewall", sourceRanges=["0.0.0.0/1", "128.0.0.0/1"]),
        declared(
            "gcp:container/cluster:Cluster", masterAuthorizedNetworksConfig={"cidrBlocks": [{"cidrBlock": "::/0"}]}
        ),
        declared("aws:ec2/securityGroup:SecurityGroup", ingress=[{"cidrBlocks": [INTERNET]}]),
        declared("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", ingress=[{"ipv6CidrBlocks": ["::/0"]}]),
        declared("aws:ec2/securityGroupRule:SecurityGroupRule", type="ingress", cidrBlocks=[INTERNET]),
        declared("aws:ec2/securityGroupRule:SecurityGroupRule", type="ingress", ipv6CidrBlocks=["::/0"]),
        declared("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", cidrIpv4=INTERNET),
        declared("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", cidrIpv6="::/0"),
        declared("aws:eks/cluster:Cluster", vpcConfig={"endpointPublicAccess": True}),
        declared("aws:eks/cluster:Cluster", vpcConfig={"publicAccessCidrs": [INTERNET]}),
        declared("gcp:container/cluster:Cluster"),
        declared("gcp:container/cluster:Cluster", **endpoint(True)),
        declared("aws:efs/fileSystemPolicy:FileSystemPolicy", policy=efs_policy({"AWS": "*"})),
        declared("aws:efs/fileSystemPolicy:FileSystemPolicy", policy=efs_policy("*")),
        declared("kubernetes:core/v1:PersistentVolume", spec={"csi": {"driver": "efs.csi.aws.com"}}),
    ],
    ids=lambda resource: f"{resource.type.rsplit(':', 1)[1]} {dict(resource.inputs)}",
)
def test_every_way_in_for_the_whole_internet_is_found(resource: Resource) -> None:
    assert problems(resource) == {"no-open-network"}


@pytest.mark.parametrize(
    "resource",
    [
        declared("gcp:compute/firewall:Firewall", sourceRanges=["10.0.0.0/8", "203.0.113.0/24"]),
        declared("gcp:compute/firewall:Firewall", sourceTags=["nodes"]),
        declared("gcp:compute/firewall:Firewall", sourceServiceAccounts=["nodes"]),
        declared("gcp:compute/firewall:Firewall", denies=[{"protocol": "all"}]),
        declared("gcp:compute/firewall:Firewall", direction="EGRESS"),
        declared("aws:ec2/securityGroupRule:SecurityGroupRule", type="egress", cidrBlocks=[INTERNET]),
        declared("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", referencedSecurityGroupId="sg-1"),
        declared("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", cidrIpv4=UNKNOWN),
        declared("aws:eks/cluster:Cluster", vpcConfig={"endpointPublicAccess": False}),
        declared("aws:eks/cluster:Cluster", vpcConfig={"publicAccessCidrs": ["203.0.113.7/32"]}),
        declared("gcp:container/cluster:Cluster", **endpoint(False)),
        declared("aws:efs/fileSystemPolicy:FileSystemPolicy", policy=efs_policy({"AWS": "arn:aws:iam::1:role/nodes"})),
        declared("aws:efs/fileSystemPolicy:FileSystemPolicy", policy=UNKNOWN),
        declared("gcp:container/cluster:Cluster", masterAuthorizedNetworksConfig={}),
        declared("gcp:container/cluster:Cluster", privateClusterConfig={"enablePrivateEndpoint": True}),
    ],
    ids=lambda resource: f"{resource.type.rsplit(':', 1)[1]} {dict(resource.inputs)}",
)
def test_addresses_of_ones_own_may_come_in(resource: Resource) -> None:
    assert problems(resource) == set()


def group(template: str = "", **inputs: Any) -> tuple[Resource, Resource]:
    """A managed node group and its launch template."""
    scaling = {"minSize": 0, "desiredSize": 1, "maxSize": 4}
    tagged = [{"resourceType": what, "tags": {"app": "a", "stack": "s"}} for what in ("instance", "volume")]
    launch = declared("aws:ec2/launchTemplate:LaunchTemplate", instanceType=template, tagSpecifications=tagged)
    return declared("aws:eks/nodeGroup:NodeGroup", **{"scalingConfig": scaling, **inputs}), launch


def test_accelerators_are_recognised_by_machine_type_template_or_image() -> None:
    for given in (
        group(instanceTypes=["g4dn.xlarge"]),
        group(instanceTypes=["m5.large", "p5.48xlarge"]),
        group(amiType="AL2023_x86_64_NVIDIA"),
        group(amiType="AL2023_x86_64_NEURON"),
        group(template="trn2.48xlarge"),
    ):
        assert problems(*given) == {"no-accelerator-at-rest"}, given
    assert problems(*group(instanceTypes=["m5.large"])) == set()
    assert problems(*group(instanceTypes=["g4dn.xlarge"], scalingConfig={"minSize": 0, "desiredSize": 0})) == set()
    for type_ in ("g4dn.xlarge", "gr6.4xlarge", "inf2.xlarge", "dl1.24xlarge", "f2.6xlarge", "vt1.3xlarge"):
        assert problems(declared("aws:ec2/instance:Instance", instanceType=type_)) == {"no-accelerator-at-rest"}
    assert problems(declared("aws:ec2/instance:Instance", instanceType="m5.large")) == set()


@pytest.mark.parametrize(
    "type_",
    [
        "a2-highgpu-8g",
        "a3-highgpu-1g",
        "a4-highgpu-8g",
        "a4x-highgpu-4g",
        "g2-standard-4",
        "g4-standard-48",
        "ct6e-standard-4t",
        "tpu7x-standard-4t",
    ],
)
def test_google_has_accelerators_in_the_machine_type(type_: str) -> None:
    scaling: Inputs = {"autoscaling": {"minNodeCount": 0}}

    def pool(machine_type: str, **inputs: Any) -> set[str]:
        return problems(declared("gcp:container/nodePool:NodePool", nodeConfig={"machineType": machine_type}, **inputs))

    assert pool(type_) == pool(type_, autoscaling={"minNodeCount": 2}) == {"no-accelerator-at-rest"}
    assert pool(type_, **scaling) == pool("c3-standard-4") == pool("n2-standard-2") == set()
    assert problems(declared("gcp:compute/instance:Instance", machineType=type_)) == {"no-accelerator-at-rest"}
    assert problems(declared("gcp:compute/instance:Instance", machineType="e2-standard-4")) == set()


@pytest.mark.parametrize(
    "resource",
    [
        declared("aws:lb/loadBalancer:LoadBalancer"),
        declared("aws:alb/loadBalancer:LoadBalancer"),
        declared("aws:elb/loadBalancer:LoadBalancer"),
        declared("gcp:compute/forwardingRule:ForwardingRule"),
        declared("gcp:compute/globalForwardingRule:GlobalForwardingRule"),
        declared("kubernetes:networking.k8s.io/v1:Ingress"),
        declared("kubernetes:gateway.networking.k8s.io/v1:Gateway"),
    ],
    ids=lambda resource: resource.type,
)
def test_every_kind_of_load_balancer_is_found(resource: Resource) -> None:
    assert problems(resource) == {"no-load-balancer"}


def test_storage_in_plain_text_is_found() -> None:
    assert problems(declared("aws:efs/fileSystem:FileSystem")) == {"encrypted-storage"}
    assert problems(declared("aws:efs/fileSystem:FileSystem", encrypted=True)) == set()
    _, launch = group()
    for encrypted, found in ((True, set()), ("true", set()), (None, {"encrypted-storage"})):
        disks = [{"deviceName": "/dev/xvda", "ebs": {"encrypted": encrypted}}]
        assert problems(replace(launch, inputs={**launch.inputs, "blockDeviceMappings": disks})) == found
    driver, iam = {"driver": "efs.csi.aws.com"}, {"mountOptions": ["iam"]}
    for spec, found in (
        ({"csi": driver, **iam}, set()),
        ({"csi": {**driver, "volumeAttributes": {"encryptInTransit": "false"}}, **iam}, {"encrypted-storage"}),
        ({"csi": driver, "mountOptions": ["iam", "notls"]}, {"encrypted-storage"}),
    ):
        assert problems(declared("kubernetes:core/v1:PersistentVolume", spec=spec)) == found


def test_what_costs_is_labelled() -> None:
    unowned = replace(declared("gcp:compute/disk:Disk"), provider="urn:pulumi:s::p::pulumi:providers:gcp::default_9_0")
    default = replace(LABELLED, urn=unowned.provider)
    assert problems(unowned) == problems(unowned, default) == {"labels-for-cost"}
    _, launch = group()
    untagged = {**launch.inputs, "tagSpecifications": launch.inputs["tagSpecifications"][:1]}
    assert problems(replace(launch, inputs=untagged)) == {"labels-for-cost"}
    labels = {"app": "trainyard", "stack": "s"}
    for label in labels:
        other = {key: value for key, value in labels.items() if key != label}
        for cloud, given in (("gcp", {"defaultLabels": other}), ("aws", {"defaultTags": {"tags": other}})):
            assert problems(declared(f"pulumi:providers:{cloud}", **given)) == {"labels-for-cost"}
    assert problems(declared("pulumi:providers:aws", defaultTags={"tags": labels})) == set()
