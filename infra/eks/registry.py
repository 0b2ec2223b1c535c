"""The repositories of the stack's image. They depend on no cluster, so that images are built while the cluster is made.

Tags are mutable; pods name images by digest. A rebuild of the same content without a cache has other times, and so
another digest, which a repository with immutable tags would refuse. BuildKit's cache, a tag that changes with each
build, has a repository of its own, so that old caches are deleted soon.
"""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.cluster import Login, Registry
from infra.config import StackConfig
from infra.eks.scope import Scope
from infra.image import TRAINER, compression

#: Number of newest images to keep.
KEPT_IMAGES = 10
CACHE = "-cache"
#: A rule of a lifecycle policy, without its number (docs.aws.amazon.com/AmazonECR/latest/userguide/LifecyclePolicies).
Rule = dict[str, Any]


def create_registry(config: StackConfig, scope: Scope) -> Registry | None:
    """The registry; None for prebuilt images."""
    if config.image.builder == "prebuilt":
        return None
    images = _repository("images", TRAINER.repository, scope, [_untagged(7), _newest(KEPT_IMAGES)])
    _repository("cache", f"{TRAINER.repository}{CACHE}", scope, [_untagged(1)])
    # Asked for once the repository exists; valid for twelve hours. A new token changes no resource.
    token = aws.ecr.get_authorization_token_output(
        registry_id=images.registry_id, opts=pulumi.InvokeOutputOptions(parent=scope.parent)
    )
    password = pulumi.Output.secret(token.password)
    address = images.repository_url.apply(lambda url: url.removesuffix(f"/{TRAINER.repository}"))
    server = images.repository_url.apply(lambda url: url.split("/")[0])
    return Registry(
        address=address,
        compression=compression("eks"),
        cache=f"{CACHE}:latest",
        login=Login(server=server, user=token.user_name, password=password),
    )


def _repository(name: str, path: str, scope: Scope, rules: list[Rule]) -> aws.ecr.Repository:
    repository = aws.ecr.Repository(
        name,
        name=f"{scope.name}/{path}",
        image_tag_mutability="MUTABLE",
        image_scanning_configuration=aws.ecr.RepositoryImageScanningConfigurationArgs(scan_on_push=True),
        encryption_configurations=[aws.ecr.RepositoryEncryptionConfigurationArgs(encryption_type="AES256")],
        # Otherwise destroy fails on the images in it.
        force_delete=True,
        opts=scope.options(),
    )
    numbered = [{"rulePriority": at + 1, "action": {"type": "expire"}, **rule} for at, rule in enumerate(rules)]
    aws.ecr.LifecyclePolicy(
        name, repository=repository.name, policy=json.dumps({"rules": numbered}), opts=scope.options()
    )
    return repository


def _untagged(days: int) -> Rule:
    """Expire what a newer push replaced. ECR keeps an image's untagged parts, such as its SBOM, as long as it."""
    selection = {"tagStatus": "untagged", "countType": "sinceImagePushed", "countUnit": "days", "countNumber": days}
    return {"description": f"untagged, after {days} d", "selection": selection}


def _newest(count: int) -> Rule:
    # Counts tags: an image counts once, whatever parts it has.
    selection = {"tagStatus": "tagged", "tagPatternList": ["*"], "countType": "imageCountMoreThan"}
    return {"description": f"the newest {count} stay", "selection": {**selection, "countNumber": count}}
