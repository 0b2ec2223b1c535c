"""What must exist before a resource is created on AWS, by infra/eks/features.yaml and order.yaml.

AWS refuses some resources that come too early, and accepts others: minutes later, their nodes have not joined, or no
pod starts on them. moto does neither, and simulates no policies. So this module reads the policy statements: an `Allow`
of an action counts even if it is limited to certain resources or tags; a `Deny` without a condition revokes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import jmespath

from infra.facts import load
from infra.features import features_of
from infra.stackfiles import ROOT

from .account import Inputs

if TYPE_CHECKING:
    from ..cloud import Thing

GROUP, ADDON, SUBNET, ASSOCIATION, RULE = (
    "aws:eks/nodeGroup:NodeGroup",
    "aws:eks/addon:Addon",
    "aws:ec2/subnet:Subnet",
    "aws:ec2/routeTableAssociation:RouteTableAssociation",
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
)
#: Actor -> the resource type, the path of the role in its inputs, and the service that assumes the role.
ACTS_BY = load(ROOT / "infra" / "eks" / "order.yaml")["acts_by"]
ANYWHERE = "0.0.0.0/0"
#: Port of NFS (RFC 7530, section 3.1).
NFS = 2049

Living = Sequence["Thing"]  # pyrefly: ignore[not-a-type]


def unmet(type_: str, inputs: Inputs, living: Living) -> str:
    """Say why a resource cannot be created, or would not work, with what exists already; "": no reason."""
    return next(_reasons(type_, inputs, living), "")


def _reasons(type_: str, inputs: Inputs, living: Living) -> Iterator[str]:
    for name, feature in features_of("eks", type_, inputs).items():
        for who, wanted in feature.roles.items():
            for role in _roles(who, type_, inputs):
                for one in wanted:
                    if not grants(role, one, living):
                        yield f"{name}: role {role} has no {one}: {feature.why}"
        if type_ == GROUP:
            there = [other.inputs["addonName"] for other in living if other.type == ADDON]
            if lacking := [addon for addon in feature.addons if addon not in there]:
                yield f"{name}: the add-on {', '.join(lacking)} is not there: {feature.why}"
    yield from _untrusted(type_, inputs, living)
    if type_ == GROUP:
        for subnet in inputs["subnetIds"]:
            if not _reaches_internet(subnet, living):
                yield f"NodeCreationFailure: nodes never join: no way to the internet from subnet {subnet}"
            yield from _without_volume(subnet, living)


def _roles(who: str, type_: str, inputs: Inputs) -> list[str]:
    """List the names of a resource's roles by which `who` acts."""
    said = ACTS_BY.get(who, {})
    found = jmespath.search(said["role"], inputs) if said.get("type") == type_ else None
    arns = found if isinstance(found, list) else [found] if found else []
    return [arn.rpartition("/")[2] for arn in arns]


def _untrusted(type_: str, inputs: Inputs, living: Living) -> Iterator[str]:
    for who, said in ACTS_BY.items():
        for name in _roles(who, type_, inputs):
            trusted = [
                statement.get("Principal", {}).get("Service")
                for role in living
                if role.type == "aws:iam/role:Role" and role.id == name
                for statement in _statements(role.inputs["assumeRolePolicy"])
            ]
            if said["service"] not in trusted:
                yield f"role {name} does not let {said['service']} assume it"


def grants(role: str, wanted: str, living: Living) -> bool:
    """Whether a role has the AWS-managed policy `wanted`, or allows the action `wanted` (with a colon)."""
    of_role = [other for other in living if other.inputs.get("role") == role]
    if ":" not in wanted:
        return any(str(other.inputs.get("policyArn")).endswith(f"/{wanted}") for other in of_role)
    said = [statement for other in of_role for statement in _statements(other.inputs.get("policy"))]
    covering = [each for each in said if _covers(each, wanted)]
    denied = any(each["Effect"] == "Deny" and not each.get("Condition") for each in covering)
    return not denied and any(each["Effect"] == "Allow" for each in covering)


def _statements(policy: str | None) -> list[dict[str, Any]]:
    found = json.loads(policy)["Statement"] if policy else []
    return found if isinstance(found, list) else [found]


def _covers(statement: dict[str, Any], action: str) -> bool:
    patterns = statement.get("Action") or []
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)


def _reaches_internet(subnet: str, living: Living) -> bool:
    """Whether a subnet has a NAT gateway, or an internet gateway and public addresses for its nodes."""
    associations = [other.inputs for other in living if other.type == ASSOCIATION]
    tables = [given["routeTableId"] for given in associations if given["subnetId"] == subnet]
    routes = [
        other.inputs
        for other in living
        if other.inputs.get("routeTableId") in tables and other.inputs.get("destinationCidrBlock") == ANYWHERE
    ]
    public = any(other.id == subnet and other.inputs.get("mapPublicIpOnLaunch") for other in living)
    return any(route.get("natGatewayId") or (route.get("gatewayId") and public) for route in routes)


def _without_volume(subnet: str, living: Living) -> Iterator[str]:
    """Yield why a subnet's nodes cannot mount the volume. They resolve only the mount target of their own zone."""
    zones = {other.id: other.inputs["availabilityZoneId"] for other in living if other.type == SUBNET}
    targets = [other for other in living if other.type == "aws:efs/mountTarget:MountTarget"]
    here = [target for target in targets if zones[target.inputs["subnetId"]] == zones[subnet]]
    clusters = [other for other in living if other.type == "aws:eks/cluster:Cluster"]
    nodes = {cluster.outputs["vpcConfig"]["clusterSecurityGroupId"] for cluster in clusters}
    systems = [other for other in living if other.type == "aws:efs/fileSystem:FileSystem"]
    if systems and not here:
        yield f"file system {systems[0].id}: no mount target in {zones[subnet]}, where nodes are"
    for target in here:
        rules = [rule.inputs for rule in living if rule.type == RULE]
        rules = [rule for rule in rules if rule["securityGroupId"] in target.inputs["securityGroups"]]
        ports = [(rule["fromPort"], rule["toPort"]) for rule in rules if rule["referencedSecurityGroupId"] in nodes]
        if not any(first <= NFS <= last for first, last in ports):
            yield f"mount target {target.id}: port {NFS} is closed for the nodes of {subnet}"
