"""The control plane: open to an allow-list of addresses with IAM identities; the stack owns its log group and the key
of its Secrets."""

from __future__ import annotations

import re

import pulumi
import pulumi_aws as aws

from infra.config import StackConfig
from infra.eks.identity import CONTROL_PLANE, identity, needed
from infra.eks.keys import EksConfig
from infra.eks.network import Network
from infra.eks.rules import SERVICES
from infra.eks.scope import Scope
from infra.scope import LONG
from infra.scope import kubeconfig as written

#: Days for which a deleted KMS key can be restored: the minimum that AWS allows. It is not billed meanwhile.
KEY_DAYS = 7
ADMIN = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
#: Get, list and watch of everything. AmazonEKSViewPolicy lacks Secrets and what is in no namespace, such as volumes and
#: priority classes, which a refresh reads (docs.aws.amazon.com/eks/latest/userguide/access-policy-permissions.html,
#: 2026-11-22).
VIEWER = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSAdminViewPolicy"


def create_cluster(config: StackConfig, scope: Scope, network: Network) -> aws.eks.Cluster:
    """The cluster without nodes."""
    eks, c = config.section(EksConfig), aws.eks
    key = _key(scope) if eks.secrets_encryption else None
    # Late log lines during the cluster's deletion would recreate its log group (terraform-aws-eks #920).
    statements: dict[str, pulumi.Input] = {
        "no-log-groups": [{"Effect": "Deny", "Action": "logs:CreateLogGroup", "Resource": "*"}]
    }
    if key is not None:
        use = needed("secrets_encryption", "cluster")
        statements["secrets"] = key.arn.apply(lambda arn: [{"Effect": "Allow", "Action": use, "Resource": arn}])
    who = identity("cluster", scope, CONTROL_PLANE, policies=needed("control_plane", "cluster"), statements=statements)
    # EKS would make this log group by itself, keep it forever, and leave it behind. The policy that denies this is
    # deleted after the group.
    logs = aws.cloudwatch.LogGroup(
        "control-plane",
        name=f"/aws/eks/{scope.name}/cluster",
        retention_in_days=eks.log_retention_days,
        opts=scope.options(depends_on=who.grants),
    )
    cluster = c.Cluster(
        "cluster",
        name=scope.name,
        role_arn=who.role.arn,
        version=eks.version,
        deletion_protection=config.cluster.deletion_protection,
        access_config=c.ClusterAccessConfigArgs(
            authentication_mode="API", bootstrap_cluster_creator_admin_permissions=True
        ),
        # infra/eks/addons.py makes ours in the order that they need.
        bootstrap_self_managed_addons=False,
        vpc_config=c.ClusterVpcConfigArgs(
            # EKS accepts no other subnets later; nodes may be in any subnet of the network.
            subnet_ids=[subnet.id for subnet in network.control_plane],
            # Nodes reach the API without leaving the network.
            endpoint_private_access=True,
            endpoint_public_access=True,
            public_access_cidrs=list(eks.api_allowed_cidrs),
        ),
        kubernetes_network_config=c.ClusterKubernetesNetworkConfigArgs(service_ipv4_cidr=str(SERVICES)),
        enabled_cluster_log_types=list(eks.logs),
        encryption_config=c.ClusterEncryptionConfigArgs(
            provider=c.ClusterEncryptionConfigProviderArgs(key_arn=key.arn), resources=["secrets"]
        )
        if key is not None
        else None,
        # Extended support of an old version costs six times as much; EKS upgrades it instead.
        upgrade_policy=c.ClusterUpgradePolicyArgs(support_type="STANDARD"),
        opts=scope.options(
            depends_on=[*who.grants, logs],
            timeouts=LONG,
            # Pulumi's own protection too, which refuses in the preview of a destroy, before the resources that are
            # deleted with the cluster have left the state.
            protect=config.cluster.deletion_protection,
        ),
    )
    for kind, policy, identities in (("admin", ADMIN, eks.admins), ("viewer", VIEWER, eks.viewers)):
        for arn in identities:
            _admit(kind, policy, scope, cluster, arn)
    return cluster


def _key(scope: Scope) -> aws.kms.Key:
    key = aws.kms.Key(
        "secrets",
        description=f"Secrets of {scope.name}",
        deletion_window_in_days=KEY_DAYS,
        enable_key_rotation=True,
        opts=scope.options(),
    )
    aws.kms.Alias("secrets", name=f"alias/{scope.name}", target_key_id=key.key_id, opts=scope.options())
    return key


def _admit(kind: str, policy: str, scope: Scope, cluster: aws.eks.Cluster, arn: str) -> None:
    # Named by identity, not by place in the list: EKS accepts one entry per identity, and a shift would make a second.
    name = "-".join([kind, *re.split("[:/]", arn.removeprefix("arn:aws:iam::"))])
    entry = aws.eks.AccessEntry(
        name, cluster_name=cluster.name, principal_arn=arn, opts=scope.options(deleted_with=cluster)
    )
    aws.eks.AccessPolicyAssociation(
        name,
        cluster_name=cluster.name,
        principal_arn=entry.principal_arn,
        policy_arn=policy,
        access_scope=aws.eks.AccessPolicyAssociationAccessScopeArgs(type="cluster"),
        opts=scope.options(deleted_with=cluster),
    )


def security_group(cluster: aws.eks.Cluster) -> pulumi.Output[str]:
    """The security group that EKS makes for control plane and nodes, and deletes with the cluster."""
    return cluster.vpc_config.apply(lambda config: config.cluster_security_group_id or "")


def kubeconfig(scope: Scope, cluster: aws.eks.Cluster) -> pulumi.Output[str]:
    command = {
        "command": "aws",
        "args": ["eks", "get-token", "--cluster-name", scope.name, "--region", scope.region, "--output", "json"],
        "installHint": "install the AWS CLI, version 2",
    }
    reached = {
        "server": cluster.endpoint,
        "certificate-authority-data": cluster.certificate_authority.apply(lambda found: found.data),
    }
    return pulumi.Output.all(**reached).apply(lambda found: written(scope.name, found, command))
