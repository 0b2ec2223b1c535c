"""Everything that exists in an account, for "nothing is left": what costs, and what blocks whatever comes after."""

from __future__ import annotations

from collections.abc import Callable

from .account import Account

#: Kind -> (service, operation, arguments, key of the list in the answer, key of the id in an item or "" for strings)
_LISTS: dict[str, tuple[str, str, dict[str, object], str, str]] = {
    "vpc": ("ec2", "describe_vpcs", {}, "Vpcs", "VpcId"),
    "subnet": ("ec2", "describe_subnets", {}, "Subnets", "SubnetId"),
    "internet gateway": ("ec2", "describe_internet_gateways", {}, "InternetGateways", "InternetGatewayId"),
    "address": ("ec2", "describe_addresses", {}, "Addresses", "AllocationId"),
    "route table": ("ec2", "describe_route_tables", {}, "RouteTables", "RouteTableId"),
    "security group": ("ec2", "describe_security_groups", {}, "SecurityGroups", "GroupId"),
    "network interface": ("ec2", "describe_network_interfaces", {}, "NetworkInterfaces", "NetworkInterfaceId"),
    "launch template": ("ec2", "describe_launch_templates", {}, "LaunchTemplates", "LaunchTemplateId"),
    "placement group": ("ec2", "describe_placement_groups", {}, "PlacementGroups", "GroupName"),
    "volume": ("ec2", "describe_volumes", {}, "Volumes", "VolumeId"),
    "instance": ("ec2", "describe_instances", {}, "Reservations", "ReservationId"),
    "cluster": ("eks", "list_clusters", {}, "clusters", ""),
    "role": ("iam", "list_roles", {}, "Roles", "RoleName"),
    "policy": ("iam", "list_policies", {"Scope": "Local"}, "Policies", "Arn"),
    "identity provider": ("iam", "list_open_id_connect_providers", {}, "OpenIDConnectProviderList", "Arn"),
    "alias": ("kms", "list_aliases", {}, "Aliases", "AliasName"),
    "log group": ("logs", "describe_log_groups", {}, "logGroups", "logGroupName"),
    "file system": ("efs", "describe_file_systems", {}, "FileSystems", "FileSystemId"),
    "access point": ("efs", "describe_access_points", {}, "AccessPoints", "AccessPointId"),
    "repository": ("ecr", "describe_repositories", {}, "repositories", "repositoryName"),
}


def everything(account: Account) -> set[str]:
    """ "KIND ID" of all that exists; a new account has a network and a few keys' aliases already."""
    found = {item for kind in _LISTS for item in _listed(account, kind)}
    return found | set().union(*(list_(account) for list_ in _WITH_A_STATE))


def _listed(account: Account, kind: str) -> set[str]:
    service, operation, arguments, key, id_ = _LISTS[kind]
    return {f"{kind} {item[id_] if id_ else item}" for item in account.call(service, operation, **arguments)[key]}


def _nat_gateways(account: Account) -> set[str]:
    """One that is deleted shows for an hour."""
    gateways = account.call("ec2", "describe_nat_gateways")["NatGateways"]
    return {f"NAT gateway {gateway['NatGatewayId']}" for gateway in gateways if gateway["State"] != "deleted"}


def _endpoints(account: Account) -> set[str]:
    endpoints = account.call("ec2", "describe_vpc_endpoints")["VpcEndpoints"]
    return {f"endpoint {endpoint['VpcEndpointId']}" for endpoint in endpoints if endpoint["State"] != "deleted"}


def _keys(account: Account) -> set[str]:
    """One that waits for its deletion costs nothing."""
    found = set()
    for key in account.call("kms", "list_keys")["Keys"]:
        state = account.call("kms", "describe_key", KeyId=key["KeyId"])["KeyMetadata"]
        if state["KeyState"] != "PendingDeletion" and state["KeyManager"] == "CUSTOMER":
            found.add(f"key {key['KeyId']}")
    return found


_WITH_A_STATE: tuple[Callable[[Account], set[str]], ...] = (_nat_gateways, _endpoints, _keys)
