"""Whether a role can be assumed by its user and allows what its user does.

moto simulates no policies, so statements are read: `Allow` of an action counts, wherever it is limited to certain
resources or tags; a `Deny` without a condition takes away. The policies that AWS manages are the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

from infra.needs import features

from .account import Account, Refused

_INTERFACES = tuple(
    f"ec2:{action}"
    for action in (
        "AssignPrivateIpAddresses",
        "AttachNetworkInterface",
        "CreateNetworkInterface",
        "CreateTags",
        "DeleteNetworkInterface",
        "DescribeInstances",
        "DescribeInstanceTypes",
        "DescribeNetworkInterfaces",
        "DetachNetworkInterface",
        "ModifyNetworkInterfaceAttribute",
        "UnassignPrivateIpAddresses",
    )
)
#: What the control plane does with the cluster's role (EKS user guide, "Amazon EKS cluster IAM role").
CLUSTER = ("ec2:CreateTags", "ec2:DescribeInstances", "ec2:DescribeSubnets", "ec2:DescribeVpcs", "kms:DescribeKey")
#: What every node does: join, pull from the registry, fetch credentials for pods.
NODE = (
    "ec2:DescribeInstances",
    "eks-auth:AssumeRoleForPodIdentity",
    "ecr:GetAuthorizationToken",
    "ecr:BatchGetImage",
    "ecr:GetDownloadUrlForLayer",
)
#: Service account -> what its pods do.
PODS = {
    "kube-system/aws-node": _INTERFACES,
    "kube-system/efs-csi-controller-sa": features("eks")["efs"].roles["driver"],
    "kube-system/cluster-autoscaler": features("eks")["autoscaler"].roles["autoscaler"],
}


#: Policies that AWS manages are the same in every account.
_managed: dict[str, Any] = {}


def role_name(arn: str) -> str:
    return arn.rsplit("/", 1)[1]


def require_trust(account: Account, arn: str, service: str, actions: Iterable[str] = ("sts:AssumeRole",)) -> None:
    """Raises Refused when a service cannot assume the role."""
    try:
        role = account.call("iam", "get_role", RoleName=role_name(arn))["Role"]
    except Refused:
        role = None
    if role is None or role["Arn"] != arn:
        raise Refused("InvalidParameterException", f"role {arn} could not be assumed because it does not exist")
    trusted = [
        statement for statement in statements(role["AssumeRolePolicyDocument"]) if service in _services(statement)
    ]
    for action in actions:
        if not _allowed(trusted, action):
            raise Refused("InvalidParameterException", f"role {arn} does not let {service} do {action}")


def missing(account: Account, role: str, actions: Iterable[str]) -> list[str]:
    """The actions that a role does not allow."""
    said = _of_role(account, role)
    return [action for action in actions if not _allowed(said, action)]


def grants(account: Account, role: str, wanted: str) -> bool:
    """Whether a role has a policy that AWS manages, by its name, or allows an action."""
    if ":" in wanted:
        return not missing(account, role, [wanted])
    attached = account.call("iam", "list_attached_role_policies", RoleName=role)["AttachedPolicies"]
    return wanted in {policy["PolicyName"] for policy in attached}


def denied(account: Account, role: str, action: str) -> bool:
    """Whether a policy of the role forbids an action, whoever allows it."""
    return any(item["Effect"] == "Deny" and _names(item, action) for item in _of_role(account, role))


def _of_role(account: Account, role: str) -> list[dict[str, Any]]:
    return [statement for document in _documents(account, role) for statement in statements(document)]


def _documents(account: Account, role: str) -> Iterator[Any]:
    for attached in account.call("iam", "list_attached_role_policies", RoleName=role)["AttachedPolicies"]:
        arn = attached["PolicyArn"]
        document = _managed.get(arn) or _document(account, arn)
        if arn.startswith("arn:aws:iam::aws:"):
            _managed[arn] = document
        yield document
    for name in account.call("iam", "list_role_policies", RoleName=role)["PolicyNames"]:
        yield account.call("iam", "get_role_policy", RoleName=role, PolicyName=name)["PolicyDocument"]


def _document(account: Account, arn: str) -> Any:
    version = account.call("iam", "get_policy", PolicyArn=arn)["Policy"]["DefaultVersionId"]
    answer = account.call("iam", "get_policy_version", PolicyArn=arn, VersionId=version)
    return answer["PolicyVersion"]["Document"]


def statements(document: Any) -> list[dict[str, Any]]:
    """The statements of a policy, as text or as read. Raises ValueError or KeyError for what is no policy."""
    content = json.loads(unquote(document)) if isinstance(document, str) else document
    return _list(content["Statement"])


def _services(statement: dict[str, Any]) -> list[str]:
    principal = statement.get("Principal")
    return _list(principal.get("Service")) if isinstance(principal, dict) else []


def _allowed(among: list[dict[str, Any]], action: str) -> bool:
    said = [statement for statement in among if _names(statement, action)]
    denied = any(statement["Effect"] == "Deny" and not statement.get("Condition") for statement in said)
    return not denied and any(statement["Effect"] == "Allow" for statement in said)


def _names(statement: dict[str, Any], action: str) -> bool:
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in _list(statement.get("Action")))


def _list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
