"""What has to be there before a resource is made: what AWS refuses, or accepts and then fails with after minutes, and
moto does neither. Each check asks the account alone, so it holds whatever order the resources come in.
"""

from __future__ import annotations

from collections.abc import Callable

from infra.needs import Feature, shown

from . import policies
from .account import Account, Inputs, Refused
from .eks import log_group, makes_log_group
from .lookups import has_nodes, internet_gateways, offerings, pod_role, reaches_internet, require_group, subnets_by_id


def check(account: Account, type_: str, inputs: Inputs) -> None:
    """Raises Refused."""
    if type_ in _CHECKS:
        _CHECKS[type_](account, inputs)
    for feature, needs in shown("eks", type_, inputs).items():
        _needs(account, type_, inputs, feature, needs)


#: AWS has no code for it: it accepts, and what was made does not do its work.
NOT_MET = "NotMet"
#: Who acts by the role that an input of a resource names.
_ACTS_BY = {"aws:eks/cluster:Cluster": ("cluster", "roleArn"), "aws:eks/nodeGroup:NodeGroup": ("nodes", "nodeRoleArn")}


def _needs(account: Account, type_: str, inputs: Inputs, name: str, needs: Feature) -> None:
    """What infra/eks/needs.yaml says: policies of the role that it acts by, add-ons before its nodes."""
    who, key = _ACTS_BY.get(type_, ("", ""))
    for wanted in needs.roles.get(who, ()):
        role = policies.role_name(inputs[key])
        if not policies.grants(account, role, wanted):
            raise Refused(NOT_MET, f"{name}: role {role} has no {wanted}: {needs.why}")
    if type_ == "aws:eks/nodeGroup:NodeGroup" and needs.addons:
        there = account.call("eks", "list_addons", clusterName=inputs["clusterName"])["addons"]
        if lacking := [addon for addon in needs.addons if addon not in there]:
            raise Refused(NOT_MET, f"{name}: the add-on {', '.join(lacking)} is not there: {needs.why}")


def _nat_gateway(account: Account, inputs: Inputs) -> None:
    subnet = subnets_by_id(account, [inputs["subnetId"]])[0]
    if inputs.get("connectivityType", "public") == "public" and not internet_gateways(account, subnet["VpcId"]):
        raise Refused("Gateway.NotAttached", f"Network {subnet['VpcId']} has no Internet gateway attached")


def _route(account: Account, inputs: Inputs) -> None:
    if inputs.get("natGatewayId"):
        found = account.call("ec2", "describe_nat_gateways", NatGatewayIds=[inputs["natGatewayId"]])["NatGateways"]
        if not found:
            raise Refused("InvalidNatGatewayID.NotFound", f"NAT gateway {inputs['natGatewayId']} was not found")
    if inputs.get("gatewayId"):
        table = account.call("ec2", "describe_route_tables", RouteTableIds=[inputs["routeTableId"]])["RouteTables"][0]
        if inputs["gatewayId"] not in internet_gateways(account, table["VpcId"]):
            gateway = inputs["gatewayId"]
            raise Refused("InvalidParameterValue", f"{gateway} and route table belong to different networks")


def _route_table(account: Account, inputs: Inputs) -> None:
    for route in inputs.get("routes") or []:
        if route.get("natGatewayId"):
            _route(account, {"natGatewayId": route["natGatewayId"]})


def _vpc_endpoint(account: Account, inputs: Inputs) -> None:
    if not inputs["serviceName"].startswith((f"com.amazonaws.{account.region}.", f"aws.api.{account.region}.")):
        raise Refused("InvalidServiceName", f"The Vpc Endpoint Service '{inputs['serviceName']}' does not exist")


def _cluster(account: Account, inputs: Inputs) -> None:
    policies.require_trust(account, inputs["roleArn"], "eks.amazonaws.com")
    _rights(account, inputs["roleArn"], policies.CLUSTER, "the control plane")
    subnets = subnets_by_id(account, inputs["vpcConfig"]["subnetIds"])
    if len({subnet["AvailabilityZone"] for subnet in subnets}) < 2:
        raise Refused("InvalidParameterException", "Subnets specified must be in at least two different AZs")
    if len({subnet["VpcId"] for subnet in subnets}) != 1:
        raise Refused("InvalidParameterException", "Subnets specified must be in one VPC")
    for group in inputs["vpcConfig"].get("securityGroupIds") or []:
        require_group(account, group, subnets[0]["VpcId"])
    if inputs.get("enabledClusterLogTypes") and not makes_log_group(account, inputs["roleArn"]):
        wanted = log_group(inputs["name"])
        found = account.call("logs", "describe_log_groups", logGroupNamePrefix=wanted)["logGroups"]
        if wanted not in {group["logGroupName"] for group in found}:
            raise Refused(
                "AccessDenied", f"the control plane logs to {wanted}, which does not exist and it may not make"
            )
    key = ((inputs.get("encryptionConfig") or {}).get("provider") or {}).get("keyArn")
    if key and account.call("kms", "describe_key", KeyId=key)["KeyMetadata"]["KeyState"] != "Enabled":
        raise Refused("InvalidParameterException", f"the key {key} is not enabled")


def _node_group(account: Account, inputs: Inputs) -> None:
    policies.require_trust(account, inputs["nodeRoleArn"], "ec2.amazonaws.com")
    _rights(account, inputs["nodeRoleArn"], policies.NODE, "nodes")
    cni_roles = [pod_role(account, inputs["clusterName"], "kube-system/aws-node"), inputs["nodeRoleArn"]]
    found = [
        policies.missing(account, policies.role_name(role), policies.PODS["kube-system/aws-node"])
        for role in cni_roles
        if role
    ]
    if all(found):
        raise _never_joins(f"the CNI may not {', '.join(min(found, key=len))}")
    types = account.call("ec2", "describe_instance_types", InstanceTypes=inputs["instanceTypes"])["InstanceTypes"]
    gpus = {bool(kind.get("GpuInfo")) for kind in types}
    if gpus != {"NVIDIA" in inputs.get("amiType", "")}:
        raise _never_joins(f"AMI type {inputs.get('amiType')} does not fit {', '.join(inputs['instanceTypes'])}")
    for name in inputs["instanceTypes"]:
        _offered(account, name, inputs["subnetIds"])
    for subnet in subnets_by_id(account, inputs["subnetIds"]):
        if not reaches_internet(account, subnet):
            raise _never_joins(f"no way to the internet from subnet {subnet['SubnetId']}")
    template = inputs.get("launchTemplate")
    if template:
        _launch_template(account, template, inputs)


def _offered(account: Account, machine_type: str, subnets: list[str]) -> None:
    """One zone that lacks one type is enough; the words are those of eksctl issue 6461 and ec2-spot-workshops 154."""
    found = offerings(account, "availability-zone", [{"Name": "instance-type", "Values": [machine_type]}])
    having = sorted(zone for zone, _ in found)
    for subnet in subnets_by_id(account, subnets):
        zone = subnet["AvailabilityZone"]
        if zone not in having:
            raise Refused(
                "InvalidRequestException",
                f"Your requested instance type ({machine_type}) is not supported in your requested Availability Zone "
                f"({zone}). Please retry your request by not specifying an Availability Zone or choosing "
                f"{', '.join(having)}.",
            )


def _never_joins(reason: str) -> Refused:
    return Refused("NodeCreationFailure", f"Instances failed to join the kubernetes cluster: {reason}")


def _launch_template(account: Account, template: Inputs, inputs: Inputs) -> None:
    version = str(template.get("version") or "$Default")
    versions = account.call(
        "ec2",
        "describe_launch_template_versions",
        LaunchTemplateId=template.get("id"),
        LaunchTemplateName=template.get("name"),
        Versions=[str(int(float(version))) if version[0].isdigit() else version],
    )["LaunchTemplateVersions"]
    if not versions:
        raise Refused("InvalidRequestException", f"launch template version {version} does not exist")
    data = versions[0]["LaunchTemplateData"]
    groups = [
        *data.get("SecurityGroupIds", []),
        *(g for i in data.get("NetworkInterfaces", []) for g in i.get("Groups", [])),
    ]
    vpc = subnets_by_id(account, inputs["subnetIds"])[0]["VpcId"]
    for group in groups:
        require_group(account, group, vpc)
    name = (data.get("Placement") or {}).get("GroupName")
    if name:
        known = {
            group["GroupName"]: group for group in account.call("ec2", "describe_placement_groups")["PlacementGroups"]
        }
        if name not in known:
            raise Refused("InvalidPlacementGroup.Unknown", f"The placement group '{name}' is unknown")
        zones = {subnet["AvailabilityZone"] for subnet in subnets_by_id(account, inputs["subnetIds"])}
        if known[name]["Strategy"] == "cluster" and len(zones) > 1:
            raise Refused(
                "InvalidRequestException", f"a cluster placement group lies in one zone, not in {sorted(zones)}"
            )


def _addon(account: Account, inputs: Inputs) -> None:
    cluster = inputs["clusterName"]
    if inputs["addonName"] in ("coredns", "aws-efs-csi-driver") and not has_nodes(account, cluster):
        raise Refused("InsufficientNumberOfReplicas", f"add-on {inputs['addonName']} has no node to run on")
    for association in inputs.get("podIdentityAssociations") or []:
        _pod_identity(account, association)


def _pod_identity(account: Account, inputs: Inputs) -> None:
    actions = ("sts:AssumeRole", "sts:TagSession")
    policies.require_trust(account, inputs["roleArn"], "pods.eks.amazonaws.com", actions)


def _mount_target(account: Account, inputs: Inputs) -> None:
    subnet = subnets_by_id(account, [inputs["subnetId"]])[0]
    for group in inputs.get("securityGroups") or []:
        require_group(account, group, subnet["VpcId"])


def _access_point(account: Account, inputs: Inputs) -> None:
    account.call("efs", "describe_file_systems", FileSystemId=inputs["fileSystemId"])


def _role(account: Account, inputs: Inputs) -> None:
    try:
        statements = policies.statements(inputs["assumeRolePolicy"])
        complete = bool(statements) and all({"Effect", "Principal", "Action"} <= item.keys() for item in statements)
    except (ValueError, KeyError):
        complete = False
    if not complete:
        raise Refused("MalformedPolicyDocument", f"who may assume it is not said in {inputs['assumeRolePolicy']}")


def _role_policy_attachment(account: Account, inputs: Inputs) -> None:
    account.call("iam", "get_policy", PolicyArn=inputs["policyArn"])


def _rights(account: Account, arn: str, actions: tuple[str, ...], user: str) -> None:
    missing = policies.missing(account, policies.role_name(arn), actions)
    if missing:
        raise Refused("AccessDenied", f"{user} may not {', '.join(missing)} with role {policies.role_name(arn)}")


_CHECKS: dict[str, Callable[[Account, Inputs], None]] = {
    "aws:ec2/natGateway:NatGateway": _nat_gateway,
    "aws:ec2/route:Route": _route,
    "aws:ec2/routeTable:RouteTable": _route_table,
    "aws:ec2/vpcEndpoint:VpcEndpoint": _vpc_endpoint,
    "aws:eks/cluster:Cluster": _cluster,
    "aws:eks/nodeGroup:NodeGroup": _node_group,
    "aws:eks/addon:Addon": _addon,
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": _pod_identity,
    "aws:efs/mountTarget:MountTarget": _mount_target,
    "aws:efs/accessPoint:AccessPoint": _access_point,
    "aws:iam/role:Role": _role,
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": _role_policy_attachment,
}
