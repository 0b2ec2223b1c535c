"""The AWS operations that create, update and delete each resource type of Pulumi's aws package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from review import computed

from ..naming import PluginError
from .account import Account, Inputs


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How AWS handles one resource type. Without `create`, it is a setting of another resource, or has no operation."""

    service: str = ""
    create: str = ""
    id: str = ""
    """JMESPath of the id in the answer; "": the id is made of names, as review/computed.py makes it."""
    delete: str = ""
    by: Mapping[str, str] = field(default_factory=dict)
    """Argument of `delete` -> input, or "id"."""
    update: str = ""
    """An operation with the same arguments as `create`; "": an update in place needs no operation here."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Input -> argument, where the provider's name differs from the API's."""
    apart: str = ""
    """Inputs that other AWS operations set, or that only the provider reads."""
    name: str = ""
    """The input that the provider fills with a generated name if the program gives none."""
    emulated: bool = True
    """False: moto has no such operation. The arguments are checked against AWS's model, and nothing is sent."""


_ROLE_POLICY = {"role": "roleName", "name": "policyName", "policy": "policyDocument"}
_LIFECYCLE = {"repository": "repositoryName", "policy": "lifecyclePolicyText"}
_GROUP = {"nodeGroupName": "nodegroupName", "nodeRoleArn": "nodeRole", "subnetIds": "subnets"}


def _ec2(operation: str, answer: str, delete: str = "", by: str = "id", **more: Any) -> Kind:
    """A Kind that EC2 creates and deletes with one operation each, under an id of EC2's. Its tags take another form."""
    argument = more.pop("argument", answer.rpartition(".")[2])
    apart = f"tags {more.pop('apart', '')}"
    delete = delete or operation.replace("create", "delete")
    return Kind(service="ec2", create=operation, id=answer, delete=delete, by={argument: by}, apart=apart, **more)


def _eks(operation: str, **more: Any) -> Kind:
    """A Kind that is deleted with its cluster, and leaves nothing when it is deleted earlier."""
    return Kind(service="eks", create=operation, emulated=False, **more)


def _efs(operation: str, answer: str, **more: Any) -> Kind:
    delete = operation.replace("create", "delete")
    return Kind(service="efs", create=operation, id=answer, delete=delete, by={answer: "id"}, **more)


KINDS = {
    "aws:ec2/vpc:Vpc": _ec2("create_vpc", "Vpc.VpcId", apart="enableDnsSupport enableDnsHostnames"),
    "aws:ec2/subnet:Subnet": _ec2("create_subnet", "Subnet.SubnetId", apart="mapPublicIpOnLaunch"),
    "aws:ec2/internetGateway:InternetGateway": _ec2(
        "create_internet_gateway", "InternetGateway.InternetGatewayId", apart="vpcId"
    ),
    "aws:ec2/eip:Eip": _ec2("allocate_address", "AllocationId", "release_address"),
    "aws:ec2/natGateway:NatGateway": _ec2("create_nat_gateway", "NatGateway.NatGatewayId"),
    "aws:ec2/routeTable:RouteTable": _ec2("create_route_table", "RouteTable.RouteTableId"),
    "aws:ec2/route:Route": Kind(
        service="ec2",
        create="create_route",
        delete="delete_route",
        by={"routeTableId": "routeTableId", "destinationCidrBlock": "destinationCidrBlock"},
    ),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": _ec2(
        "associate_route_table", "AssociationId", "disassociate_route_table"
    ),
    "aws:ec2/vpcEndpoint:VpcEndpoint": _ec2(
        "create_vpc_endpoint", "VpcEndpoint.VpcEndpointId", "delete_vpc_endpoints", renamed={"policy": "policyDocument"}
    ),
    # The VPC's own group: Pulumi only adopts it, and it is deleted with the VPC.
    "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup": Kind(),
    "aws:ec2/securityGroup:SecurityGroup": _ec2(
        "create_security_group", "GroupId", renamed={"name": "groupName"}, name="name"
    ),
    # moto would only check that the groups exist, which rules.py checks as well.
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": Kind(),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": Kind(),
    "aws:ec2/launchTemplate:LaunchTemplate": _ec2(
        "create_launch_template",
        "LaunchTemplate.LaunchTemplateId",
        update="create_launch_template_version",
        renamed={"name": "launchTemplateName", "description": "versionDescription"},
        apart="updateDefaultVersion",
        name="name",
    ),
    "aws:ec2/placementGroup:PlacementGroup": _ec2(
        "create_placement_group", "", renamed={"name": "groupName"}, name="name", emulated=False
    ),
    "aws:autoscaling/tag:Tag": Kind(),
    "aws:iam/role:Role": Kind(
        service="iam",
        create="create_role",
        renamed={"name": "roleName", "assumeRolePolicy": "assumeRolePolicyDocument"},
        apart="forceDetachPolicies",
        delete="delete_role",
        by={"roleName": "id"},
        name="name",
    ),
    "aws:iam/rolePolicy:RolePolicy": Kind(
        service="iam",
        create="put_role_policy",
        update="put_role_policy",
        renamed=_ROLE_POLICY,
        delete="delete_role_policy",
        by={"roleName": "role", "policyName": "name"},
        name="name",
    ),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": Kind(
        service="iam",
        create="attach_role_policy",
        renamed={"role": "roleName"},
        delete="detach_role_policy",
        by={"roleName": "role", "policyArn": "policyArn"},
    ),
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": Kind(
        service="iam",
        create="create_open_id_connect_provider",
        id="OpenIDConnectProviderArn",
        delete="delete_open_id_connect_provider",
        by={"openIDConnectProviderArn": "id"},
    ),
    "aws:kms/key:Key": Kind(
        service="kms",
        create="create_key",
        id="KeyMetadata.KeyId",
        apart="enableKeyRotation deletionWindowInDays tags",
        delete="schedule_key_deletion",
        by={"keyId": "id", "pendingWindowInDays": "deletionWindowInDays"},
    ),
    "aws:kms/alias:Alias": Kind(
        service="kms",
        create="create_alias",
        renamed={"name": "aliasName"},
        delete="delete_alias",
        by={"aliasName": "id"},
        name="name",
    ),
    "aws:cloudwatch/logGroup:LogGroup": Kind(
        service="logs",
        create="create_log_group",
        renamed={"name": "logGroupName"},
        apart="retentionInDays skipDestroy",
        delete="delete_log_group",
        by={"logGroupName": "id"},
        name="name",
    ),
    "aws:eks/cluster:Cluster": Kind(
        service="eks",
        create="create_cluster",
        renamed={"vpcConfig": "resourcesVpcConfig"},
        apart="enabledClusterLogTypes",
        delete="delete_cluster",
        by={"name": "id"},
        name="name",
    ),
    "aws:eks/nodeGroup:NodeGroup": Kind(
        service="eks",
        create="create_nodegroup",
        renamed=_GROUP,
        apart="forceUpdateVersion",
        delete="delete_nodegroup",
        by={"clusterName": "clusterName", "nodegroupName": "nodeGroupName"},
        name="nodeGroupName",
    ),
    "aws:eks/addon:Addon": _eks(
        "create_addon",
        renamed={"resolveConflictsOnCreate": "resolveConflicts"},
        apart="preserve resolveConflictsOnUpdate",
    ),
    "aws:eks/accessEntry:AccessEntry": _eks("create_access_entry", renamed={"userName": "username"}),
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": _eks("associate_access_policy"),
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": _eks("create_pod_identity_association"),
    "aws:efs/fileSystem:FileSystem": _efs("create_file_system", "FileSystemId", apart="lifecyclePolicies protection"),
    "aws:efs/mountTarget:MountTarget": _efs("create_mount_target", "MountTargetId"),
    "aws:efs/accessPoint:AccessPoint": _efs("create_access_point", "AccessPointId"),
    "aws:efs/fileSystemPolicy:FileSystemPolicy": Kind(service="efs", create="put_file_system_policy"),
    "aws:efs/backupPolicy:BackupPolicy": Kind(service="efs", create="put_backup_policy"),
    "aws:ecr/repository:Repository": Kind(
        service="ecr",
        create="create_repository",
        renamed={"name": "repositoryName"},
        apart="forceDelete",
        delete="delete_repository",
        by={"repositoryName": "id", "force": "forceDelete"},
        name="name",
    ),
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": Kind(
        service="ecr",
        create="put_lifecycle_policy",
        renamed=_LIFECYCLE,
        delete="delete_lifecycle_policy",
        by={"repositoryName": "repository"},
    ),
}


def kind(type_: str) -> Kind:
    """Return how AWS handles a type. Raises PluginError for a type that is not in KINDS."""
    if type_ not in KINDS:
        raise PluginError(f"{type_}: unknown resource type; add it to KINDS in tests/standin/aws/kinds.py")
    return KINDS[type_]


def create(account: Account, type_: str, name: str, inputs: Inputs) -> tuple[str, dict[str, Any]]:
    """Create a resource; return (id, inputs with what AWS added). Raises PluginError if AWS refuses."""
    import jmespath

    how = kind(type_)
    id_, outputs = computed.outputs(type_, name, inputs, account.region)
    given = _arguments(account, how, how.create, inputs) if how.create else {}
    answer = account.call(how.service, how.create, **given) if how.create and how.emulated else {}
    real = jmespath.search(how.id, answer) if how.id and answer else ""
    return real or id_, _in_account(outputs, {computed.ACCOUNT: account.number, **({id_: real} if real else {})})


def update(account: Account, type_: str, inputs: Inputs) -> None:
    how = kind(type_)
    if how.update:
        account.call(how.service, how.update, **_arguments(account, how, how.update, inputs))


def delete(account: Account, type_: str, id_: str, inputs: Inputs) -> None:
    """Delete a resource. Raises PluginError if AWS refuses."""
    how = kind(type_)
    if type_ == "aws:ec2/natGateway:NatGateway":
        return _delete_nat_gateway(account, id_, inputs["subnetId"])
    if type_ == "aws:ec2/subnet:Subnet":
        for found in account.interfaces(id_):
            held = f"network interface {found['NetworkInterfaceId']} {found['Description']}"
            raise PluginError(f"DependencyViolation: subnet {id_} cannot be deleted: {held}")
    if how.delete and how.emulated:
        given = {argument: id_ if key == "id" else inputs.get(key) for argument, key in how.by.items()}
        account.call(how.service, how.delete, **account.arguments(how.service, how.delete, given))
    return None


def _delete_nat_gateway(account: Account, id_: str, subnet: str) -> None:
    """Delete a NAT gateway, and release its interface and its address as AWS does: moto keeps both."""
    (gateway,) = account.call("ec2", "describe_nat_gateways", NatGatewayIds=[id_])["NatGateways"]
    account.call("ec2", "delete_nat_gateway", NatGatewayId=id_)
    own = [address.get("NetworkInterfaceId") for address in gateway["NatGatewayAddresses"]]
    for held in account.call("ec2", "describe_addresses")["Addresses"]:
        if held.get("AssociationId") and held.get("NetworkInterfaceId") in own:
            account.call("ec2", "disassociate_address", AssociationId=held["AssociationId"])
    for found in account.interfaces(subnet):
        if found["NetworkInterfaceId"] in own:
            account.call("ec2", "delete_network_interface", NetworkInterfaceId=found["NetworkInterfaceId"])


def _arguments(account: Account, how: Kind, operation: str, inputs: Inputs) -> dict[str, Any]:
    given = {how.renamed.get(key, key): value for key, value in inputs.items() if key not in how.apart.split()}
    if how.create == "create_launch_template":
        given = _template(given)
    return account.arguments(how.service, operation, given)


def _template(given: Inputs) -> dict[str, Any]:
    """Move the resource's inputs into launchTemplateData, the single argument in which AWS expects them."""
    whole = {key: value for key, value in given.items() if key in ("launchTemplateName", "versionDescription")}
    data = {
        "securityGroupIds" if key == "vpcSecurityGroupIds" else key: given[key] for key in given if key not in whole
    }
    if "networkInterfaces" in data:
        groups = {"securityGroups": "groups"}
        data["networkInterfaces"] = [
            {groups.get(key, key): value for key, value in item.items()} for item in data["networkInterfaces"]
        ]
    return {**whole, "launchTemplateData": data}


def _in_account(value: Any, real: Mapping[str, str]) -> Any:
    """Replace a recording's ids in outputs by those that AWS gave."""
    if isinstance(value, dict):
        return {key: _in_account(item, real) for key, item in value.items()}
    if isinstance(value, list):
        return [_in_account(item, real) for item in value]
    if isinstance(value, str):
        for made_up, given in real.items():
            value = value.replace(made_up, given)
    return value
