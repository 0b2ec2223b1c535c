"""IAM roles: who may assume them, and no more rights than their work needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.cluster import AUTOSCALER, READER
from infra.config import StackConfig
from infra.eks.scope import Scope
from infra.features import features

#: AWS's services that assume a role; the last one assumes it for pods.
CONTROL_PLANE, MACHINES, PODS = "eks.amazonaws.com", "ec2.amazonaws.com", "pods.eks.amazonaws.com"
#: Prefix of cluster-autoscaler's tags on Auto Scaling groups; EKS tags those of its node groups OWNER/CLUSTER = owned.
OWNER = "k8s.io/cluster-autoscaler"


@dataclass(frozen=True)
class Identity:
    """A role, and what must exist before it can do its work."""

    role: aws.iam.Role
    grants: list[pulumi.Resource]


def needed(feature: str, whose: str) -> list[str]:
    """The policies or actions that a feature needs for one identity (features.yaml)."""
    return list(features("eks")[feature].roles[whose])


def identity(
    name: str,
    scope: Scope,
    service: str,
    *,
    policies: Sequence[str] = (),
    statements: Mapping[str, pulumi.Input[Sequence[Mapping[str, Any]]]] | None = None,
) -> Identity:
    """A role that `service` assumes, with AWS's own `policies` and with `statements` by the name of their policy."""
    actions = ["sts:AssumeRole", "sts:TagSession"] if service == PODS else ["sts:AssumeRole"]
    trust = {"Effect": "Allow", "Principal": {"Service": service}, "Action": actions}
    role = aws.iam.Role(
        name,
        name=f"{scope.name}-{name}",
        assume_role_policy=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
        opts=scope.options(),
    )
    attached: list[pulumi.Resource] = [
        aws.iam.RolePolicyAttachment(
            f"{name}-{policy}", role=role.name, policy_arn=f"arn:aws:iam::aws:policy/{policy}", opts=scope.options()
        )
        for policy in policies
    ]
    attached += [
        aws.iam.RolePolicy(
            f"{name}-{title}",
            name=title,
            role=role.name,
            policy=pulumi.Output.from_input(wanted).apply(_document),
            opts=scope.options(),
        )
        for title, wanted in (statements or {}).items()
    ]
    return Identity(role, [role, *attached])


def _document(statements: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def for_nodes(scope: Scope) -> Identity:
    """Let nodes join the cluster and pull images. The network plug-in has its own role for the pods' addresses."""
    return identity("nodes", scope, MACHINES, policies=[*needed("nodes", "nodes"), *needed("registry", "nodes")])


def pod_identity(
    name: str, scope: Scope, cluster: aws.eks.Cluster, namespace: str, account: str, who: Identity
) -> aws.eks.PodIdentityAssociation:
    """Give a service account's pods the role. Pods that exist already do not get it, so they are made after it."""
    return aws.eks.PodIdentityAssociation(
        name,
        cluster_name=cluster.name,
        namespace=namespace,
        service_account=account,
        role_arn=who.role.arn,
        # EKS deletes it with the cluster.
        opts=scope.options(depends_on=who.grants, deleted_with=cluster),
    )


def autoscaler(scope: Scope, cluster: aws.eks.Cluster) -> aws.eks.PodIdentityAssociation:
    """Let the cluster-autoscaler describe all groups, which AWS cannot restrict, and change only this cluster's.

    It learns the labels, taints and accelerators of an empty group from eks:DescribeNodegroup and
    ec2:DescribeInstanceTypes, so the Auto Scaling groups need no tags for them.
    """
    described = "eks:DescribeNodegroup"
    actions = [action for action in needed("autoscaler", "autoscaler") if action != described]
    look = [action for action in actions if action.split(":")[1].startswith(("Describe", "Get"))]
    change = [action for action in actions if action not in look]
    owned = {"StringEquals": {f"aws:ResourceTag/{OWNER}/{scope.name}": "owned"}}

    def statements(arn: str) -> list[dict[str, Any]]:
        groups = f"{arn.replace(':cluster/', ':nodegroup/')}/*"
        return [
            {"Effect": "Allow", "Action": look, "Resource": "*"},
            {"Effect": "Allow", "Action": change, "Resource": "*", "Condition": owned},
            {"Effect": "Allow", "Action": described, "Resource": groups},
        ]

    who = identity("autoscaler", scope, PODS, statements={"scale": cluster.arn.apply(statements)})
    return pod_identity("autoscaler", scope, cluster, "kube-system", AUTOSCALER, who)


def bucket_reader(config: StackConfig, scope: Scope, cluster: aws.eks.Cluster) -> aws.eks.PodIdentityAssociation | None:
    """Let the Kubernetes account READER read the buckets that `dataset.input` names; None: it names none."""
    buckets = config.dataset.buckets("s3")
    if not buckets:
        return None
    arns = [f"arn:aws:s3:::{bucket}" for bucket in buckets]
    statements = [
        {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetBucketLocation"], "Resource": arns},
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": [f"{arn}/*" for arn in arns]},
    ]
    who = identity("reader", scope, PODS, statements={"buckets": statements})
    return pod_identity("reader", scope, cluster, config.cluster.namespace, READER, who)


def oidc(scope: Scope, cluster: aws.eks.Cluster) -> aws.iam.OpenIdConnectProvider:
    """The OIDC provider for software that assumes roles with its service account's token (IRSA)."""
    return aws.iam.OpenIdConnectProvider(
        "oidc",
        url=cluster.identities[0].oidcs[0].issuer.apply(lambda issuer: issuer or ""),
        client_id_lists=["sts.amazonaws.com"],
        opts=scope.options(),
    )
