"""IAM's roles and their policies, KMS keys, and CloudWatch's log groups."""

from __future__ import annotations

from typing import Any

from .account import Account, Inputs, split
from .kind import Kind, Made, deletes


def _role(account: Account, inputs: Inputs) -> Made:
    rest, _ = split(inputs, "forceDetachPolicies")
    renamed = {"name": "roleName", "assumeRolePolicy": "assumeRolePolicyDocument"}
    arguments = account.translated("iam", "create_role", rest, renamed)
    role = account.call("iam", "create_role", **arguments)["Role"]
    return role["RoleName"], {"name": role["RoleName"], "arn": role["Arn"], "uniqueId": role["RoleId"]}


def _role_policy(account: Account, inputs: Inputs) -> Made:
    role, name = inputs["role"], inputs["name"]
    account.call("iam", "put_role_policy", RoleName=role, PolicyName=name, PolicyDocument=inputs["policy"])
    return f"{role}:{name}", {}


def _change_role_policy(account: Account, id_: str, state: Inputs, inputs: Inputs) -> dict[str, Any]:
    return _role_policy(account, inputs)[1]


def _delete_role_policy(account: Account, id_: str, state: Inputs) -> None:
    account.call("iam", "delete_role_policy", RoleName=state["role"], PolicyName=state["name"])


def _attachment(account: Account, inputs: Inputs) -> Made:
    account.call("iam", "attach_role_policy", RoleName=inputs["role"], PolicyArn=inputs["policyArn"])
    return f"{inputs['role']}-{inputs['policyArn']}", {}


def _detach(account: Account, id_: str, state: Inputs) -> None:
    account.call("iam", "detach_role_policy", RoleName=state["role"], PolicyArn=state["policyArn"])


def _oidc_provider(account: Account, inputs: Inputs) -> Made:
    renamed = {"clientIdLists": "clientIDList", "thumbprintLists": "thumbprintList"}
    arguments = account.translated("iam", "create_open_id_connect_provider", inputs, renamed)
    made = account.call("iam", "create_open_id_connect_provider", **arguments)
    arn = made["OpenIDConnectProviderArn"]
    return arn, {"arn": arn, "url": inputs["url"].removeprefix("https://")}


def _key(account: Account, inputs: Inputs) -> Made:
    rest, apart = split(
        inputs, "enableKeyRotation", "deletionWindowInDays", "tags", "isEnabled", "rotationPeriodInDays"
    )
    arguments = account.translated("kms", "create_key", rest, {"customerMasterKeySpec": "keySpec"})
    tags = [{"TagKey": key, "TagValue": value} for key, value in (inputs.get("tags") or {}).items()]
    key = account.call("kms", "create_key", **arguments, Tags=tags)["KeyMetadata"]
    if apart["enableKeyRotation"]:
        account.call("kms", "enable_key_rotation", KeyId=key["KeyId"])
    return key["KeyId"], {"keyId": key["KeyId"], "arn": key["Arn"]}


def _delete_key(account: Account, id_: str, state: Inputs) -> None:
    days = int(state.get("deletionWindowInDays") or 30)
    account.call("kms", "schedule_key_deletion", KeyId=id_, PendingWindowInDays=days)


def _alias(account: Account, inputs: Inputs) -> Made:
    account.call("kms", "create_alias", AliasName=inputs["name"], TargetKeyId=inputs["targetKeyId"])
    return inputs["name"], {"arn": f"arn:aws:kms:{account.region}:{account.number}:{inputs['name']}"}


def _log_group(account: Account, inputs: Inputs) -> Made:
    rest, apart = split(inputs, "retentionInDays", "skipDestroy")
    arguments = account.translated("logs", "create_log_group", rest, {"name": "logGroupName"})
    account.call("logs", "create_log_group", **arguments)
    if apart["retentionInDays"]:
        _keep_for(account, inputs)
    return inputs["name"], {"arn": f"arn:aws:logs:{account.region}:{account.number}:log-group:{inputs['name']}"}


def _keep_for(account: Account, inputs: Inputs) -> None:
    days = int(inputs["retentionInDays"])
    account.call("logs", "put_retention_policy", logGroupName=inputs["name"], retentionInDays=days)


def _change_log_group(account: Account, id_: str, state: Inputs, inputs: Inputs) -> dict[str, Any]:
    _keep_for(account, inputs)
    return {"arn": state["arn"]}


def _delete_log_group(account: Account, id_: str, state: Inputs) -> None:
    if not state.get("skipDestroy"):
        account.call("logs", "delete_log_group", logGroupName=id_)


KINDS = {
    "aws:iam/role:Role": Kind(
        create=_role,
        delete=deletes("iam", "delete_role", "RoleName"),
        name="name",
    ),
    "aws:iam/rolePolicy:RolePolicy": Kind(
        create=_role_policy, delete=_delete_role_policy, update=_change_role_policy, name="name"
    ),
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": Kind(create=_attachment, delete=_detach),
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": Kind(
        create=_oidc_provider,
        delete=deletes("iam", "delete_open_id_connect_provider", "OpenIDConnectProviderArn"),
    ),
    "aws:kms/key:Key": Kind(create=_key, delete=_delete_key),
    "aws:kms/alias:Alias": Kind(
        create=_alias,
        delete=deletes("kms", "delete_alias", "AliasName"),
        name="name",
    ),
    "aws:cloudwatch/logGroup:LogGroup": Kind(
        create=_log_group, delete=_delete_log_group, update=_change_log_group, name="name"
    ),
}
