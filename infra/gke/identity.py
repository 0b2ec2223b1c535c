"""The nodes' account, and the right to read the user's buckets: no more rights than the work needs."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.cluster import READER
from infra.config import StackConfig
from infra.gke.scope import Scope
from infra.gke.services import used

#: The feature whose role is granted on the stack's repository and not on the project.
REGISTRY_PULL = "registry_pull"


@dataclass(frozen=True)
class NodeIdentity:
    account: gcp.serviceaccount.Account
    grants: list[pulumi.Resource]
    """Resources that nodes need before they start."""


def node_identity(config: StackConfig, scope: Scope, after: list[pulumi.Resource]) -> NodeIdentity:
    """The nodes' account, with only the roles that the stack's features need: Compute Engine's default account, which
    nodes otherwise have, is an editor of the whole project."""
    account = gcp.serviceaccount.Account(
        "nodes",
        account_id=f"{scope.name}-nodes",
        display_name=f"Nodes of {scope.name}",
        opts=scope.options(depends_on=after),
    )
    needed = {name: feature.roles.get("nodes", ()) for name, feature in used(config).items()}
    # Granted on the repository alone (registry.py).
    needed.pop(REGISTRY_PULL, None)
    grants = [
        gcp.projects.IAMMember(
            f"nodes-{role.rsplit('.', 1)[1]}",
            project=scope.project,
            role=role,
            member=account.member,
            opts=scope.options(depends_on=after),
        )
        for role in sorted({role for roles in needed.values() for role in roles})
    ]
    return NodeIdentity(account, [account, *grants])


def grant_bucket_reader(
    config: StackConfig, scope: Scope, after: list[pulumi.Resource], cluster: gcp.container.Cluster
) -> bool:
    """Let the Kubernetes account READER read the buckets that `dataset.input` names; False: it names none.

    The account is a principal of its own (Workload Identity Federation for GKE): it needs neither a Google account to
    impersonate nor an annotation.
    """
    names = config.dataset.buckets("gs")
    if not names:
        return False
    # The principals' names contain the project's number, which is known once the API for it is enabled.
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
            # The project's first cluster creates its pool of principals.
            opts=scope.options(depends_on=[*after, cluster]),
        )
    return True
