"""What still needs a resource that is deleted: what AWS refuses, or accepts and leaves something behind or hanging, and
moto does neither.
"""

from __future__ import annotations

from collections.abc import Callable

from . import policies
from .account import Account, Inputs, Refused
from .eks import log_group, makes_log_group
from .lookups import clusters, internet_gateways, node_groups
from .network import interfaces


def check(account: Account, type_: str, id_: str, state: Inputs) -> None:
    """Raises Refused."""
    if type_ in _CHECKS:
        _CHECKS[type_](account, id_, state)


def _in_use(what: str, by: str) -> Refused:
    return Refused("DependencyViolation", f"{what} has a dependency and cannot be deleted: {by}")


def _subnet_free(account: Account, id_: str, state: Inputs) -> None:
    for interface in interfaces(account, "subnet-id", id_):
        raise _in_use(
            f"subnet {id_}", f"network interface {interface['NetworkInterfaceId']} {interface['Description']}"
        )


def _security_group_free(account: Account, id_: str, state: Inputs) -> None:
    for interface in interfaces(account, "group-id", id_):
        raise _in_use(f"security group {id_}", f"network interface {interface['NetworkInterfaceId']}")
    for group in account.call("ec2", "describe_security_groups")["SecurityGroups"]:
        rules = [*group["IpPermissions"], *group["IpPermissionsEgress"]]
        named = {pair["GroupId"] for rule in rules for pair in rule.get("UserIdGroupPairs", [])}
        if id_ in named and group["GroupId"] != id_:
            raise _in_use(f"security group {id_}", f"a rule of {group['GroupId']} {group['GroupName']}")


def _no_nodes(what: str) -> Callable[[Account, str, Inputs], None]:
    """Nodes lose the way to the control plane and to the registry: their pods are never drained."""

    def check(account: Account, id_: str, state: Inputs) -> None:
        for group in node_groups(account):
            raise _in_use(f"{what} {id_}", f"node group {group['nodegroupName']} lives with it")

    return check


def _no_nodes_in_its_subnet(what: str) -> Callable[[Account, str, Inputs], None]:
    """What is of one zone is needed by the nodes there alone."""

    def check(account: Account, id_: str, state: Inputs) -> None:
        for group in node_groups(account):
            if state["subnetId"] in group["subnets"]:
                raise _in_use(f"{what} {id_}", f"node group {group['nodegroupName']} lives with it")

    return check


def _internet_gateway_free(account: Account, id_: str, state: Inputs) -> None:
    for gateway in account.call("ec2", "describe_nat_gateways")["NatGateways"]:
        if gateway["VpcId"] == state.get("vpcId") and gateway["State"] == "available":
            raise _in_use(f"network {state['vpcId']}", "it has some mapped public addresses")
    _no_nodes("internet gateway")(account, id_, state)


def _eip_free(account: Account, id_: str, state: Inputs) -> None:
    for address in account.call("ec2", "describe_addresses", AllocationIds=[id_])["Addresses"]:
        if address.get("AssociationId"):
            raise Refused("InvalidIPAddress.InUse", f"{id_} is in use by {address['AssociationId']}")


def _vpc_free(account: Account, id_: str, state: Inputs) -> None:
    for gateway in internet_gateways(account, id_):
        raise _in_use(f"vpc {id_}", f"internet gateway {gateway}")
    filters = [{"Name": "vpc-id", "Values": [id_]}]
    for group in account.call("ec2", "describe_security_groups", Filters=filters)["SecurityGroups"]:
        if group["GroupName"] != "default":
            raise _in_use(f"vpc {id_}", f"security group {group['GroupName']}")
    for endpoint in account.call("ec2", "describe_vpc_endpoints", Filters=filters)["VpcEndpoints"]:
        if endpoint["State"] != "deleted":
            raise _in_use(f"vpc {id_}", f"endpoint {endpoint['VpcEndpointId']}")


def _rights_unused(account: Account, id_: str, state: Inputs) -> None:
    """Without its rights EKS can neither delete nodes nor give back network interfaces."""
    users = {cluster["roleArn"]: f"cluster {cluster['name']}" for cluster in clusters(account)}
    users |= {group["nodeRole"]: f"node group {group['nodegroupName']}" for group in node_groups(account)}
    for arn, user in users.items():
        if policies.role_name(arn) == state.get("role", id_):
            raise _in_use(f"role or policy {id_}", f"{user} acts by it")


def _key_unused(account: Account, id_: str, state: Inputs) -> None:
    for cluster in clusters(account):
        if any(config["provider"]["keyArn"] == state.get("arn") for config in cluster.get("encryptionConfig") or []):
            raise _in_use(f"key {id_}", f"cluster {cluster['name']} reads its secrets with it")


def _log_group_unused(account: Account, id_: str, state: Inputs) -> None:
    for cluster in clusters(account):
        if log_group(cluster["name"]) == id_ and makes_log_group(account, cluster["roleArn"]):
            raise _in_use(f"log group {id_}", f"cluster {cluster['name']} makes it anew, and it stays for ever")


def _cni_unused(account: Account, id_: str, state: Inputs) -> None:
    cluster, name = id_.split(":")
    if name == "vpc-cni":
        for group in account.call("eks", "list_nodegroups", clusterName=cluster)["nodegroups"]:
            raise _in_use(f"add-on {name}", f"nobody else gives back the network interfaces of node group {group}")


def _template_unused(account: Account, id_: str, state: Inputs) -> None:
    for group in node_groups(account):
        if (group.get("launchTemplate") or {}).get("id") == id_:
            raise _in_use(f"launch template {id_}", f"node group {group['nodegroupName']} starts its nodes from it")


_CHECKS: dict[str, Callable[[Account, str, Inputs], None]] = {
    "aws:ec2/subnet:Subnet": _subnet_free,
    "aws:ec2/securityGroup:SecurityGroup": _security_group_free,
    "aws:ec2/natGateway:NatGateway": _no_nodes("NAT gateway"),
    "aws:ec2/route:Route": _no_nodes("route"),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": _no_nodes_in_its_subnet("route table association"),
    "aws:ec2/internetGateway:InternetGateway": _internet_gateway_free,
    "aws:ec2/eip:Eip": _eip_free,
    "aws:ec2/vpc:Vpc": _vpc_free,
    "aws:ec2/launchTemplate:LaunchTemplate": _template_unused,
    "aws:ec2/placementGroup:PlacementGroup": _no_nodes("placement group"),
    "aws:efs/mountTarget:MountTarget": _no_nodes_in_its_subnet("mount target"),
    "aws:eks/addon:Addon": _cni_unused,
    "aws:iam/role:Role": _rights_unused,
    "aws:iam/rolePolicy:RolePolicy": _rights_unused,
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": _rights_unused,
    "aws:kms/key:Key": _key_unused,
    "aws:cloudwatch/logGroup:LogGroup": _log_group_unused,
}
