"""What holds data and what nodes start from: EFS, ECR, launch templates and placement groups."""

from __future__ import annotations

import uuid
from typing import Any

from .account import Account, Inputs, split, tag_specification
from .kind import Kind, Made, deletes


def _file_system(account: Account, inputs: Inputs) -> Made:
    rest, apart = split(inputs, "lifecyclePolicies", "protection")
    token = inputs.get("creationToken") or uuid.uuid4().hex
    arguments = account.translated("efs", "create_file_system", {**rest, "creationToken": token})
    made = account.call("efs", "create_file_system", **arguments)
    id_ = made["FileSystemId"]
    if apart["lifecyclePolicies"]:
        _lifecycle(account, id_, apart["lifecyclePolicies"])
    dns = f"{id_}.efs.{account.region}.amazonaws.com"
    return id_, {"arn": made["FileSystemArn"], "dnsName": dns, "creationToken": made["CreationToken"]}


def _lifecycle(account: Account, id_: str, policies: list[dict[str, Any]]) -> None:
    arguments = account.translated("efs", "put_lifecycle_configuration", {"lifecyclePolicies": policies})
    account.call("efs", "put_lifecycle_configuration", FileSystemId=id_, **arguments)


def _change_file_system(account: Account, id_: str, state: Inputs, inputs: Inputs) -> dict[str, Any]:
    if state.get("lifecyclePolicies") != inputs.get("lifecyclePolicies"):
        _lifecycle(account, id_, inputs.get("lifecyclePolicies") or [])
    return {key: state[key] for key in ("arn", "dnsName", "creationToken")}


def _mount_target(account: Account, inputs: Inputs) -> Made:
    made = account.call("efs", "create_mount_target", **account.translated("efs", "create_mount_target", inputs))
    dns = f"{inputs['fileSystemId']}.efs.{account.region}.amazonaws.com"
    return made["MountTargetId"], {
        "ipAddress": made.get("IpAddress"),
        "networkInterfaceId": made["NetworkInterfaceId"],
        "dnsName": dns,
    }


def _access_point(account: Account, inputs: Inputs) -> Made:
    values = {**inputs, "clientToken": uuid.uuid4().hex}
    made = account.call("efs", "create_access_point", **account.translated("efs", "create_access_point", values))
    return made["AccessPointId"], {"arn": made["AccessPointArn"]}


def _file_system_policy(account: Account, inputs: Inputs) -> Made:
    account.call("efs", "put_file_system_policy", FileSystemId=inputs["fileSystemId"], Policy=inputs["policy"])
    return inputs["fileSystemId"], {}


def _backup(account: Account, inputs: Inputs) -> Made:
    policy = {"Status": inputs["backupPolicy"]["status"]}
    account.call("efs", "put_backup_policy", FileSystemId=inputs["fileSystemId"], BackupPolicy=policy)
    return inputs["fileSystemId"], {}


def _repository(account: Account, inputs: Inputs) -> Made:
    rest, _ = split(inputs, "forceDelete")
    renamed = {
        "name": "repositoryName",
        "encryptionConfigurations": "encryptionConfiguration",
    }
    given = {key: value[0] if key == "encryptionConfigurations" and value else value for key, value in rest.items()}
    arguments = account.translated("ecr", "create_repository", given, renamed)
    made = account.call("ecr", "create_repository", **arguments)["repository"]
    return inputs["name"], {
        "arn": made["repositoryArn"],
        "registryId": made["registryId"],
        "repositoryUrl": f"{account.number}.dkr.ecr.{account.region}.amazonaws.com/{inputs['name']}",
    }


def _delete_repository(account: Account, id_: str, state: Inputs) -> None:
    account.call("ecr", "delete_repository", repositoryName=id_, force=bool(state.get("forceDelete")))


def _lifecycle_policy(account: Account, inputs: Inputs) -> Made:
    text = inputs["policy"]
    account.call("ecr", "put_lifecycle_policy", repositoryName=inputs["repository"], lifecyclePolicyText=text)
    return inputs["repository"], {"registryId": account.number}


def _template_data(account: Account, inputs: Inputs) -> dict[str, Any]:
    rest, _ = split(
        inputs, "name", "description", "tags", "updateDefaultVersion", "defaultVersion", "latestVersion", "arn"
    )
    data = {"securityGroupIds" if key == "vpcSecurityGroupIds" else key: value for key, value in rest.items()}
    for interface in data.get("networkInterfaces") or []:
        if "securityGroups" in interface:
            interface["groups"] = interface.pop("securityGroups")
    translated = account.translated("ec2", "create_launch_template", {"launchTemplateData": data})
    return translated["LaunchTemplateData"]


def _launch_template(account: Account, inputs: Inputs) -> Made:
    made = account.call(
        "ec2",
        "create_launch_template",
        LaunchTemplateName=inputs["name"],
        VersionDescription=inputs.get("description"),
        LaunchTemplateData=_template_data(account, inputs),
        TagSpecifications=tag_specification("launch-template", inputs),
    )["LaunchTemplate"]
    id_ = made["LaunchTemplateId"]
    arn = f"arn:aws:ec2:{account.region}:{account.number}:launch-template/{id_}"
    return id_, {"arn": arn, "latestVersion": 1, "defaultVersion": 1}


def _change_launch_template(account: Account, id_: str, state: Inputs, inputs: Inputs) -> dict[str, Any]:
    data = _template_data(account, inputs)
    made = account.call("ec2", "create_launch_template_version", LaunchTemplateId=id_, LaunchTemplateData=data)
    latest = made["LaunchTemplateVersion"]["VersionNumber"]
    default = latest if inputs.get("updateDefaultVersion") else int(state["defaultVersion"])
    return {"arn": state["arn"], "latestVersion": latest, "defaultVersion": default}


def _placement_group(account: Account, inputs: Inputs) -> Made:
    rest, _ = split(inputs, "tags")
    arguments = account.translated("ec2", "create_placement_group", rest, {"name": "groupName"})
    account.call("ec2", "create_placement_group", **arguments)
    return inputs["name"], {"arn": f"arn:aws:ec2:{account.region}:{account.number}:placement-group/{inputs['name']}"}


KINDS = {
    "aws:efs/fileSystem:FileSystem": Kind(
        create=_file_system, delete=deletes("efs", "delete_file_system", "FileSystemId"), update=_change_file_system
    ),
    "aws:efs/mountTarget:MountTarget": Kind(
        create=_mount_target, delete=deletes("efs", "delete_mount_target", "MountTargetId")
    ),
    "aws:efs/accessPoint:AccessPoint": Kind(
        create=_access_point, delete=deletes("efs", "delete_access_point", "AccessPointId")
    ),
    "aws:efs/fileSystemPolicy:FileSystemPolicy": Kind(create=_file_system_policy),
    "aws:efs/backupPolicy:BackupPolicy": Kind(create=_backup),
    "aws:ecr/repository:Repository": Kind(create=_repository, delete=_delete_repository, name="name"),
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": Kind(
        create=_lifecycle_policy, delete=deletes("ecr", "delete_lifecycle_policy", "repositoryName")
    ),
    "aws:ec2/launchTemplate:LaunchTemplate": Kind(
        create=_launch_template,
        delete=deletes("ec2", "delete_launch_template", "LaunchTemplateId"),
        update=_change_launch_template,
        name="name",
    ),
    "aws:ec2/placementGroup:PlacementGroup": Kind(
        create=_placement_group, delete=deletes("ec2", "delete_placement_group", "GroupName"), name="name"
    ),
}
