"""Rules for Kubernetes objects: what their pods may do, which images they run, and what deletes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from policy.rules import UNKNOWN, Resource, Rule, Stack

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
#: Names of environment variables that hold secrets.
SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSPHRASE|API_?KEY|(ACCESS|PRIVATE)_?KEY|(^|_)PAT|CREDENTIALS?)$")
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


def containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(pod.get("initContainers") or []), *pod["containers"], *(pod.get("ephemeralContainers") or [])]


def _all_containers(resource: Resource) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], str]]:
    """(pod, container, "container NAME") for every container in a Kubernetes object."""
    for pod in pods(resource.inputs) if resource.is_kubernetes else ():
        for container in containers(pod):
            yield pod, container, f"container {container.get('name')}"


def image_by_digest(resource: Resource, stack: Stack) -> Iterator[str]:
    """Every container's image, and every base of one, is named by digest: what was reviewed is what runs."""
    base = (resource.at("buildArgs") or {}).get("BASE_IMAGE") if resource.type.endswith(BUILDS) else None
    if base not in (None, UNKNOWN) and not DIGEST.search(base):
        yield f"it is built on {base}; give NAME@sha256:DIGEST (image.base)"
    for _, container, named in _all_containers(resource):
        image = container.get("image") or ""
        # An image that is never pulled is the node's own.
        if image != UNKNOWN and not DIGEST.search(image) and container.get("imagePullPolicy") != "Never":
            yield f"{named} runs {image or 'no image'}; give NAME@sha256:DIGEST"


def restricted_pods(resource: Resource, stack: Stack) -> Iterator[str]:
    """Namespaces enforce the restricted Pod Security standard, and pods keep to it, but for those that are listed."""
    if resource.type == "kubernetes:core/v1:Namespace" and not _holds_exceptions(resource):
        level = (resource.at("metadata", "labels") or {}).get("pod-security.kubernetes.io/enforce")
        if level != "restricted":
            yield f"pod-security.kubernetes.io/enforce is {level or 'missing'}; allowed: restricted"
    if _exception(resource) is None:
        for pod, container, named in _all_containers(resource):
            own = {**(pod.get("securityContext") or {}), **(container.get("securityContext") or {})}
            yield from (f"{named}: {problem}" for problem in _unrestricted(own))


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


def no_privileged_pod(resource: Resource, stack: Stack) -> Iterator[str]:
    """No container is privileged or sees its node, but for what is listed."""
    allowed = _exception(resource) or set()
    for pod in pods(resource.inputs) if resource.is_kubernetes else ():
        yield from (problem for what, problem in _node_access(pod) if what not in allowed)


def _node_access(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for container in containers(pod):
        if (container.get("securityContext") or {}).get("privileged"):
            yield "privileged", f"container {container.get('name')} is privileged; name the capabilities that it needs"
    for access in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(access):
            yield access, f"{access} is true; remove it"
    for volume in pod.get("volumes") or []:
        if volume.get("hostPath"):
            path = volume["hostPath"].get("path")
            yield "hostPath", f"volume {volume.get('name')} is {path} of its node; use a claim"


def _exception(resource: Resource) -> set[str] | None:
    """The access to its node that an object in EXCEPTIONS may have; None: it is not listed."""
    name, namespace = resource.at("metadata", "name") or resource.name, resource.at("metadata", "namespace")
    for pattern, access in EXCEPTIONS.items():
        where, _, what = pattern.partition("/")
        # A namespace that does not exist yet may be known only in `pulumi up`, which checks again.
        if fnmatch(name, what) and (namespace == UNKNOWN or fnmatch(namespace or "default", where)):
            return access
    return None


def _holds_exceptions(namespace: Resource) -> bool:
    """By name and label: cluster.namespace may give the training's namespace a name that matches."""
    name, labels = str(namespace.at("metadata", "name")), namespace.at("metadata", "labels") or {}
    matches = any(fnmatch(name, pattern.partition("/")[0]) for pattern in EXCEPTIONS)
    return matches and labels.get("app.kubernetes.io/component") == "storage"


def secrets_by_reference(resource: Resource, stack: Stack) -> Iterator[str]:
    """No container gets a token or password as text: it comes from a Kubernetes Secret."""
    for _, container, named in _all_containers(resource):
        for variable in container.get("env") or []:
            if SECRET.search(str(variable.get("name"))) and variable.get("value"):
                yield f"{named} gets {variable['name']} as text; use valueFrom.secretKeyRef"


def goes_with_cluster(resource: Resource, stack: Stack) -> Iterator[str]:
    """Every Kubernetes object goes with the cluster that the stack makes, and needs no API server to be deleted."""
    clusters = [urn for urn, other in stack.items() if other.type in CLUSTERS]
    told = resource.is_kubernetes and resource.deleted_with is not None
    if told and clusters and resource.deleted_with not in clusters:
        yield "deletedWith is not the cluster; a destroy would ask an API server that may be gone"


def job_without_ttl(resource: Resource, stack: Stack) -> Iterator[str]:
    """No Job removes itself: the next `pulumi up` would miss it, and train again."""
    if resource.is_kubernetes and resource.at("kind") == "Job":
        seconds = resource.at("spec", "ttlSecondsAfterFinished")
        if seconds is not None:
            yield f"ttlSecondsAfterFinished is {seconds}; leave it out"


def labelled_pods(resource: Resource, stack: Stack) -> Iterator[str]:
    """Pods say what they are part of: costs inside a cluster are divided by it."""
    template = resource.at("spec", "template", "metadata", "labels")
    if resource.is_kubernetes and any(pods(resource.at("spec", "template"))):
        for label in ("app.kubernetes.io/name", "app.kubernetes.io/component"):
            if label not in (template or {}):
                yield f"its pods have no label {label}"


RULES: tuple[Rule, ...] = (
    image_by_digest,
    restricted_pods,
    no_privileged_pod,
    secrets_by_reference,
    goes_with_cluster,
    job_without_ttl,
    labelled_pods,
)
