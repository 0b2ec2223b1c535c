"""EKS: the cluster with what AWS makes beside it, its add-ons, node groups and who may do what in it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from local.plugin.errors import PluginError

from . import policies
from .account import Account, Inputs, Refused, split
from .kind import Kind, Made
from .network import interfaces

#: On what EKS makes for a cluster, as EKS does it.
OWNED = "aws:eks:cluster-name"


def _vpc_config(inputs: Inputs) -> dict[str, Any]:
    config = inputs["vpcConfig"]
    return {key: config[key] for key in config if key not in ("vpcId", "clusterSecurityGroupId")}


def _logging(inputs: Inputs) -> dict[str, Any]:
    return {"clusterLogging": [{"types": inputs.get("enabledClusterLogTypes") or [], "enabled": True}]}


def _cluster(account: Account, inputs: Inputs) -> Made:
    name = inputs["name"]
    rest, _ = split(inputs, "vpcConfig", "enabledClusterLogTypes", "defaultAddonsToRemoves", "forceUpdateVersion")
    values = {**rest, "resourcesVpcConfig": _vpc_config(inputs), "logging": _logging(inputs)}
    made = account.call("eks", "create_cluster", **account.translated("eks", "create_cluster", values))["cluster"]
    vpc, group = _made_beside(account, name, inputs)
    return name, {
        "arn": made["arn"],
        "endpoint": made["endpoint"],
        "certificateAuthority": {"data": made["certificateAuthority"]["data"]},
        "identities": [{"oidcs": [made["identity"]["oidc"]]}],
        "vpcConfig": {"vpcId": vpc, "clusterSecurityGroupId": group},
        "platformVersion": made["platformVersion"],
        "status": made["status"],
    }


def _made_beside(account: Account, name: str, inputs: Inputs) -> tuple[str, str]:
    """(VPC, security group): EKS makes a security group, network interfaces in the subnets, and a log group if there
    is none."""
    subnets = [str(subnet) for subnet in inputs["vpcConfig"]["subnetIds"]]
    vpc = account.call("ec2", "describe_subnets", SubnetIds=subnets)["Subnets"][0]["VpcId"]
    tags = [{"Key": OWNED, "Value": name}]
    group = account.call(
        "ec2",
        "create_security_group",
        GroupName=f"eks-cluster-sg-{name}",
        Description="EKS created security group",
        VpcId=vpc,
        TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
    )["GroupId"]
    for subnet in subnets[:2]:
        add_interface(
            account, subnet, [group, *(inputs["vpcConfig"].get("securityGroupIds") or [])], f"Amazon EKS {name}"
        )
    keep_log_group(account, name, inputs)
    return vpc, group


def add_interface(account: Account, subnet: str, groups: list[str], description: str) -> None:
    account.call("ec2", "create_network_interface", SubnetId=subnet, Groups=groups, Description=description)


def keep_log_group(account: Account, cluster: str, inputs: Inputs) -> None:
    """A cluster that logs makes its group when there is none, as often as somebody deletes it, if its role may."""
    if inputs.get("enabledClusterLogTypes") and makes_log_group(account, inputs["roleArn"]):
        with suppress(Refused):
            account.call("logs", "create_log_group", logGroupName=log_group(cluster))


def makes_log_group(account: Account, role: str) -> bool:
    return not policies.denied(account, policies.role_name(role), "logs:CreateLogGroup")


def log_group(cluster: str) -> str:
    return f"/aws/eks/{cluster}/cluster"


def cluster_group(account: Account, cluster: str) -> str:
    """The security group that EKS made for a cluster."""
    filters = [{"Name": f"tag:{OWNED}", "Values": [cluster]}]
    return account.call("ec2", "describe_security_groups", Filters=filters)["SecurityGroups"][0]["GroupId"]


def _change_cluster(account: Account, id_: str, state: Inputs, inputs: Inputs) -> dict[str, Any]:
    # One change at a time is all that EKS takes.
    if state.get("vpcConfig") != inputs.get("vpcConfig"):
        changed = {key: value for key, value in _vpc_config(inputs).items() if value != state["vpcConfig"].get(key)}
        account.call("eks", "update_cluster_config", name=id_, resourcesVpcConfig=changed)
    if state.get("enabledClusterLogTypes") != inputs.get("enabledClusterLogTypes"):
        account.call("eks", "update_cluster_config", name=id_, logging=_logging(inputs))
    keys = ("arn", "endpoint", "certificateAuthority", "identities", "platformVersion", "status")
    kept = {key: state["vpcConfig"][key] for key in ("vpcId", "clusterSecurityGroupId")}
    return {**{key: state[key] for key in keys}, "vpcConfig": kept}


def _delete_cluster(account: Account, id_: str, state: Inputs) -> None:
    group = cluster_group(account, id_)
    # To the end it writes its log: a group that was deleted before comes back, without a retention.
    keep_log_group(account, id_, state)
    account.call("eks", "delete_cluster", name=id_)
    for interface in interfaces(account, "group-id", group):
        # What its own nodes' CNI has left, EKS does not clean up.
        if interface["Description"] == f"Amazon EKS {id_}":
            account.call("ec2", "delete_network_interface", NetworkInterfaceId=interface["NetworkInterfaceId"])
    if not interfaces(account, "group-id", group):
        account.call("ec2", "delete_security_group", GroupId=group)


def _node_group(account: Account, inputs: Inputs) -> Made:
    cluster, name = inputs["clusterName"], inputs["nodeGroupName"]
    rest, _ = split(inputs, "forceUpdateVersion")
    renamed = {"nodeGroupName": "nodegroupName", "nodeRoleArn": "nodeRole", "subnetIds": "subnets"}
    made = account.call("eks", "create_nodegroup", **account.translated("eks", "create_nodegroup", rest, renamed))
    for subnet in inputs["subnetIds"]:
        # The CNI's own, for pods; it frees them while it lives.
        add_interface(account, subnet, [cluster_group(account, cluster)], _of_nodes(cluster, name))
    return f"{cluster}:{name}", _node_group_outputs(made["nodegroup"])


def _of_nodes(cluster: str, group: str) -> str:
    return f"aws-K8S-{cluster}-{group}"


def _node_group_outputs(made: dict[str, Any]) -> dict[str, Any]:
    groups = [{"name": group["name"]} for group in made["resources"]["autoScalingGroups"]]
    return {
        "arn": made["nodegroupArn"],
        "status": made["status"],
        "resources": [{"autoscalingGroups": groups, "remoteAccessSecurityGroupId": ""}],
    }


def _change_node_group(account: Account, id_: str, state: Inputs, inputs: Inputs) -> dict[str, Any]:
    cluster, name = id_.split(":")
    where = {"clusterName": cluster, "nodegroupName": name}
    if any(state.get(key) != inputs.get(key) for key in ("launchTemplate", "version", "releaseVersion")):
        keys = ("launchTemplate", "version", "releaseVersion")
        values = {key: inputs[key] for key in keys if inputs.get(key) is not None}
        arguments = account.translated("eks", "update_nodegroup_version", {**where, **values})
        account.call("eks", "update_nodegroup_version", **arguments)
    if state.get("scalingConfig") != inputs.get("scalingConfig"):
        values = {**where, "scalingConfig": inputs["scalingConfig"]}
        arguments = account.translated("eks", "update_nodegroup_config", values)
        account.call("eks", "update_nodegroup_config", **arguments)
    return {key: state[key] for key in ("arn", "status", "resources")}


def _delete_node_group(account: Account, id_: str, state: Inputs) -> None:
    cluster, name = id_.split(":")
    with_cni = "vpc-cni" in account.call("eks", "list_addons", clusterName=cluster)["addons"]
    account.call("eks", "delete_nodegroup", clusterName=cluster, nodegroupName=name)
    for interface in interfaces(account, "group-id", cluster_group(account, cluster)):
        if with_cni and interface["Description"] == _of_nodes(cluster, name):
            account.call("ec2", "delete_network_interface", NetworkInterfaceId=interface["NetworkInterfaceId"])


def _addon_arguments(account: Account, operation: str, inputs: Inputs) -> dict[str, Any]:
    mode = "resolveConflictsOnCreate" if operation == "create_addon" else "resolveConflictsOnUpdate"
    rest, apart = split(inputs, "preserve", "resolveConflictsOnCreate", "resolveConflictsOnUpdate")
    if operation != "create_addon":
        rest.pop("tags", None)
    return account.translated("eks", operation, {**rest, "resolveConflicts": apart[mode]})


def _addon(account: Account, inputs: Inputs) -> Made:
    made = account.call("eks", "create_addon", **_addon_arguments(account, "create_addon", inputs))["addon"]
    return f"{inputs['clusterName']}:{inputs['addonName']}", {"arn": made["addonArn"]}


def _change_addon(account: Account, id_: str, state: Inputs, inputs: Inputs) -> dict[str, Any]:
    account.call("eks", "update_addon", **_addon_arguments(account, "update_addon", inputs))
    return {"arn": state["arn"]}


def _delete_addon(account: Account, id_: str, state: Inputs) -> None:
    cluster, name = id_.split(":")
    account.call("eks", "delete_addon", clusterName=cluster, addonName=name, preserve=bool(state.get("preserve")))


def _access_entry(account: Account, inputs: Inputs) -> Made:
    renamed = {"userName": "username"}
    arguments = account.translated("eks", "create_access_entry", inputs, renamed)
    made = account.call("eks", "create_access_entry", **arguments)["accessEntry"]
    return f"{inputs['clusterName']}:{inputs['principalArn']}", {"accessEntryArn": made["accessEntryArn"]}


def _delete_access_entry(account: Account, id_: str, state: Inputs) -> None:
    account.call("eks", "delete_access_entry", clusterName=state["clusterName"], principalArn=state["principalArn"])


def _access_policy(account: Account, inputs: Inputs) -> Made:
    account.call("eks", "associate_access_policy", **account.translated("eks", "associate_access_policy", inputs))
    return "#".join(inputs[key] for key in ("clusterName", "principalArn", "policyArn")), {}


def _delete_access_policy(account: Account, id_: str, state: Inputs) -> None:
    keys = ("clusterName", "principalArn", "policyArn")
    account.call("eks", "disassociate_access_policy", **{key: state[key] for key in keys})


def _pod_identity(account: Account, inputs: Inputs) -> Made:
    arguments = account.translated("eks", "create_pod_identity_association", inputs)
    made = account.call("eks", "create_pod_identity_association", **arguments)["association"]
    return made["associationId"], {"associationId": made["associationId"], "associationArn": made["associationArn"]}


def _delete_pod_identity(account: Account, id_: str, state: Inputs) -> None:
    account.call("eks", "delete_pod_identity_association", clusterName=state["clusterName"], associationId=id_)


def _group_tag(account: Account, inputs: Inputs) -> Made:
    """Of an Auto Scaling group that EKS has made; the emulated EKS tells of its groups, and makes none to tag."""
    group = inputs["autoscalingGroupName"]
    known = {
        made["name"]
        for cluster in account.call("eks", "list_clusters")["clusters"]
        for name in account.call("eks", "list_nodegroups", clusterName=cluster)["nodegroups"]
        for made in account.call("eks", "describe_nodegroup", clusterName=cluster, nodegroupName=name)["nodegroup"][
            "resources"
        ]["autoScalingGroups"]
    }
    if group not in known:
        raise PluginError(f"ValidationError: AutoScalingGroup name not found: {group}")
    return f"{group},{inputs['tag']['key']}", {}


KINDS = {
    "aws:autoscaling/tag:Tag": Kind(create=_group_tag),
    "aws:eks/cluster:Cluster": Kind(create=_cluster, delete=_delete_cluster, update=_change_cluster, name="name"),
    "aws:eks/nodeGroup:NodeGroup": Kind(
        create=_node_group, delete=_delete_node_group, update=_change_node_group, name="nodeGroupName"
    ),
    "aws:eks/addon:Addon": Kind(create=_addon, delete=_delete_addon, update=_change_addon),
    "aws:eks/accessEntry:AccessEntry": Kind(create=_access_entry, delete=_delete_access_entry),
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": Kind(
        create=_access_policy, delete=_delete_access_policy
    ),
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": Kind(create=_pod_identity, delete=_delete_pod_identity),
}
