"""What an account has, asked through its API: for the checks of what AWS refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .account import Account, Refused
from .network import ANYWHERE


def subnets_by_id(account: Account, ids: list[str]) -> list[dict[str, Any]]:
    return account.call("ec2", "describe_subnets", SubnetIds=list(ids))["Subnets"]


def require_group(account: Account, id_: str, vpc: str) -> None:
    group = account.call("ec2", "describe_security_groups", GroupIds=[id_])["SecurityGroups"][0]
    if group["VpcId"] != vpc:
        raise Refused("InvalidGroup.NotFound", f"security group {id_} is not in network {vpc}")


def internet_gateways(account: Account, vpc: str) -> list[str]:
    filters = [{"Name": "attachment.vpc-id", "Values": [vpc]}]
    found = account.call("ec2", "describe_internet_gateways", Filters=filters)["InternetGateways"]
    return [gateway["InternetGatewayId"] for gateway in found]


def routes(account: Account, subnet: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Routes of a subnet's table; of the network's main one where it has none of its own."""
    for filters in (
        [{"Name": "association.subnet-id", "Values": [subnet["SubnetId"]]}],
        [{"Name": "vpc-id", "Values": [subnet["VpcId"]]}, {"Name": "association.main", "Values": ["true"]}],
    ):
        tables = account.call("ec2", "describe_route_tables", Filters=filters)["RouteTables"]
        if tables:
            yield from tables[0]["Routes"]
            return


def reaches_internet(account: Account, subnet: dict[str, Any], through_nat: bool = True) -> bool:
    """Over an internet gateway with addresses of its own, or over a NAT gateway that stands in such a subnet."""
    for route in routes(account, subnet):
        if route.get("DestinationCidrBlock") != ANYWHERE:
            continue
        if route.get("GatewayId") in internet_gateways(account, subnet["VpcId"]):
            return subnet["MapPublicIpOnLaunch"] or not through_nat
        if route.get("NatGatewayId") and through_nat:
            gateways = account.call("ec2", "describe_nat_gateways", NatGatewayIds=[route["NatGatewayId"]])
            for gateway in gateways["NatGateways"]:
                there = subnets_by_id(account, [gateway["SubnetId"]])[0]
                return gateway["State"] == "available" and reaches_internet(account, there, through_nat=False)
    return False


def has_nodes(account: Account, cluster: str) -> bool:
    """Whether a node is there that takes pods of any kind."""
    for name in account.call("eks", "list_nodegroups", clusterName=cluster)["nodegroups"]:
        group = account.call("eks", "describe_nodegroup", clusterName=cluster, nodegroupName=name)["nodegroup"]
        if group["scalingConfig"]["minSize"] > 0 and not group.get("taints"):
            return True
    return False


def pod_role(account: Account, cluster: str, service_account: str) -> str | None:
    found = account.call("eks", "list_pod_identity_associations", clusterName=cluster)["associations"]
    for one in found:
        if f"{one['namespace']}/{one['serviceAccount']}" == service_account:
            described = account.call(
                "eks", "describe_pod_identity_association", clusterName=cluster, associationId=one["associationId"]
            )
            return described["association"]["roleArn"]
    return None


def node_groups(account: Account) -> Iterator[dict[str, Any]]:
    """Every node group of every cluster."""
    for cluster in account.call("eks", "list_clusters")["clusters"]:
        for name in account.call("eks", "list_nodegroups", clusterName=cluster)["nodegroups"]:
            yield account.call("eks", "describe_nodegroup", clusterName=cluster, nodegroupName=name)["nodegroup"]


def clusters(account: Account) -> Iterator[dict[str, Any]]:
    for name in account.call("eks", "list_clusters")["clusters"]:
        yield account.call("eks", "describe_cluster", name=name)["cluster"]


def offerings(account: Account, location_type: str, filters: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(zone or its id, machine type) of all that is offered: AWS's own answers, of the day of moto's release."""
    answer = account.call("ec2", "describe_instance_type_offerings", LocationType=location_type, Filters=filters)
    return [(item["Location"], item["InstanceType"]) for item in answer["InstanceTypeOfferings"]]
