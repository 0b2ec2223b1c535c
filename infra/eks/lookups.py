"""Asks AWS at preview which zones have the workers' machines, which images for nodes are the newest, and which versions
the add-ons should have.

Without an answer (no credentials, no right to ask) the preview goes on with the table of zones (zones.yaml), and with
the images and versions that nodes and add-ons have.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pulumi
import pulumi_aws as aws

from infra.config import ConfigError, StackConfig
from infra.eks.addons import CHOSEN_FOR, DISTURBING, NAMES
from infra.eks.keys import KEEP_RELEASES, EksConfig, EksNodes
from infra.eks.machines import by_zone, regions, zones_date

#: EKS's images, without and with NVIDIA's driver and container runtime.
IMAGE, GPU_IMAGE = "AL2023_x86_64_STANDARD", "AL2023_x86_64_NVIDIA"
#: Type of image -> AWS's parameter with its newest release (docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id).
PARAMETERS = {
    image: f"/aws/service/eks/optimized-ami/{{version}}/amazon-linux-2023/x86_64/{kind}/recommended/release_version"
    for image, kind in ((IMAGE, "standard"), (GPU_IMAGE, "nvidia"))
}
_Answer = TypeVar("_Answer")


def offers(config: StackConfig, stack: str, provider: aws.Provider) -> dict[str, tuple[str, ...]]:
    """Zone -> the workers' machine types that it offers (`by_zone`); zones and types in order of preference.

    Raises:
        ConfigError: no zone has any.
    """
    eks, nodes = config.section(EksConfig), config.section(EksNodes)
    types = nodes.machine_types
    by_type = aws.ec2.GetInstanceTypeOfferingsFilterArgs(name="instance-type", values=list(types))
    answer = _ask(
        f"which zones offer {', '.join(types)}; using zones.yaml of {zones_date()}",
        lambda: aws.ec2.get_instance_type_offerings(
            location_type="availability-zone-id", filters=[by_type], opts=pulumi.InvokeOptions(provider=provider)
        ),
    )
    region = regions()[eks.region]
    if answer is None:
        pairs = {(zone, name) for zone in {*region.zones, *eks.zones} for name in types if region.offers(name, zone)}
    else:
        pairs = set(zip(answer.locations, answer.instance_types, strict=True))
    having = sorted({zone for zone, name in pairs if name in types})
    found = by_zone(eks.zones, types, pairs)
    if not found:
        wanted = f"none of {', '.join(eks.zones)} offers" if eks.zones else f"none in {eks.region} offers"
        raise ConfigError(stack, [f"eks.zones: {wanted} {' or '.join(types)}; allowed: {', '.join(having) or 'none'}"])
    if without := [zone for zone in eks.zones if zone not in found]:
        pulumi.log.warn(f"eks.zones: {', '.join(without)} offers no {' or '.join(types)}; no workers come from there")
    return found


def newest_release(config: StackConfig, image: str, provider: aws.Provider) -> str | None:
    """The release that nodes with a type of image should have; None: they keep theirs."""
    eks = config.section(EksConfig)
    if eks.node_release != "latest":
        return eks.node_release
    if os.environ.get(KEEP_RELEASES):
        return None
    name = PARAMETERS[image].format(version=eks.version)
    answer = _ask(
        f"for the newest {image} for {eks.version}; the nodes keep theirs",
        lambda: aws.ssm.get_parameter(name=name, opts=pulumi.InvokeOptions(provider=provider)),
    )
    return answer.insecure_value if answer else None


def addon_versions(config: StackConfig, provider: aws.Provider) -> dict[str, str]:
    """Add-on -> the version that EKS prefers for the cluster's. EKS never changes one by itself, and an add-on that is
    not here keeps the one that it has."""
    eks, how = config.section(EksConfig), pulumi.InvokeOptions(provider=provider)
    if os.environ.get(KEEP_RELEASES):
        return {}

    def moves(name: str) -> bool:
        """Whether the add-on was chosen for another version: not the cluster's, which EKS or an `up` that broke in
        between may have raised already."""
        try:
            there = aws.eks.get_addon(cluster_name=config.name, addon_name=name, opts=how)
        except Exception as reason:
            if "couldn't find resource" in str(reason) or "ResourceNotFound" in str(reason):
                return False  # EKS chooses for a new one
            raise
        return there.tags.get(CHOSEN_FOR) != eks.version

    def question() -> dict[str, str]:
        living = config.name in aws.eks.get_clusters(opts=how).names
        return {
            name: aws.eks.get_addon_version(addon_name=name, kubernetes_version=eks.version, opts=how).version
            for name in NAMES
            if name not in DISTURBING or (living and moves(name))
        }

    return _ask(f"for the add-ons' versions for {eks.version}; they keep theirs", question) or {}


def _ask(what: str, question: Callable[[], _Answer]) -> _Answer | None:
    try:
        return question()
    except Exception as reason:  # The SDK raises nothing more exact for a call that a provider refuses.
        pulumi.log.warn(f"cannot ask AWS {what} ({' '.join(str(reason).split())[:200]})")
        return None
