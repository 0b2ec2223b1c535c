"""The stack's own network: a subnet in every zone for the nodes, and their way to the internet.

The parts that cannot move while the cluster lives (the control plane's interfaces, the NAT gateway, the system nodes)
are in the region's home zones (machines.py). The workers' zones do not matter for them, and may change.

Nodes have no public addresses and go out through one NAT gateway. One per zone would cost 33 dollars a month each; when
the gateway's zone fails, nodes elsewhere lose the internet, but not each other, the volume or the control plane. The
heavy traffic, layers of images, comes from S3 through a gateway endpoint that costs nothing. With `publicNodes` there
is no NAT at all; nobody may connect to a node either way.

Kubernetes makes nothing in it that would outlive the cluster (load balancers, their security groups), so it can be
deleted after the cluster.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.config import StackConfig
from infra.eks.keys import EksConfig
from infra.eks.machines import regions
from infra.eks.scope import ADDRESS, PART, Scope
from infra.scope import NETWORK

ANYWHERE = "0.0.0.0/0"
#: The nodes and pods of zones 1 to 6 get an eighth of the network each (/19 of a /16). The last eighth ends with small
#: subnets for the NAT gateway and the control plane, which needs at least 6 addresses in each of its two.
NODE_BITS, LITTLE_BITS = 3, 8


@dataclass(frozen=True)
class Network:
    vpc: aws.ec2.Vpc
    subnets: Mapping[str, aws.ec2.Subnet]
    """Zone -> subnet of its nodes."""
    control_plane: list[aws.ec2.Subnet]
    way_out: list[pulumi.Resource]
    """What nodes need to reach the internet, and so must outlive them."""


def create_network(config: StackConfig, scope: Scope) -> Network:
    eks = config.section(EksConfig)
    vpc = aws.ec2.Vpc(
        "network",
        cidr_block=eks.vpc_cidr,
        enable_dns_support=True,
        # The nodes find the file system's mount targets by name.
        enable_dns_hostnames=True,
        tags=scope.named(),
        opts=scope.options(),
    )
    # The default group allows nothing: what has no security group of its own cannot connect.
    aws.ec2.DefaultSecurityGroup("default", vpc_id=vpc.id, tags=scope.named("unused"), opts=scope.options())
    gateway = aws.ec2.InternetGateway(
        "internet", vpc_id=vpc.id, tags=scope.named(), opts=scope.options(timeouts=NETWORK)
    )
    little = list(ipaddress.IPv4Network(eks.vpc_cidr).subnets(prefixlen_diff=LITTLE_BITS))[::-1]
    public = _table("public", scope, vpc)
    out = _route("public", scope, public, gateway_id=gateway.id)
    if eks.public_nodes:
        table, way_out = public, [out]
    else:
        nat, outside = _nat(scope, vpc, little[0], public, gateway, out)
        table = _table("private", scope, vpc)
        way_out = [outside, _route("private", scope, table, nat_gateway_id=nat.id)]
    blocks = list(ipaddress.IPv4Network(eks.vpc_cidr).subnets(prefixlen_diff=NODE_BITS))
    home = regions()[eks.region].home
    # A zone's number selects its block: another order of the zones, or one more, changes no subnet.
    subnets = {
        zone: _subnet(f"nodes-{zone}", scope, vpc, zone, blocks[int(zone[-1]) - 1], public=eks.public_nodes)
        for zone in sorted({*home, *scope.zones})
    }
    control_plane = [
        _subnet(f"control-plane-{zone}", scope, vpc, zone, block) for zone, block in zip(home, little[1:], strict=False)
    ]
    joined = [_join(f"nodes-{zone}", scope, subnet, table) for zone, subnet in subnets.items()]
    endpoint = aws.ec2.VpcEndpoint(
        "s3",
        vpc_id=vpc.id,
        service_name=f"com.amazonaws.{scope.region}.s3",
        vpc_endpoint_type="Gateway",
        route_table_ids=[table.id],
        tags=scope.named("s3"),
        opts=scope.options(timeouts=NETWORK),
    )
    return Network(vpc, subnets, control_plane, [*way_out, *joined, endpoint])


def _nat(
    scope: Scope,
    vpc: aws.ec2.Vpc,
    block: ipaddress.IPv4Network,
    public: aws.ec2.RouteTable,
    gateway: aws.ec2.InternetGateway,
    out: aws.ec2.Route,
) -> tuple[aws.ec2.NatGateway, aws.ec2.RouteTableAssociation]:
    """The NAT gateway, in a public subnet of its own."""
    subnet = _subnet("nat", scope, vpc, regions()[scope.region].home[0], block)
    # An internet gateway cannot be detached while an address of its network is in use.
    address = aws.ec2.Eip(
        "nat", domain="vpc", tags=scope.named("nat"), opts=scope.options(depends_on=[gateway], timeouts=ADDRESS)
    )
    nat = aws.ec2.NatGateway(
        "nat",
        allocation_id=address.id,
        subnet_id=subnet.id,
        tags=scope.named(),
        opts=scope.options(depends_on=[out], timeouts=NETWORK),
    )
    return nat, _join("nat", scope, subnet, public)


def _subnet(
    name: str, scope: Scope, vpc: aws.ec2.Vpc, zone: str, block: ipaddress.IPv4Network, *, public: bool = False
) -> aws.ec2.Subnet:
    return aws.ec2.Subnet(
        name,
        vpc_id=vpc.id,
        availability_zone_id=zone,
        cidr_block=str(block),
        map_public_ip_on_launch=public,
        tags=scope.named(name),
        opts=scope.options(timeouts=PART),
    )


def _table(name: str, scope: Scope, vpc: aws.ec2.Vpc) -> aws.ec2.RouteTable:
    return aws.ec2.RouteTable(
        name, vpc_id=vpc.id, tags=scope.named(name), opts=scope.options(timeouts=pulumi.CustomTimeouts(delete="30m"))
    )


def _route(name: str, scope: Scope, table: aws.ec2.RouteTable, **to: pulumi.Input[str]) -> aws.ec2.Route:
    return aws.ec2.Route(
        name,
        route_table_id=table.id,
        destination_cidr_block=ANYWHERE,
        opts=scope.options(timeouts=pulumi.CustomTimeouts(create="10m")),
        **to,
    )


def _join(name: str, scope: Scope, subnet: aws.ec2.Subnet, table: aws.ec2.RouteTable) -> aws.ec2.RouteTableAssociation:
    return aws.ec2.RouteTableAssociation(name, subnet_id=subnet.id, route_table_id=table.id, opts=scope.options())
