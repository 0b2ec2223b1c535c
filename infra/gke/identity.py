"""Who the nodes are, and who may read the user's buckets: no more rights than their work needs."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.cluster import READER
from infra.config import StackConfig
from infra.gke.scope import Scope

#: Logs, metrics and nothing else: Google's role for the nodes of a cluster. The default service account of Compute
#: Engine, which nodes have otherwise, is an editor of the whole project.
NODE_ROLE = "roles/container.defaultNodeServiceAccount"
#: Annotation by which Workload Identity finds the Google account of a Kubernetes one.
ANNOTATION = "iam.gke.io/gcp-service-account"


@dataclass(frozen=True)
class NodeIdentity:
    account: gcp.serviceaccount.Account
    grants: list[pulumi.Resource]
    """What nodes need before they start."""


def node_identity(scope: Scope, after: list[pulumi.Resource]) -> NodeIdentity:
    account = gcp.serviceaccount.Account(
        "nodes",
        account_id=f"{scope.name}-nodes",
        display_name=f"Nodes of {scope.name}",
        opts=scope.options(depends_on=after),
    )
    grant = gcp.projects.IAMMember(
        "nodes-role", project=scope.project, role=NODE_ROLE, member=account.member, opts=scope.options()
    )
    return NodeIdentity(account, [account, grant])


def bucket_reader(
    config: StackConfig, scope: Scope, after: list[pulumi.Resource], cluster: gcp.container.Cluster
) -> dict[str, pulumi.Input[str]] | None:
    """Annotations of the Kubernetes service account that may read the buckets that `dataset.input` names, if any."""
    buckets = sorted({text.split("/")[2] for text in config.dataset.input if text.startswith("gs://")})
    if not buckets:
        return None
    account = gcp.serviceaccount.Account(
        "reader",
        account_id=f"{scope.name}-data",
        display_name=f"Reads the data of {scope.name}",
        opts=scope.options(depends_on=after),
    )
    for bucket in buckets:
        gcp.storage.BucketIAMMember(
            f"reader-{bucket}",
            bucket=bucket,
            role="roles/storage.objectViewer",
            member=account.member,
            opts=scope.options(),
        )
    gcp.serviceaccount.IAMMember(
        "reader-identity",
        service_account_id=account.name,
        role="roles/iam.workloadIdentityUser",
        member=f"serviceAccount:{scope.project}.svc.id.goog[{config.cluster.namespace}/{READER}]",
        # The project's identity pool is made with its first cluster.
        opts=scope.options(depends_on=[cluster]),
    )
    return {ANNOTATION: account.email}
