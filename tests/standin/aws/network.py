"""EC2's part of the network: VPC, subnets, gateways, routes, endpoints, security groups."""

from __future__ import annotations

from typing import Any

from .account import Account, Inputs, split, tag_specification
from .kind import Kind, Made, deletes

ANYWHERE = "0.0.0.0/0"


def _arn(account: Account, kind: str, id_: str) -> str:
    return f"arn:aws:ec2:{account.region}:{account.number}:{kind}/{id_}"


def _created(account: Account, operation: str, kind: str, inputs: Inputs, answer: str, id_: str) -> dict[str, Any]:
    """The new thing's description, for operations that take tags and answer with one thing."""
    rest, _ = split(inputs, "tags")
    arguments = account.translated("ec2", operation, rest)
    made = account.call("ec2", operation, **arguments, TagSpecifications=tag_specification(kind, inputs))[answer]
    return {**made, "id": made[id_]}


def _vpc(account: Account, inputs: Inputs) -> Made:
    rest, apart = split(inputs, "enableDnsSupport", "enableDnsHostnames")
    id_ = _created(account, "create_vpc", "vpc", rest, "Vpc", "VpcId")["id"]
    for argument, wanted in (
        ("EnableDnsSupport", apart["enableDnsSupport"]),
        ("EnableDnsHostnames", apart["enableDnsHostnames"]),
    ):
        if wanted is not None:
            account.call("ec2", "modify_vpc_attribute", VpcId=id_, **{argument: {"Value": wanted}})
    tables = account.call("ec2", "describe_route_tables", Filters=[{"Name": "vpc-id", "Values": [id_]}])["RouteTables"]
    return id_, {
        "arn": _arn(account, "vpc", id_),
        "defaultSecurityGroupId": default_group(account, id_)["GroupId"],
        "defaultRouteTableId": tables[0]["RouteTableId"],
        "mainRouteTableId": tables[0]["RouteTableId"],
        "ownerId": account.number,
    }


def default_group(account: Account, vpc: str) -> dict[str, Any]:
    filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "group-name", "Values": ["default"]}]
    return account.call("ec2", "describe_security_groups", Filters=filters)["SecurityGroups"][0]


def _subnet(account: Account, inputs: Inputs) -> Made:
    rest, apart = split(inputs, "mapPublicIpOnLaunch")
    id_ = _created(account, "create_subnet", "subnet", rest, "Subnet", "SubnetId")["id"]
    public = bool(apart["mapPublicIpOnLaunch"])
    account.call("ec2", "modify_subnet_attribute", SubnetId=id_, MapPublicIpOnLaunch={"Value": public})
    return id_, {"arn": _arn(account, "subnet", id_)}


def _internet_gateway(account: Account, inputs: Inputs) -> Made:
    rest, apart = split(inputs, "vpcId")
    made = _created(
        account, "create_internet_gateway", "internet-gateway", rest, "InternetGateway", "InternetGatewayId"
    )
    if apart["vpcId"]:
        account.call("ec2", "attach_internet_gateway", InternetGatewayId=made["id"], VpcId=apart["vpcId"])
    return made["id"], {"arn": _arn(account, "internet-gateway", made["id"])}


def _delete_internet_gateway(account: Account, id_: str, state: Inputs) -> None:
    if state.get("vpcId"):
        account.call("ec2", "detach_internet_gateway", InternetGatewayId=id_, VpcId=state["vpcId"])
    account.call("ec2", "delete_internet_gateway", InternetGatewayId=id_)


def _eip(account: Account, inputs: Inputs) -> Made:
    rest, _ = split(inputs, "tags")
    arguments = account.translated("ec2", "allocate_address", rest)
    made = account.call(
        "ec2", "allocate_address", **arguments, TagSpecifications=tag_specification("elastic-ip", inputs)
    )
    id_ = made["AllocationId"]
    return id_, {"allocationId": id_, "publicIp": made["PublicIp"], "arn": _arn(account, "elastic-ip", id_)}


def _nat_gateway(account: Account, inputs: Inputs) -> Made:
    made = _created(account, "create_nat_gateway", "natgateway", inputs, "NatGateway", "NatGatewayId")
    return made["id"], {"publicIp": made["NatGatewayAddresses"][0].get("PublicIp")}


def _delete_nat_gateway(account: Account, id_: str, state: Inputs) -> None:
    # AWS gives its interface and its address back; moto keeps both.
    gateway = account.call("ec2", "describe_nat_gateways", NatGatewayIds=[id_])["NatGateways"][0]
    account.call("ec2", "delete_nat_gateway", NatGatewayId=id_)
    for address in gateway["NatGatewayAddresses"]:
        filters = [{"Name": "allocation-id", "Values": [address["AllocationId"]]}]
        for held in account.call("ec2", "describe_addresses", Filters=filters)["Addresses"]:
            if held.get("AssociationId"):
                account.call("ec2", "disassociate_address", AssociationId=held["AssociationId"])
    for interface in interfaces(account, "subnet-id", gateway["SubnetId"]):
        if interface["NetworkInterfaceId"] == gateway["NatGatewayAddresses"][0].get("NetworkInterfaceId"):
            account.call("ec2", "delete_network_interface", NetworkInterfaceId=interface["NetworkInterfaceId"])


def interfaces(account: Account, name: str, value: str) -> list[dict[str, Any]]:
    """Network interfaces by a filter: `subnet-id`, `group-id`, `vpc-id`."""
    filters = [{"Name": name, "Values": [value]}]
    return account.call("ec2", "describe_network_interfaces", Filters=filters)["NetworkInterfaces"]


def _route_table(account: Account, inputs: Inputs) -> Made:
    rest, apart = split(inputs, "routes")
    id_ = _created(account, "create_route_table", "route-table", rest, "RouteTable", "RouteTableId")["id"]
    for route in apart["routes"] or []:
        _route(account, {"routeTableId": id_, **route})
    return id_, {"arn": _arn(account, "route-table", id_)}


def _route(account: Account, inputs: Inputs) -> Made:
    renamed = {"cidrBlock": "destinationCidrBlock"}
    account.call("ec2", "create_route", **account.translated("ec2", "create_route", inputs, renamed))
    return f"r-{inputs['routeTableId']}-{inputs.get('destinationCidrBlock') or inputs.get('cidrBlock')}", {}


def _delete_route(account: Account, id_: str, state: Inputs) -> None:
    account.call(
        "ec2",
        "delete_route",
        RouteTableId=state["routeTableId"],
        DestinationCidrBlock=state.get("destinationCidrBlock"),
        DestinationIpv6CidrBlock=state.get("destinationIpv6CidrBlock"),
    )


def _route_table_association(account: Account, inputs: Inputs) -> Made:
    arguments = account.translated("ec2", "associate_route_table", inputs)
    return account.call("ec2", "associate_route_table", **arguments)["AssociationId"], {}


def _vpc_endpoint(account: Account, inputs: Inputs) -> Made:
    rest, _ = split(inputs, "tags", "policy")
    arguments = account.translated("ec2", "create_vpc_endpoint", rest)
    made = account.call(
        "ec2",
        "create_vpc_endpoint",
        **arguments,
        PolicyDocument=inputs.get("policy"),
        TagSpecifications=tag_specification("vpc-endpoint", inputs),
    )["VpcEndpoint"]
    return made["VpcEndpointId"], {"arn": _arn(account, "vpc-endpoint", made["VpcEndpointId"])}


def _default_security_group(account: Account, inputs: Inputs) -> Made:
    """Taken over, with no rules but those of the program."""
    group = default_group(account, inputs["vpcId"])
    for way in ("ingress", "egress"):
        rules = group["IpPermissions" if way == "ingress" else "IpPermissionsEgress"]
        if rules:
            account.call("ec2", f"revoke_security_group_{way}", GroupId=group["GroupId"], IpPermissions=rules)
        _authorize_inline(account, group["GroupId"], way, inputs)
    return group["GroupId"], {"arn": _arn(account, "security-group", group["GroupId"])}


def _security_group(account: Account, inputs: Inputs) -> Made:
    id_ = account.call(
        "ec2",
        "create_security_group",
        GroupName=inputs["name"],
        Description=inputs.get("description") or "Managed by Pulumi",
        VpcId=inputs.get("vpcId"),
        TagSpecifications=tag_specification("security-group", inputs),
    )["GroupId"]
    # The provider takes away the way out that AWS gives every new group.
    everywhere = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": ANYWHERE}]}]
    account.call("ec2", "revoke_security_group_egress", GroupId=id_, IpPermissions=everywhere)
    for way in ("ingress", "egress"):
        _authorize_inline(account, id_, way, inputs)
    return id_, {"arn": _arn(account, "security-group", id_)}


def _authorize_inline(account: Account, group: str, way: str, inputs: Inputs) -> None:
    for rule in inputs.get(way) or []:
        permission = {
            "IpProtocol": rule["protocol"],
            "FromPort": int(rule["fromPort"]),
            "ToPort": int(rule["toPort"]),
            "IpRanges": [{"CidrIp": cidr} for cidr in rule.get("cidrBlocks") or []],
            "UserIdGroupPairs": [{"GroupId": other} for other in rule.get("securityGroups") or []]
            + ([{"GroupId": group}] if rule.get("self") else []),
        }
        account.call("ec2", f"authorize_security_group_{way}", GroupId=group, IpPermissions=[permission])


def _security_group_rule(way: str) -> Kind:
    def create(account: Account, inputs: Inputs) -> Made:
        described = {"Description": inputs["description"]} if inputs.get("description") else {}
        permission: dict[str, Any] = {"IpProtocol": str(inputs["ipProtocol"])}
        for argument, port in (("FromPort", inputs.get("fromPort")), ("ToPort", inputs.get("toPort"))):
            if port is not None:
                permission[argument] = int(port)
        if inputs.get("referencedSecurityGroupId"):
            permission["UserIdGroupPairs"] = [{"GroupId": inputs["referencedSecurityGroupId"], **described}]
        if inputs.get("cidrIpv4"):
            permission["IpRanges"] = [{"CidrIp": inputs["cidrIpv4"], **described}]
        if inputs.get("cidrIpv6"):
            permission["Ipv6Ranges"] = [{"CidrIpv6": inputs["cidrIpv6"], **described}]
        answer = account.call(
            "ec2",
            f"authorize_security_group_{way}",
            GroupId=inputs["securityGroupId"],
            IpPermissions=[permission],
            TagSpecifications=tag_specification("security-group-rule", inputs),
        )
        id_ = answer["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        return id_, {"securityGroupRuleId": id_, "arn": _arn(account, "security-group-rule", id_)}

    def delete(account: Account, id_: str, state: Inputs) -> None:
        operation = f"revoke_security_group_{way}"
        account.call("ec2", operation, GroupId=state["securityGroupId"], SecurityGroupRuleIds=[id_])

    return Kind(create=create, delete=delete)


KINDS = {
    "aws:ec2/vpc:Vpc": Kind(create=_vpc, delete=deletes("ec2", "delete_vpc", "VpcId")),
    "aws:ec2/subnet:Subnet": Kind(create=_subnet, delete=deletes("ec2", "delete_subnet", "SubnetId")),
    "aws:ec2/internetGateway:InternetGateway": Kind(create=_internet_gateway, delete=_delete_internet_gateway),
    "aws:ec2/eip:Eip": Kind(create=_eip, delete=deletes("ec2", "release_address", "AllocationId")),
    "aws:ec2/natGateway:NatGateway": Kind(create=_nat_gateway, delete=_delete_nat_gateway),
    "aws:ec2/routeTable:RouteTable": Kind(
        create=_route_table, delete=deletes("ec2", "delete_route_table", "RouteTableId")
    ),
    "aws:ec2/route:Route": Kind(create=_route, delete=_delete_route),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": Kind(
        create=_route_table_association, delete=deletes("ec2", "disassociate_route_table", "AssociationId")
    ),
    "aws:ec2/vpcEndpoint:VpcEndpoint": Kind(
        create=_vpc_endpoint,
        delete=deletes("ec2", "delete_vpc_endpoints", "VpcEndpointIds", several=True),
    ),
    # Goes with its VPC.
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": Kind(create=_default_security_group),
    "aws:ec2/securityGroup:SecurityGroup": Kind(
        create=_security_group, delete=deletes("ec2", "delete_security_group", "GroupId"), name="name"
    ),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _security_group_rule("ingress"),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _security_group_rule("egress"),
}
