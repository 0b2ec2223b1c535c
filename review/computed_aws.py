"""What AWS adds to a resource once it exists: ids and ARNs, in the provider's own form (review/computed.py)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from infra.eks.machines import REGIONS

Inputs = Mapping[str, Any]
#: (outputs beside the inputs, id)
Made = tuple[dict[str, Any], str]

ACCOUNT = "123456789012"
CERTIFICATE = base64.b64encode(b"certificate of a recorded cluster").decode()
#: Stands for a token of ECR.
PASSWORD = "password-of-a-recorded-registry"


def _hex(text: str, digits: int = 17) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def arn(service: str, region: str, what: str) -> str:
    return f"arn:aws:{service}:{region}:{ACCOUNT}:{what}"


def _ec2(prefix: str, kind: str) -> Callable[[str, Inputs, str], Made]:
    """What EC2 names by a random id."""

    def made(name: str, inputs: Inputs, region: str) -> Made:
        id_ = f"{prefix}-{_hex(f'{region}/{name}')}"
        return {"arn": arn("ec2", region, f"{kind}/{id_}")}, id_

    return made


def _eip(name: str, inputs: Inputs, region: str) -> Made:
    id_ = f"eipalloc-{_hex(name)}"
    return {"allocationId": id_, "publicIp": "198.51.100.7"}, id_


def _template(name: str, inputs: Inputs, region: str) -> Made:
    id_ = f"lt-{_hex(name)}"
    return {"arn": arn("ec2", region, f"launch-template/{id_}"), "latestVersion": 1.0, "name": name}, id_


def _named(service: str, kind: str, separator: str = "/") -> Callable[[str, Inputs, str], Made]:
    """What is named by its name."""

    def made(name: str, inputs: Inputs, region: str) -> Made:
        return {"name": name, "arn": arn(service, region, f"{kind}{separator}{name}")}, name

    return made


def _role(name: str, inputs: Inputs, region: str) -> Made:
    return {"name": name, "arn": arn("iam", "", f"role/{name}")}, name


def _attachment(name: str, inputs: Inputs, region: str) -> Made:
    return {}, f"{inputs.get('role')}/{inputs.get('policyArn')}"


def _role_policy(name: str, inputs: Inputs, region: str) -> Made:
    return {"name": name}, f"{inputs.get('role')}:{name}"


def _key(name: str, inputs: Inputs, region: str) -> Made:
    digits = _hex(name, 32)
    id_ = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return {"arn": arn("kms", region, f"key/{id_}"), "keyId": id_}, id_


def _cluster(name: str, inputs: Inputs, region: str) -> Made:
    number = _hex(f"{region}/{name}", 32).upper()
    added = {
        "name": name,
        "arn": arn("eks", region, f"cluster/{name}"),
        "endpoint": f"https://{number}.gr7.{region}.eks.amazonaws.com",
        "certificateAuthority": {"data": CERTIFICATE},
        "identities": [{"oidcs": [{"issuer": f"https://oidc.eks.{region}.amazonaws.com/id/{number}"}]}],
        "vpcConfig": {"clusterSecurityGroupId": f"sg-{_hex(name)}"},
    }
    return added, name


def _in_cluster(field: str) -> Callable[[str, Inputs, str], Made]:
    """What belongs to a cluster, by its own name in it."""

    def made(name: str, inputs: Inputs, region: str) -> Made:
        cluster, own = inputs.get("clusterName"), inputs.get(field) or name
        return {"arn": arn("eks", region, f"{field.removesuffix('Name').lower()}/{cluster}/{own}")}, f"{cluster}:{own}"

    return made


def _node_group(name: str, inputs: Inputs, region: str) -> Made:
    cluster, own = inputs.get("clusterName"), inputs.get("nodeGroupName") or name
    scaling = [{"autoscalingGroups": [{"name": f"eks-{own}-{_hex(own, 8)}"}]}]
    added = {"arn": arn("eks", region, f"nodegroup/{cluster}/{own}/{_hex(own, 8)}"), "resources": scaling}
    return added, f"{cluster}:{own}"


def _association(name: str, inputs: Inputs, region: str) -> Made:
    id_ = f"a-{_hex(name)}"
    return {"associationId": id_}, id_


def _efs(prefix: str, kind: str) -> Callable[[str, Inputs, str], Made]:
    def made(name: str, inputs: Inputs, region: str) -> Made:
        id_ = f"{prefix}-{_hex(name)}"
        return {"arn": arn("elasticfilesystem", region, f"{kind}/{id_}")}, id_

    return made


def _repository(name: str, inputs: Inputs, region: str) -> Made:
    url = f"{ACCOUNT}.dkr.ecr.{region}.amazonaws.com/{name}"
    added = {"name": name, "arn": arn("ecr", region, f"repository/{name}"), "repositoryUrl": url, "registryId": ACCOUNT}
    return added, name


def _oidc(name: str, inputs: Inputs, region: str) -> Made:
    made = arn("iam", "", f"oidc-provider/{str(inputs.get('url')).removeprefix('https://')}")
    return {"arn": made}, made


TABLE: dict[str, Callable[[str, Inputs, str], Made]] = {
    "aws:ec2/vpc:Vpc": _ec2("vpc", "vpc"),
    "aws:ec2/subnet:Subnet": _ec2("subnet", "subnet"),
    "aws:ec2/internetGateway:InternetGateway": _ec2("igw", "internet-gateway"),
    "aws:ec2/eip:Eip": _eip,
    "aws:ec2/natGateway:NatGateway": _ec2("nat", "natgateway"),
    "aws:ec2/routeTable:RouteTable": _ec2("rtb", "route-table"),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": _ec2("rtbassoc", "association"),
    "aws:ec2/route:Route": _ec2("r", "route"),
    "aws:ec2/vpcEndpoint:VpcEndpoint": _ec2("vpce", "vpc-endpoint"),
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": _ec2("sg", "security-group"),
    "aws:ec2/securityGroup:SecurityGroup": _ec2("sg", "security-group"),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _ec2("sgr", "security-group-rule"),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _ec2("sgr", "security-group-rule"),
    "aws:ec2/launchTemplate:LaunchTemplate": _template,
    "aws:ec2/placementGroup:PlacementGroup": _named("ec2", "placement-group"),
    "aws:iam/role:Role": _role,
    "aws:iam/rolePolicy:RolePolicy": _role_policy,
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": _attachment,
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": _oidc,
    "aws:kms/key:Key": _key,
    "aws:kms/alias:Alias": _named("kms", "", ""),
    "aws:cloudwatch/logGroup:LogGroup": _named("logs", "log-group", ":"),
    "aws:eks/cluster:Cluster": _cluster,
    "aws:eks/addon:Addon": _in_cluster("addonName"),
    "aws:eks/accessEntry:AccessEntry": _in_cluster("principalArn"),
    "aws:eks/nodeGroup:NodeGroup": _node_group,
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": _association,
    "aws:efs/fileSystem:FileSystem": _efs("fs", "file-system"),
    "aws:efs/mountTarget:MountTarget": _efs("fsmt", "mount-target"),
    "aws:efs/accessPoint:AccessPoint": _efs("fsap", "access-point"),
    "aws:ecr/repository:Repository": _repository,
}


def _token(given: Inputs, region: str) -> dict[str, Any]:
    account = given.get("registryId", ACCOUNT)
    return {
        "id": account,
        "registryId": account,
        "userName": "AWS",
        "password": PASSWORD,
        "authorizationToken": base64.b64encode(f"AWS:{PASSWORD}".encode()).decode(),
        "expiresAt": "2026-11-22T12:00:00Z",
        "proxyEndpoint": "",
    }


def _offerings(given: Inputs, region: str) -> dict[str, Any]:
    """By the table of zones."""
    types = [name for filter_ in given["filters"] for name in filter_["values"]]
    known = REGIONS[region]
    pairs = [(zone, name) for zone in known.zones for name in types if known.offers(name, zone)]
    return {"id": region, "locations": [zone for zone, _ in pairs], "instanceTypes": [name for _, name in pairs]}


def _parameter(given: Inputs, region: str) -> dict[str, Any]:
    """The release of an image for nodes, of a day that never was: no recording depends on the date."""
    version = given["name"].removeprefix("/aws/service/eks/optimized-ami/").partition("/")[0]
    return {"id": given["name"], "name": given["name"], "insecureValue": f"{version}.0-20261101", "type": "String"}


#: Functions that the program calls, and what they answer in a region.
ANSWERS: dict[str, Callable[[Inputs, str], dict[str, Any]]] = {
    "aws:ecr/getAuthorizationToken:getAuthorizationToken": _token,
    "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings": _offerings,
    "aws:ssm/getParameter:getParameter": _parameter,
}
