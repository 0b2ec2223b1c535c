"""What AWS refuses, or accepts and never does: checked before anything is created."""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterator
from dataclasses import replace

from infra.config import Rule, StackConfig, breaks
from infra.eks.keys import EksConfig, EksNodes
from infra.eks.machines import default_zones, machines, regions

#: EKS's range for Services (infra/eks/cluster.py), which the network must not overlap.
SERVICES = ipaddress.IPv4Network("172.20.0.0/16")
#: Prefix lengths of the network: /16 is the largest that a VPC takes, and an eighth of a /20 still has 507 addresses.
LARGEST, SMALLEST = 16, 20
#: Shortest prefix in the API's allow-list: a shorter one would let up to half of the internet in.
WIDEST = 8
#: Documentation addresses (RFC 5737, TEST-NET-3): the shipped stack files have one, so that they can be previewed.
NOBODY = ipaddress.IPv4Network("203.0.113.0/24")


@breaks(
    "aws-g4dn",
    {"eks": {"region": "us-esat-2", "zones": []}},
    "eks.region: the zones of 'us-esat-2' are not known (infra/eks/zones.yaml); did you mean us-west-2 or us-east-2?",
)
@breaks(
    "aws-g4dn",
    {"eks": {"zones": ["use2-az1", "usw2-az1"]}},
    "eks.zones: usw2-az1 is not in region us-east-2; allowed: use2-az1, use2-az2, use2-az3",
)
@breaks(
    "aws-g4dn",
    {"eks": {"nodeRelease": "1.35.2-20261101"}},
    "eks.nodeRelease: 1.35.2-20261101 is not for Kubernetes 1.36; allowed: latest, or",
)
def _place(config: StackConfig) -> Iterator[str]:
    eks = config.section(EksConfig)
    if eks.region not in regions():
        close = difflib.get_close_matches(eks.region, regions(), n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else f"allowed: {', '.join(regions())}"
        yield f"eks.region: the zones of '{eks.region}' are not known (infra/eks/zones.yaml); {hint}"
    else:
        known = regions()[eks.region].zones
        prefix = known[0].partition("-")[0]
        if foreign := [zone for zone in eks.zones if zone.partition("-")[0] != prefix]:
            yield f"eks.zones: {', '.join(foreign)} is not in region {eks.region}; allowed: {', '.join(known)}"
    if eks.node_release != "latest" and not eks.node_release.startswith(f"{eks.version}."):
        yield (
            f"eks.nodeRelease: {eks.node_release} is not for Kubernetes {eks.version}; allowed: latest, or a release "
            f"of {eks.version}"
        )


@breaks(
    "aws-g4dn", {"eks": {"apiAllowedCidrs": []}}, "eks.apiAllowedCidrs: missing; without it not even Pulumi reaches"
)
@breaks("aws-g4dn", {"eks": {"apiAllowedCidrs": ["0.0.0.0/0"]}}, "eks.apiAllowedCidrs: 0.0.0.0/0 lets in far more than")
@breaks(
    "aws-g4dn", {"eks": {"apiAllowedCidrs": ["10.1.2.3/32"]}}, "eks.apiAllowedCidrs: 10.1.2.3/32 is a private range"
)
def _endpoint(config: StackConfig) -> Iterator[str]:
    eks = config.section(EksConfig)
    if not eks.api_allowed_cidrs:
        yield (
            "eks.apiAllowedCidrs: missing; without it not even Pulumi reaches the cluster. Give the public address of "
            "this machine (`curl https://checkip.amazonaws.com`) with /32"
        )
    for text in eks.api_allowed_cidrs:
        network = ipaddress.IPv4Network(text)
        if network.prefixlen < WIDEST:
            yield f"eks.apiAllowedCidrs: {text} lets in far more than your network; allowed: /{WIDEST} to /32"
        elif not network.overlaps(NOBODY) and (network.is_multicast or not network.is_global):
            yield (
                f"eks.apiAllowedCidrs: {text} is a private range, which no request from outside comes from; give the "
                "public address (`curl https://checkip.amazonaws.com`)"
            )


def placeholders(config: StackConfig) -> list[str]:
    """Refuse placeholders, except in a preview: nobody would reach a control plane that is built with them."""
    found = [
        text for text in config.section(EksConfig).api_allowed_cidrs if ipaddress.IPv4Network(text).overlaps(NOBODY)
    ]
    return [
        f"eks.apiAllowedCidrs: {text} is a documentation address, which no machine has; give this machine's public one "
        "(`curl https://checkip.amazonaws.com`)"
        for text in found
    ]


@breaks("aws-g4dn", {"eks": {"vpcCidr": "10.0.0.0/24"}}, "eks.vpcCidr: 10.0.0.0/24 is a /24; allowed: /16 to /20")
@breaks(
    "aws-g4dn",
    {"eks": {"vpcCidr": "172.20.0.0/16"}},
    "eks.vpcCidr: 172.20.0.0/16 overlaps 172.20.0.0/16, the range of the",
)
def _network(config: StackConfig) -> Iterator[str]:
    eks = config.section(EksConfig)
    network = ipaddress.IPv4Network(eks.vpc_cidr)
    if not LARGEST <= network.prefixlen <= SMALLEST:
        yield f"eks.vpcCidr: {network} is a /{network.prefixlen}; allowed: /{LARGEST} to /{SMALLEST}"
    if network.overlaps(SERVICES):
        yield f"eks.vpcCidr: {network} overlaps {SERVICES}, the range of the cluster's Services; take another"


@breaks(
    "aws-g4dn",
    {"nodes": {"alternatives": ["g4dn.12xlarge"]}},
    "nodes.alternatives: g4dn.12xlarge cannot stand in for g4dn.xlarge, which has 1 nvidia-tesla-t4 and 4 vCPU; all",
)
def _alternatives(config: StackConfig) -> Iterator[str]:
    machine, nodes = config.machine, config.section(EksNodes)
    larger = [
        other.name
        for other in machines().values()
        if (other.accelerator, other.accelerators) == (machine.accelerator, machine.accelerators)
        and other.vcpus > machine.vcpus
        and other.memory_gib >= machine.memory_gib
        and (other.efa or not nodes.efa)
    ]
    for name in nodes.alternatives:
        if name not in larger:
            adapter = ", an Elastic Fabric Adapter" if nodes.efa else ""
            yield (
                f"nodes.alternatives: {name} cannot stand in for {machine.name}, which has {machine.accelerators} "
                f"{machine.accelerator}{adapter} and {machine.vcpus} vCPU; allowed: {', '.join(larger) or 'none'}"
            )


@breaks(
    "aws-g4dn", {"nodes": {"efa": True}}, "nodes.efa: g4dn.xlarge has no Elastic Fabric Adapter; allowed: g4dn.8xlarge"
)
@breaks(
    "aws-g4dn",
    {"nodes": {"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True}},
    "eks.efaPlugin: missing; nodes.efa needs AWS's device plugin as NAME@sha256:DIGEST",
)
def _adapter(config: StackConfig) -> Iterator[str]:
    nodes = config.section(EksNodes)
    machine = config.machine
    if nodes.efa and not machine.efa:
        having = [known.name for known in machines().values() if known.family == machine.family and known.efa]
        yield f"nodes.efa: {machine.name} has no Elastic Fabric Adapter; allowed: {', '.join(having)}, or remove it"
    if nodes.efa and not config.section(EksConfig).efa_plugin:
        yield (
            "eks.efaPlugin: missing; nodes.efa needs AWS's device plugin as NAME@sha256:DIGEST; `docker buildx "
            "imagetools inspect public.ecr.aws/eks/aws-efa-k8s-device-plugin:v0.5.20` shows its digest"
        )


@breaks(
    "aws-g4dn",
    {"image": {"builder": "buildah"}},
    "image.builder: buildah has no way to log in to the stack's ECR repository",
)
def _builder(config: StackConfig) -> Iterator[str]:
    if config.image.builder == "buildah":
        yield "image.builder: buildah has no way to log in to the stack's ECR repository; allowed: buildkit, prebuilt"


RULES: tuple[Rule, ...] = (_place, _endpoint, _network, _alternatives, _adapter, _builder)


def complete(config: StackConfig) -> StackConfig:
    """Fill in the workers' default zones."""
    eks = config.section(EksConfig)
    zones = eks.zones or default_zones(eks.region, config.section(EksNodes).machine_type)
    return replace(config, cloud=eks.model_copy(update={"zones": zones}))
