"""The repositories of the stack's image; they depend on no cluster, so that images are built while the cluster is made.

Tags of images are immutable. BuildKit's cache is a tag that changes, and so has a repository of its own.
"""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.cluster import Login, Registry
from infra.config import StackConfig
from infra.eks.scope import Scope
from infra.image import TRAINER

#: Newest images that stay, and days after which an untagged one, which a newer push has replaced, goes.
KEPT_IMAGES, UNTAGGED_DAYS = 10, 7
CACHE = "-cache"


def build(config: StackConfig, scope: Scope) -> Registry | None:
    """Nothing for prebuilt images."""
    if config.image.builder == "prebuilt":
        return None
    images = _repository("images", TRAINER.repository, scope, "IMMUTABLE", kept=KEPT_IMAGES, untagged=UNTAGGED_DAYS)
    if config.image.builder in (None, "buildkit"):
        _repository("cache", f"{TRAINER.repository}{CACHE}", scope, "MUTABLE", kept=1, untagged=1)
    # Asked for when the repository is there; good for twelve hours, and a difference to nobody.
    token = aws.ecr.get_authorization_token_output(
        registry_id=images.registry_id, opts=pulumi.InvokeOutputOptions(parent=scope.parent)
    )
    password = pulumi.Output.secret(token.password)
    address = images.repository_url.apply(lambda url: url.removesuffix(f"/{TRAINER.repository}"))
    server = images.repository_url.apply(lambda url: url.split("/")[0])
    return Registry(
        address=address,
        cache=f"{CACHE}:latest",
        login=Login(server=server, user=token.user_name, password=password),
    )


def _repository(name: str, path: str, scope: Scope, mutability: str, *, kept: int, untagged: int) -> aws.ecr.Repository:
    repository = aws.ecr.Repository(
        name,
        name=f"{scope.name}/{path}",
        image_tag_mutability=mutability,
        image_scanning_configuration=aws.ecr.RepositoryImageScanningConfigurationArgs(scan_on_push=True),
        encryption_configurations=[aws.ecr.RepositoryEncryptionConfigurationArgs(encryption_type="AES256")],
        # Or destroy fails on the images in it.
        force_delete=True,
        opts=scope.options(),
    )
    rules = [
        _rule(1, "replaced", {"tagStatus": "untagged", "countType": "sinceImagePushed", "countUnit": "days"}, untagged),
        _rule(2, "newest stay", {"tagStatus": "any", "countType": "imageCountMoreThan"}, kept),
    ]
    aws.ecr.LifecyclePolicy(name, repository=repository.name, policy=json.dumps({"rules": rules}), opts=scope.options())
    return repository


def _rule(priority: int, description: str, selection: dict[str, str], count: int) -> dict:
    return {
        "rulePriority": priority,
        "description": description,
        "selection": {**selection, "countNumber": count},
        "action": {"type": "expire"},
    }
