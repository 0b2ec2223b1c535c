"""Rules for what a cloud bills: no way in for everybody, nothing that costs at rest, encrypted, labelled."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from typing import Any

from policy.rules import UNKNOWN, Resource, Rule, Stack

#: Shortest prefix of a range that may come in: a /8 is the largest range of one organisation. Two halves of the
#: internet (0.0.0.0/1, 128.0.0.0/1) are as open as the whole.
WIDEST = 8
#: EC2's families with accelerators (aws.amazon.com/ec2/instance-types): G, Gr, P, Trainium, Inferentia, DL, F, VT.
AWS_ACCELERATED = ("g", "gr", "p", "trn", "inf", "dl", "f", "vt")
#: Compute Engine's series whose machines include GPUs, or TPUs (ct, tpu), without guestAccelerators
#: (docs.cloud.google.com/compute/docs/accelerator-optimized-machines, /kubernetes-engine/docs/concepts/plan-tpus,
#: 2026-11-23).
GCP_ACCELERATED = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-", "ct", "tpu")
#: Resources for which a cloud makes a load balancer, billed by the hour; Kubernetes would leave it behind.
BALANCERS = ("aws:lb/", "aws:alb/", "aws:elb/", "gcp:compute/forwardingRule:", "gcp:compute/globalForwardingRule:")
EFS_DRIVER = "efs.csi.aws.com"
#: Labels by which costs are split.
LABELS = ("app", "stack")
#: Providers whose resources the rules know, and those that make nothing that is billed or reached.
KNOWN = ("aws", "gcp", "kubernetes", "pulumi", "pulumi-python", "docker-build", "trainyard")
#: Provider -> its input with the labels for everything that it makes.
LABELLED_BY = {"gcp": "defaultLabels", "aws": "defaultTags"}


def known_cloud(resource: Resource, stack: Stack) -> Iterator[str]:
    """Every resource is of a provider whose resources these rules know."""
    if (provider := resource.type.partition(":")[0]) not in KNOWN:
        yield f"no rule here knows what {provider} makes; write those of policy/cloud.py for it, and add it to KNOWN"


def no_open_network(resource: Resource, stack: Stack) -> Iterator[str]:
    """No firewall, security group or control plane lets the whole internet in, and no file system every client."""
    for source in _sources(resource):
        if isinstance(source, str) and source != UNKNOWN and _is_open(source):
            yield f"{source} is allowed in; list only the addresses that need access"
    if resource.type == "aws:efs/fileSystemPolicy:FileSystemPolicy":
        allowed = [each for each in _decoded(resource.at("policy")).get("Statement", []) if each["Effect"] == "Allow"]
        if any(each.get("Principal") in ("*", {"AWS": "*"}, {"AWS": ["*"]}) for each in allowed):
            yield "its policy lets every client mount, and pods have the nodes' security group; name a role"
    if resource.at("spec", "csi", "driver") == EFS_DRIVER and "iam" not in _options(resource):
        yield "it is mounted without an identity, so the file system would have to admit every client; add iam"


def _sources(resource: Resource) -> Iterator[Any]:
    """The addresses from which a resource can be reached."""
    match resource.type:
        case "gcp:compute/firewall:Firewall" if resource.at("direction") != "EGRESS" and not resource.at("denies"):
            named = resource.at("sourceTags") or resource.at("sourceServiceAccounts")
            # Without a source, Google allows every source.
            yield from resource.at("sourceRanges") or ([] if named else ["0.0.0.0/0"])
        case "gcp:container/cluster:Cluster":
            blocks = resource.at("masterAuthorizedNetworksConfig", "cidrBlocks") or []
            yield from (block.get("cidrBlock") for block in blocks)
            # Without a list, GKE allows the whole internet, unless the control plane has no public IP address.
            listed = resource.at("masterAuthorizedNetworksConfig") is not None
            by_address = resource.at("controlPlaneEndpointsConfig", "ipEndpointsConfig", "enabled") is not False
            if not listed and by_address and not resource.at("privateClusterConfig", "enablePrivateEndpoint"):
                yield "0.0.0.0/0"
        case "aws:ec2/securityGroup:SecurityGroup" | "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup":
            for rule in resource.at("ingress") or []:
                yield from [*(rule.get("cidrBlocks") or []), *(rule.get("ipv6CidrBlocks") or [])]
        case "aws:ec2/securityGroupRule:SecurityGroupRule" if resource.at("type") == "ingress":
            yield from [*(resource.at("cidrBlocks") or []), *(resource.at("ipv6CidrBlocks") or [])]
        case "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule":
            yield from (resource.at("cidrIpv4"), resource.at("cidrIpv6"))
        case "aws:eks/cluster:Cluster" if resource.at("vpcConfig", "endpointPublicAccess") is not False:
            # Without a list, EKS allows the whole internet.
            yield from resource.at("vpcConfig", "publicAccessCidrs") or ["0.0.0.0/0"]


def _is_open(source: str) -> bool:
    try:
        return ipaddress.ip_network(source, strict=False).prefixlen < WIDEST
    except ValueError:
        return False


def no_load_balancer(resource: Resource, stack: Stack) -> Iterator[str]:
    """Nothing makes a load balancer: a cloud bills it by the hour, and keeps it when its cluster is deleted."""
    kind = resource.type.rsplit(":", 1)[1]
    if resource.type.startswith(BALANCERS):
        yield "this is a load balancer; use `kubectl port-forward`"
    if resource.is_kubernetes and resource.at("spec", "type") == "LoadBalancer":
        yield "a Service of type LoadBalancer; ClusterIP and `kubectl port-forward` do, at no cost"
    if resource.is_kubernetes and kind in ("Ingress", "Gateway"):
        yield f"a controller makes a load balancer of an {kind}; use `kubectl port-forward`"


def no_accelerator_at_rest(resource: Resource, stack: Stack) -> Iterator[str]:
    """Accelerators are not there while nothing trains: their pools begin with, and return to, no node."""
    match resource.type:
        case "gcp:container/nodePool:NodePool" if _has_accelerators(resource.at("nodeConfig") or {}):
            scaling = resource.at("autoscaling") or {}
            yield from _at_rest(resource.inputs, "nodeCount", "initialNodeCount")
            yield from _at_rest(scaling, "minNodeCount", "totalMinNodeCount")
            if not scaling:
                yield "no autoscaling, so nodes that came would stay; give it, with totalMinNodeCount 0"
        case "aws:eks/nodeGroup:NodeGroup" if _is_accelerated(resource, stack):
            yield from _at_rest(resource.at("scalingConfig") or {}, "minSize", "desiredSize")
        case "gcp:compute/instance:Instance" | "aws:ec2/instance:Instance":
            if _has_accelerators(resource.inputs) or _family(resource.at("instanceType")) in AWS_ACCELERATED:
                yield "an instance of its own runs until it is deleted; put accelerators into a pool that scales to 0"


def _at_rest(values: Mapping[str, Any], *keys: str) -> Iterator[str]:
    for key in keys:
        if values.get(key) not in (None, 0, UNKNOWN):
            yield f"{key} is {values[key]:g}; allowed: 0, the autoscaler adds nodes for a Job and removes them after it"


def _has_accelerators(machine: Mapping[str, Any]) -> bool:
    """Whether a Google machine, or one of a pool, has accelerators."""
    return bool(machine.get("guestAccelerators")) or str(machine.get("machineType")).startswith(GCP_ACCELERATED)


def _is_accelerated(group: Resource, stack: Stack) -> bool:
    """Whether a node group's machines have accelerators, by machine type or image."""
    types = list(group.at("instanceTypes") or [])
    types += [other.at("instanceType") for other in stack.values() if other.type.endswith(":LaunchTemplate")]
    image = str(group.at("amiType") or "")
    return "NVIDIA" in image or "NEURON" in image or any(_family(type_) in AWS_ACCELERATED for type_ in types if type_)


def _family(instance_type: Any) -> str:
    """The letters before the generation: g4dn.xlarge is a g, m5.large an m."""
    text = str(instance_type or "")
    return text[: next((at for at, letter in enumerate(text) if letter.isdigit()), len(text))]


def encrypted_storage(resource: Resource, stack: Stack) -> Iterator[str]:
    """What is stored is encrypted, and so is the way to it where a mount decides that."""
    match resource.type:
        case "aws:efs/fileSystem:FileSystem" | "aws:ebs/volume:Volume" if resource.at("encrypted") is not True:
            yield "encrypted is not true; AWS stores it in plain text then"
        case "aws:ec2/launchTemplate:LaunchTemplate":
            for device in resource.at("blockDeviceMappings") or []:
                disk = device.get("ebs")
                if disk is not None and str(disk.get("encrypted")).lower() != "true":
                    yield f"the disk {device.get('deviceName')} is not encrypted; set ebs.encrypted to true"
        case "kubernetes:core/v1:PersistentVolume":
            attributes = resource.at("spec", "csi", "volumeAttributes") or {}
            if str(attributes.get("encryptInTransit")).lower() == "false":
                yield "encryptInTransit is false; leave it out, the driver encrypts then"
            if resource.at("spec", "csi", "driver") == EFS_DRIVER and "notls" in _options(resource):
                yield "the mount option notls sends everything in plain text; leave it out"
    # Google encrypts every disk, file share and image that it stores; there is no switch.


def _options(volume: Resource) -> list[str]:
    return volume.at("spec", "mountOptions") or []


def labels_for_cost(resource: Resource, stack: Stack) -> Iterator[str]:
    """Everything that a cloud bills says which program and which stack it belongs to."""
    cloud, _, kind = resource.type.partition(":")
    if cloud == "pulumi" and kind.startswith("providers:"):
        cloud = kind.removeprefix("providers:").partition(":")[0]
        if cloud in LABELLED_BY:
            given = _decoded(resource.at(LABELLED_BY[cloud]))
            given = given.get("tags", given) if cloud == "aws" else given
            for label in LABELS:
                if label not in given:
                    yield f"{LABELLED_BY[cloud]} has no '{label}'; give {', '.join(LABELS)}"
    elif cloud in LABELLED_BY and (resource.provider not in stack or "::default" in resource.provider):
        yield "made by a default provider, which labels nothing; give it the stack's own"
    elif resource.type == "aws:ec2/launchTemplate:LaunchTemplate":
        # A provider's default tags do not reach what an autoscaling group makes.
        tagged = {item.get("resourceType"): item.get("tags") or {} for item in resource.at("tagSpecifications") or []}
        for what in ("instance", "volume"):
            if missing := [label for label in LABELS if label not in tagged.get(what, {})]:
                yield f"tagSpecifications gives each {what} no {', '.join(missing)}"


def _decoded(value: Any) -> Mapping[str, Any]:
    """Decode a provider's structured input, which travels as JSON."""
    if isinstance(value, str) and value != UNKNOWN:
        value = json.loads(value)
    return value if isinstance(value, Mapping) else {}


RULES: tuple[Rule, ...] = (
    known_cloud,
    no_open_network,
    no_load_balancer,
    no_accelerator_at_rest,
    encrypted_storage,
    labels_for_cost,
)
