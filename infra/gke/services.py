"""The features of Google Cloud that a configuration uses, and the APIs that they need (features.yaml).

The APIs stay enabled on destroy: others may use them by then.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from infra.config import StackConfig
from infra.features import Feature, features
from infra.gke.keys import GkeNodes, GkeStorage, kinds
from infra.gke.scope import Scope

#: Features of every cluster that a stack makes.
ALWAYS = (
    "project",
    "project_roles",
    "network_and_disks",
    "accounts",
    "cluster",
    "nodes",
    "logs",
    "metrics",
    "image_streaming",
)


def used(config: StackConfig) -> dict[str, Feature]:
    """The features of a configuration, by name."""
    machine, nodes, ways = config.machine, config.section(GkeNodes), kinds(config)
    flexible = bool({"flex_start", "queued"} & set(ways))
    chosen = {
        "registry": config.image.builder != "prebuilt",
        "registry_pull": config.image.builder != "prebuilt",
        "filestore": config.section(GkeStorage).kind == "filestore",
        "bucket": bool(config.dataset.buckets("gs")),
        "spot": "spot" in ways,
        "flex_start": flexible,
        "compute_class": len(ways) > 1,
        "limited_run_time": flexible or nodes.max_run_hours is not None,
    }
    names = [*ALWAYS, *(name for name, used in chosen.items() if used)]
    return {name: features("gke")[name] for name in [*names, *([machine.accelerator] if machine.accelerator else [])]}


def apis(config: StackConfig) -> list[str]:
    """The APIs of a configuration, as `gcloud services enable` takes them."""
    return sorted({api for feature in used(config).values() for api in feature.apis})


def enable(config: StackConfig, scope: Scope) -> list[pulumi.Resource]:
    """Enable the APIs; return them to depend on. Those through which the provider reads any API come first."""
    first = features("gke")["project"].apis
    made = [_service(name, scope, []) for name in first]
    return [*made, *(_service(name, scope, made) for name in apis(config) if name not in first)]


def _service(name: str, scope: Scope, after: list[pulumi.Resource]) -> pulumi.Resource:
    return gcp.projects.Service(
        name.removesuffix(".googleapis.com"),
        service=name,
        disable_on_destroy=False,
        disable_dependent_services=False,
        opts=scope.options(depends_on=after, timeouts=pulumi.CustomTimeouts(create="20m")),
    )
