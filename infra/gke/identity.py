"""Who the nodes are, and who may read the user's buckets: no more rights than their work needs."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.cluster import READER
from infra.config import StackConfig
from infra.gke.scope import Scope
from infra.gke.services import buckets, used

#: The feature whose role is granted on the stack's repository and not on the project.
REGISTRY_PULL = "registry_pull"
#: What every node needs: logs and metrics.
NODE_ROLE = "roles/container.defaultNodeServiceAccount"
#: What its grant was called until 2026-11-22: as another resource it would be granted once more, and then taken away.
FORMER = "nodes-role"


@dataclass(frozen=True)
class NodeIdentity:
    account: gcp.serviceaccount.Account
    grants: list[pulumi.Resource]
    """What nodes need before they start."""


def node_identity(config: StackConfig, scope: Scope, after: list[pulumi.Resource]) -> NodeIdentity:
    """The account of the nodes, with the roles that the stack's features need and no more: Compute Engine's default
    account, which nodes have otherwise, is an editor of the whole project."""
    account = gcp.serviceaccount.Account(
        "nodes",
        account_id=f"{scope.name}-nodes",
        display_name=f"Nodes of {scope.name}",
        opts=scope.options(depends_on=after),
    )
    needed = {name: feature.roles.get("nodes", ()) for name, feature in used(config).items()}
    # On the repository alone (registry.py).
    needed.pop(REGISTRY_PULL, None)
    grants = [
        gcp.projects.IAMMember(
            f"nodes-{role.rsplit('.', 1)[1]}",
            project=scope.project,
            role=role,
            member=account.member,
            opts=scope.options(depends_on=after, aliases=[pulumi.Alias(name=FORMER)] if role == NODE_ROLE else None),
        )
        for role in sorted({role for roles in needed.values() for role in roles})
    ]
    return NodeIdentity(account, [account, *grants])


def grant_bucket_reader(
    config: StackConfig, scope: Scope, after: list[pulumi.Resource], cluster: gcp.container.Cluster
) -> bool:
    """Let the Kubernetes account READER read the buckets that `dataset.input` names; False: it names none.

    The account is a principal of its own (Workload Identity Federation for GKE): it needs no Google account that it
    impersonates, and no annotation.
    """
    names = buckets(config)
    if not names:
        return False
    # Known once the API that answers is enabled; the pool's principals are named by the project's number.
    project = gcp.organizations.get_project_output(
        project_id=scope.project, opts=pulumi.InvokeOutputOptions(parent=scope.parent, depends_on=after)
    )
    member = pulumi.Output.concat(
        "principal://iam.googleapis.com/projects/",
        project.number,
        f"/locations/global/workloadIdentityPools/{scope.project}.svc.id.goog",
        f"/subject/ns/{config.cluster.namespace}/sa/{READER}",
    )
    for name in names:
        gcp.storage.BucketIAMMember(
            f"reader-{name}",
            bucket=name,
            role="roles/storage.objectViewer",
            member=member,
            # The project's pool of principals is made with its first cluster.
            opts=scope.options(depends_on=[*after, cluster]),
        )
    return True
