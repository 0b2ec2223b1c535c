"""What no stack may declare: rules over its recording, without Pulumi's engine or credentials.

A rule takes one resource and the recording that it is in, and yields what is wrong, a sentence each. The first line of
its docstring says what it demands; docs/operations.md lists the rules, and tests/review/test_policy.py breaks each.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

from cli.target import StackNames
from infra.rules import SECRET
from review.recording import SIGNATURE, Recorded, Recording, record_anywhere

Rule = Callable[[Recorded, Recording], Iterator[str]]

#: Providers whose resources the rules know, and those that make nothing that is billed or reached.
KNOWN = ("aws", "gcp", "kubernetes", "pulumi", "pulumi-python", "docker-build", "trainyard")
#: Shortest prefix of a range that may come in: a /8 is the largest range of one organisation. Two halves of the
#: internet (0.0.0.0/1, 128.0.0.0/1) are as open as the whole.
WIDEST = 8
#: Resources for which a cloud makes a load balancer, billed by the hour; Kubernetes would leave it behind.
BALANCERS = ("aws:lb/", "aws:alb/", "aws:elb/", "gcp:compute/forwardingRule:", "gcp:compute/globalForwardingRule:")
#: The pool for what must always run: DNS, the rendezvous, the shared volume.
SYSTEM = "system"
#: Labels by which costs are split.
LABELS = ("app", "stack")
#: Provider -> its input with the labels for everything that it makes.
LABELLED_BY = {"gcp": "defaultLabels", "aws": "defaultTags"}
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
#: Resource types that build an image: with BuildKit, with buildah.
BUILDS = ("docker-build:index:Image", ":BuildahImage")
CLUSTERS = ("gcp:container/cluster:Cluster", "aws:eks/cluster:Cluster")
#: Pods that may break the restricted Pod Security standard, as namespace/name, and the access to their node that they
#: may have. The training's namespace is not among them; kube-system is the cluster's own.
EXCEPTIONS: dict[str, set[str]] = {
    # Serves files for any owner, and opens them by handle.
    "*-storage/nfs-server": set(),
    # Gives the trainer an empty volume that root owns, once.
    "*-storage/volume-owner": set(),
    # Loads a kernel module.
    "kube-system/gpu-driver": {"privileged", "hostNetwork", "hostPID", "hostPath"},
    # Opens the socket of its kubelet, in a folder that root owns.
    "kube-system/nvidia-device-plugin": {"hostPath"},
    # Also asks the metadata service for the machine's adapters, which answers over one hop.
    "kube-system/efa-device-plugin": {"hostPath", "hostNetwork"},
    # Reads counters of accelerators, and asks the kubelet which pod uses which accelerator.
    "kube-system/dcgm-exporter": {"hostPath"},
}


@dataclass(frozen=True)
class Violation:
    rule: str
    resource: Recorded
    problem: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.resource.type} {self.resource.name}: {self.problem}"


def name(rule: Rule) -> str:
    """Name of a rule, such as no-open-network."""
    return rule.__name__.replace("_", "-")


def demand(rule: Rule) -> str:
    """What the rule demands, in one sentence."""
    return (rule.__doc__ or "").partition("\n")[0]


def broken(stack: Recording) -> list[Violation]:
    """Everything that breaks one of the rules, in the order of the resources."""
    plain = Recording([replace(item, inputs=revealed(item.inputs)) for item in stack.resources], stack.outputs)
    by_rule = ((rule, item, rule(item, plain)) for item in plain.resources for rule in RULES)
    return [Violation(name(rule), item, problem) for rule, item, found in by_rule for problem in found]


def revealed(value: Any) -> Any:
    """Replace secrets by their values."""
    if isinstance(value, dict):
        return revealed(value["value"]) if SIGNATURE in value else {key: revealed(v) for key, v in value.items()}
    return [revealed(item) for item in value] if isinstance(value, list) else value


def check(names: StackNames = None) -> int:
    """Print what breaks a rule; return 1 if anything does."""
    failed = False
    for stack_name in names or []:
        stack = record_anywhere(stack_name)
        found = broken(stack)
        failed |= bool(found)
        print(f"{stack_name}: {len(stack.resources)} resources, {len(RULES)} rules, {len(found) or 'none'} broken")
        for violation in found:
            print(f"  {violation}")
    return int(failed)


# What a cloud bills: no way in for everybody, nothing that costs at rest, encrypted, labelled.


def known_cloud(item: Recorded, stack: Recording) -> Iterator[str]:
    """Every resource is of a provider whose resources these rules know."""
    if (provider := item.type.partition(":")[0]) not in KNOWN:
        yield f"no rule here knows what {provider} makes; write those of review/policy.py for it, and add it to KNOWN"


def no_open_network(item: Recorded, stack: Recording) -> Iterator[str]:
    """No firewall, security group or control plane lets the whole internet in, and no file system every client."""
    for source in _sources(item):
        if source and ipaddress.ip_network(source, strict=False).prefixlen < WIDEST:
            yield f"{source} is allowed in; list only the addresses that need access"
    if item.type == "aws:efs/fileSystemPolicy:FileSystemPolicy":
        allowed = [each for each in _decoded(item.at("policy")).get("Statement", []) if each["Effect"] == "Allow"]
        if any(each.get("Principal") in ("*", {"AWS": "*"}) for each in allowed):
            yield "its policy lets every client mount, and pods have the nodes' security group; name a role"


def _sources(item: Recorded) -> Iterator[str | None]:
    """The address ranges from which a resource can be reached; without a list, both clouds let the internet in."""
    match item.type:
        case "gcp:compute/firewall:Firewall":
            yield from item.at("sourceRanges") or ["0.0.0.0/0"]
        case "gcp:container/cluster:Cluster" if (
            item.at("controlPlaneEndpointsConfig", "ipEndpointsConfig", "enabled") is not False
        ):
            blocks = item.at("masterAuthorizedNetworksConfig", "cidrBlocks") or [{"cidrBlock": "0.0.0.0/0"}]
            yield from (block["cidrBlock"] for block in blocks)
        case "aws:ec2/securityGroup:SecurityGroup" | "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup":
            for rule in item.at("ingress") or []:
                yield from [*(rule.get("cidrBlocks") or []), *(rule.get("ipv6CidrBlocks") or [])]
        case "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule":
            yield from (item.at("cidrIpv4"), item.at("cidrIpv6"))
        case "aws:eks/cluster:Cluster" if item.at("vpcConfig", "endpointPublicAccess") is not False:
            yield from item.at("vpcConfig", "publicAccessCidrs") or ["0.0.0.0/0"]


def no_load_balancer(item: Recorded, stack: Recording) -> Iterator[str]:
    """Nothing makes a load balancer: a cloud bills it by the hour, and keeps it when its cluster is deleted."""
    if item.type.startswith(BALANCERS):
        yield "this is a load balancer; use `kubectl port-forward`"
    if item.is_kubernetes and item.at("spec", "type") == "LoadBalancer":
        yield "a Service of type LoadBalancer; ClusterIP and `kubectl port-forward` do, at no cost"
    if item.is_kubernetes and item.kind in ("Ingress", "Gateway"):
        yield f"a controller makes a load balancer of an {item.kind}; use `kubectl port-forward`"


def no_worker_at_rest(item: Recorded, stack: Recording) -> Iterator[str]:
    """No machine waits for a training: every pool of nodes but `system` begins with, and returns to, no node."""
    match item.type:
        case "gcp:container/nodePool:NodePool" if item.name != SYSTEM:
            if not item.at("autoscaling"):
                yield "no autoscaling, so nodes that came would stay; give it, with totalMinNodeCount 0"
            yield from _at_rest(item.inputs, "nodeCount", "initialNodeCount")
            yield from _at_rest(item.at("autoscaling") or {}, "minNodeCount", "totalMinNodeCount")
        case "aws:eks/nodeGroup:NodeGroup" if item.name != SYSTEM:
            yield from _at_rest(item.at("scalingConfig") or {}, "minSize", "desiredSize")
        case "gcp:compute/instance:Instance" | "aws:ec2/instance:Instance":
            yield "an instance of its own runs until it is deleted; put it into a pool that scales to 0"


def _at_rest(values: Mapping[str, Any], *keys: str) -> Iterator[str]:
    for key in keys:
        if values.get(key):
            yield f"{key} is {values[key]:g}; allowed: 0, the autoscaler adds nodes for a Job and removes them after it"


def encrypted_storage(item: Recorded, stack: Recording) -> Iterator[str]:
    """What is stored is encrypted. Google encrypts every disk, file share and image; there is no switch."""
    if item.type == "aws:efs/fileSystem:FileSystem" and item.at("encrypted") is not True:
        yield "encrypted is not true; AWS stores it in plain text then"
    if item.type == "aws:ec2/launchTemplate:LaunchTemplate":
        for device in item.at("blockDeviceMappings") or []:
            if str(device["ebs"].get("encrypted")).lower() != "true":
                yield f"the disk {device.get('deviceName')} is not encrypted; set ebs.encrypted to true"


def labels_for_cost(item: Recorded, stack: Recording) -> Iterator[str]:
    """Everything that a cloud bills says which program and which stack it belongs to."""
    cloud = item.type.partition(":")[0]
    provider = item.provider.rpartition("::")[0]
    if item.type.startswith("pulumi:providers:") and item.kind in LABELLED_BY:
        given = _decoded(item.at(LABELLED_BY[item.kind]))
        given = given.get("tags", given) if item.kind == "aws" else given
        for label in LABELS:
            if label not in given:
                yield f"{LABELLED_BY[item.kind]} has no '{label}'; give {', '.join(LABELS)}"
    elif cloud in LABELLED_BY and not any(other.urn == provider for other in stack.resources):
        yield "made by a default provider, which labels nothing; give it the stack's own"
    elif item.type == "aws:ec2/launchTemplate:LaunchTemplate":
        # A provider's default tags do not reach what an autoscaling group makes.
        tagged = {each.get("resourceType"): each.get("tags") or {} for each in item.at("tagSpecifications") or []}
        for what in ("instance", "volume"):
            if missing := [label for label in LABELS if label not in tagged.get(what, {})]:
                yield f"tagSpecifications gives each {what} no {', '.join(missing)}"


def _decoded(value: Any) -> Mapping[str, Any]:
    """Decode a provider's structured input, which travels as JSON."""
    value = json.loads(value) if isinstance(value, str) else value
    return value if isinstance(value, Mapping) else {}


# Kubernetes objects: what their pods may do, which images they run, and what deletes them.


def pods(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every pod specification inside an object of any kind: a mapping with a list of containers."""
    if isinstance(value, Mapping):
        if isinstance(value.get("containers"), list):
            yield value
        for item in value.values():
            yield from pods(item)
    elif isinstance(value, list):
        for item in value:
            yield from pods(item)


def _containers(item: Recorded) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(pod, container) of every container in an object of Kubernetes."""
    for pod in pods(item.inputs) if item.is_kubernetes else ():
        for kind in ("initContainers", "containers", "ephemeralContainers"):
            yield from ((pod, container) for container in pod.get(kind) or [])


def image_by_digest(item: Recorded, stack: Recording) -> Iterator[str]:
    """Every container's image, and every base of one, is named by digest: what was reviewed is what runs."""
    base = item.at("buildArgs", "BASE_IMAGE") if item.type.endswith(BUILDS) else None
    if base is not None and not DIGEST.search(base):
        yield f"it is built on {base}; give NAME@sha256:DIGEST (image.base)"
    for _, container in _containers(item):
        image = container.get("image") or ""
        # An image that is never pulled is the node's own.
        if not DIGEST.search(image) and container.get("imagePullPolicy") != "Never":
            yield f"container {container.get('name')} runs {image or 'no image'}; give NAME@sha256:DIGEST"


def restricted_pods(item: Recorded, stack: Recording) -> Iterator[str]:
    """Namespaces enforce the restricted Pod Security standard, and pods keep to it, but for those that are listed."""
    if item.type == "kubernetes:core/v1:Namespace" and not _holds_exceptions(item):
        level = item.at("metadata", "labels", "pod-security.kubernetes.io/enforce")
        if level != "restricted":
            yield f"pod-security.kubernetes.io/enforce is {level or 'missing'}; allowed: restricted"
    for pod, container in _containers(item) if _exception(item) is None else ():
        own = {**(pod.get("securityContext") or {}), **(container.get("securityContext") or {})}
        yield from (f"container {container.get('name')}: {problem}" for problem in _unrestricted(own))


def _unrestricted(context: Mapping[str, Any]) -> Iterator[str]:
    """By kubernetes.io/docs/concepts/security/pod-security-standards, and with a read-only root file system."""
    if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
        yield "it may run as root; set runAsNonRoot, and a runAsUser other than 0"
    if context.get("allowPrivilegeEscalation") is not False:
        yield "it may gain privileges; set allowPrivilegeEscalation to false"
    capabilities = context.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []) or set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
        yield "it keeps capabilities; drop ALL and add none"
    if (context.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "it may make any system call; set seccompProfile.type to RuntimeDefault"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "it may write to its image; set readOnlyRootFilesystem, and mount what it writes to"


def no_privileged_pod(item: Recorded, stack: Recording) -> Iterator[str]:
    """No container is privileged or sees its node, but for what is listed."""
    allowed = _exception(item) or set()
    for _, container in _containers(item) if "privileged" not in allowed else ():
        if (container.get("securityContext") or {}).get("privileged"):
            yield f"container {container.get('name')} is privileged; name the capabilities that it needs"
    for pod in pods(item.inputs) if item.is_kubernetes else ():
        for access in ("hostNetwork", "hostPID", "hostIPC"):
            if pod.get(access) and access not in allowed:
                yield f"{access} is true; remove it"
        for volume in pod.get("volumes") or []:
            if volume.get("hostPath") and "hostPath" not in allowed:
                path = volume["hostPath"].get("path")
                yield f"volume {volume.get('name')} is {path} of its node; use a claim"


def _exception(item: Recorded) -> set[str] | None:
    """The access to its node that an object in EXCEPTIONS may have; None: it is not listed."""
    where = f"{item.at('metadata', 'namespace') or 'default'}/{item.at('metadata', 'name') or item.name}"
    return next((access for pattern, access in EXCEPTIONS.items() if fnmatch(where, pattern)), None)


def _holds_exceptions(namespace: Recorded) -> bool:
    """By name and label: cluster.namespace may give the training's namespace a name that matches."""
    matches = any(fnmatch(str(namespace.at("metadata", "name")), key.partition("/")[0]) for key in EXCEPTIONS)
    return matches and namespace.at("metadata", "labels", "app.kubernetes.io/component") == "storage"


def secrets_by_reference(item: Recorded, stack: Recording) -> Iterator[str]:
    """No container gets a token or password as text: it comes from a Kubernetes Secret."""
    for _, container in _containers(item):
        for variable in container.get("env") or []:
            if SECRET.search(str(variable.get("name"))) and variable.get("value"):
                yield f"container {container.get('name')} gets {variable['name']} as text; use valueFrom.secretKeyRef"


def goes_with_cluster(item: Recorded, stack: Recording) -> Iterator[str]:
    """Every Kubernetes object goes with the cluster that the stack makes, and needs no API server to be deleted."""
    clusters = [other.urn for other in stack.resources if other.type in CLUSTERS]
    if item.is_kubernetes and clusters and item.deleted_with not in clusters:
        yield "deletedWith is not the cluster; a destroy would ask an API server that may be gone"


def job_without_ttl(item: Recorded, stack: Recording) -> Iterator[str]:
    """No Job removes itself: the next `pulumi up` would miss it, and train again."""
    seconds = item.at("spec", "ttlSecondsAfterFinished")
    if item.is_kubernetes and item.at("kind") == "Job" and seconds is not None:
        yield f"ttlSecondsAfterFinished is {seconds:g}; leave it out"


def labelled_pods(item: Recorded, stack: Recording) -> Iterator[str]:
    """Pods say what they are part of: costs inside a cluster are divided by it."""
    if item.is_kubernetes and any(pods(item.at("spec", "template"))):
        given = item.at("spec", "template", "metadata", "labels") or {}
        for label in ("app.kubernetes.io/name", "app.kubernetes.io/component"):
            if label not in given:
                yield f"its pods have no label {label}"


RULES: tuple[Rule, ...] = (
    known_cloud,
    no_open_network,
    no_load_balancer,
    no_worker_at_rest,
    encrypted_storage,
    labels_for_cost,
    image_by_digest,
    restricted_pods,
    no_privileged_pod,
    secrets_by_reference,
    goes_with_cluster,
    job_without_ttl,
    labelled_pods,
)
