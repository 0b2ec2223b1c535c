"""The repository of the stack's images. It depends on no cluster, so that images are built while the cluster is made.

The machine that runs Pulumi pushes with Docker's own credentials (`gcloud auth configure-docker
REGION-docker.pkg.dev`), so no token enters the state.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from infra.cluster import Registry
from infra.config import StackConfig
from infra.features import features
from infra.gke.identity import REGISTRY_PULL, NodeIdentity
from infra.gke.scope import Scope
from infra.image import compression

#: Number of newest images to keep; untagged ones, which a newer push has replaced, are deleted after a week.
KEPT_IMAGES, UNTAGGED_SECONDS = 10, 7 * 24 * 3600


def create_registry(
    config: StackConfig, scope: Scope, nodes: NodeIdentity, after: list[pulumi.Resource]
) -> tuple[Registry | None, list[pulumi.Resource]]:
    """The registry, and what must exist before a node can pull from it; nothing for prebuilt images."""
    if config.image.builder == "prebuilt":
        return None, []
    policy = gcp.artifactregistry.RepositoryCleanupPolicyArgs
    repository = gcp.artifactregistry.Repository(
        "images",
        repository_id=scope.name,
        location=scope.region,
        format="DOCKER",
        description=f"Images of {scope.name}",
        # Tags stay mutable, because BuildKit's cache is one. Pods name images by digest.
        cleanup_policies=[
            policy(
                id="keep-newest",
                action="KEEP",
                most_recent_versions=gcp.artifactregistry.RepositoryCleanupPolicyMostRecentVersionsArgs(
                    keep_count=KEPT_IMAGES
                ),
            ),
            policy(
                id="drop-untagged",
                action="DELETE",
                condition=gcp.artifactregistry.RepositoryCleanupPolicyConditionArgs(
                    tag_state="UNTAGGED", older_than=f"{UNTAGGED_SECONDS}s"
                ),
            ),
        ],
        cleanup_policy_dry_run=False,
        opts=scope.options(depends_on=after),
    )
    (role,) = features("gke")[REGISTRY_PULL].roles["nodes"]
    reader = gcp.artifactregistry.RepositoryIamMember(
        "images-reader",
        project=scope.project,
        location=repository.location,
        repository=repository.repository_id,
        role=role,
        member=nodes.account.member,
        opts=scope.options(),
    )
    address = pulumi.Output.concat(
        repository.location, "-docker.pkg.dev/", scope.project, "/", repository.repository_id
    )
    return Registry(address=address, compression=compression("gke")), [reader]
