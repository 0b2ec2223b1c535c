"""Names: what a Pulumi URN says about an object, ids, auto-naming and the `pulumi.com/*` annotations."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from .errors import PluginError
from .values import UNKNOWN

AUTONAMED = "pulumi.com/autonamed"
SKIP_AWAIT = "pulumi.com/skipAwait"
WAIT_FOR = "pulumi.com/waitFor"
TIMEOUT_SECONDS = "pulumi.com/timeoutSeconds"
REPLACE_UNREADY = "pulumi.com/replaceUnready"
PATCH_FORCE = "pulumi.com/patchForce"
PATCH_FIELD_MANAGER = "pulumi.com/patchFieldManager"
DELETION_PROPAGATION = "pulumi.com/deletionPropagationPolicy"

# Metadata that only the API server writes; a program that gives it (copied YAML) would see a diff for ever.
READ_ONLY_METADATA = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
)

# Scope of the built-in kinds that belong to no namespace: needed when no API server can be asked (a preview
# before the cluster exists). From `kubectl api-resources --namespaced=false` of Kubernetes 1.34.
CLUSTER_SCOPED = {
    "APIService",
    "CSIDriver",
    "CSINode",
    "CertificateSigningRequest",
    "ClusterRole",
    "ClusterRoleBinding",
    "ClusterTrustBundle",
    "CustomResourceDefinition",
    "DeviceClass",
    "FlowSchema",
    "IPAddress",
    "IngressClass",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "PersistentVolume",
    "PriorityClass",
    "PriorityLevelConfiguration",
    "ResourceSlice",
    "RuntimeClass",
    "ServiceCIDR",
    "StorageClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
    "VolumeAttachment",
    "VolumeAttributesClass",
}


@dataclass(frozen=True)
class Urn:
    """The parts of `urn:pulumi:STACK::PROJECT::PARENT$kubernetes:batch/v1:Job::NAME` that the plugin uses."""

    text: str

    @property
    def token(self) -> str:
        """The type token, e.g. `kubernetes:batch/v1:Job`."""
        return self.text.split("::")[2].split("$")[-1]

    @property
    def name(self) -> str:
        """The logical name in the program."""
        return self.text.split("::", 3)[3]

    @property
    def type_name(self) -> str:
        """`Job` or `JobPatch`."""
        return self.token.rsplit(":", 1)[-1]

    @property
    def api_version(self) -> str:
        """`batch/v1`; the core group is written `v1`, as in a manifest."""
        module = self.token.split(":")[1]
        return module.removeprefix("core/")

    def is_patch(self, kind: str | None) -> bool:
        """Whether this is `JobPatch` for kind `Job`: it owns a few fields of an object, not the object."""
        return bool(kind) and self.type_name == f"{kind}Patch"


def require_supported(urn: Urn) -> None:
    """PluginError for the resource types of the real plugin that are not Kubernetes objects.

    Raises:
        PluginError: a Helm release, a YAML component or a `...List`.
    """
    parts = urn.token.split(":")
    if len(parts) != 3 or parts[0] != "kubernetes" or "/" not in parts[1]:
        raise PluginError(
            f"{urn.token} is not supported by this stand-in plugin, which handles Kubernetes objects only"
        )
    if parts[1].startswith("helm.sh/") or parts[1] in ("yaml/v2", "kustomize/v2", "yaml", "kustomize"):
        raise PluginError(
            f"{urn.token} is not supported by this stand-in plugin: write the objects as resources of their own kinds, "
            "or use the real pulumi-kubernetes plugin"
        )
    if urn.type_name.endswith("List") and parts[1] != "meta/v1":
        raise PluginError(f"{urn.type_name} cannot be created: create the items as resources of their own kinds")


def api_version_and_kind(urn: Urn, inputs: dict[str, Any]) -> tuple[str, str]:
    """apiVersion and kind from the inputs, or from the type token where the inputs lack them (import)."""
    api_version = inputs.get("apiVersion") or urn.api_version
    kind = inputs.get("kind") or urn.type_name.removesuffix("Patch")
    return str(api_version).removeprefix("core/"), str(kind)


def metadata(obj: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an object; an empty dict where it has none or it is unknown."""
    found = obj.get("metadata")
    return found if isinstance(found, dict) else {}


def annotation(obj: dict[str, Any], key: str) -> str:
    """The value of an annotation, or an empty string."""
    annotations = metadata(obj).get("annotations")
    value = annotations.get(key) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else ""


def annotated_true(obj: dict[str, Any], key: str) -> bool:
    """Whether an annotation is the string `true`."""
    return annotation(obj, key) == "true"


def object_id(obj: dict[str, Any]) -> str:
    """Pulumi's id of an object: `namespace/name`, or `name` for one without a namespace."""
    meta = metadata(obj)
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def parse_id(text: str) -> tuple[str, str]:
    """(namespace or "", name) of an id."""
    namespace, slash, name = text.partition("/")
    return (namespace, name) if slash else ("", namespace)


def describe(obj: dict[str, Any]) -> str:
    """`Job demo/train`: how messages name an object."""
    return f"{obj.get('kind', 'object')} {object_id(obj)}"


def is_named(inputs: dict[str, Any]) -> bool:
    """Whether the program gave metadata.name, known or not."""
    return bool(metadata(inputs).get("name")) or inputs.get("metadata") is UNKNOWN


def is_autonamed(inputs: dict[str, Any]) -> bool:
    """Whether the plugin chose the name."""
    return annotated_true(inputs, AUTONAMED)


def random_suffix(seed: bytes) -> str:
    """Eight hexadecimal digits, the same for the same seed, so that preview and update agree."""
    return hashlib.sha512(seed).hexdigest()[:8] if seed else secrets.token_hex(4)


def assign_name(inputs: dict[str, Any], olds: dict[str, Any], urn: Urn, seed: bytes, proposed: str | None) -> None:
    """Give `inputs` a name where the program gave none: the old automatic one, else the engine's, else a fresh one.

    `proposed` is the name that the engine's auto-naming configuration asks for, "" where it forbids automatic names,
    None where it says nothing.

    Raises:
        PluginError: a name is needed and automatic names are forbidden.
    """
    if is_named(inputs):
        return
    meta = inputs.setdefault("metadata", {})
    if not isinstance(meta, dict):
        return
    if meta.get("generateName"):
        raise PluginError(
            "metadata.generateName does not work with server-side apply: leave metadata.name out instead, and Pulumi "
            "appends a random suffix to the resource's name"
        )
    if olds and is_autonamed(olds):
        meta["name"] = metadata(olds)["name"]
    elif proposed == "":
        raise PluginError("pulumi:autonaming is disabled for this stack: set metadata.name")
    else:
        meta["name"] = proposed or f"{urn.name}-{random_suffix(seed)}"
    annotations = meta.setdefault("annotations", {})
    if isinstance(annotations, dict):
        annotations[AUTONAMED] = "true"


def field_manager(inputs: dict[str, Any], state: dict[str, Any]) -> str:
    """The server-side apply manager of a resource: its annotation, else the one in the state, else a fresh one."""
    chosen = annotation(inputs, PATCH_FIELD_MANAGER) or state.get("__fieldManager")
    return str(chosen) if chosen else f"pulumi-kubernetes-{secrets.token_hex(4)}"
