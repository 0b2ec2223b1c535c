"""The APIs of the project that a stack uses. They stay enabled on destroy: others may use them by then."""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from infra.config import StackConfig
from infra.gke.scope import Scope


def needed(config: StackConfig) -> list[str]:
    """The APIs of a configuration, as `gcloud services enable` takes them."""
    names = ["compute", "container", "iam", "logging", "monitoring", "cloudresourcemanager"]
    if config.image.builder != "prebuilt":
        names.append("artifactregistry")
    if config.storage.kind == "filestore":
        names.append("file")
    return [f"{name}.googleapis.com" for name in sorted(names)]


def enable(config: StackConfig, scope: Scope) -> list[pulumi.Resource]:
    """The APIs, to depend on."""
    return [
        gcp.projects.Service(
            name.removesuffix(".googleapis.com"),
            service=name,
            disable_on_destroy=False,
            disable_dependent_services=False,
            opts=scope.options(timeouts=pulumi.CustomTimeouts(create="20m")),
        )
        for name in needed(config)
    ]
