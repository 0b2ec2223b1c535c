"""Names: URNs, ids, auto-naming and the `pulumi.com/*` annotations."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from .values import UNKNOWN

AUTONAMED = "pulumi.com/autonamed"
SKIP_AWAIT = "pulumi.com/skipAwait"
TIMEOUT_SECONDS = "pulumi.com/timeoutSeconds"
REPLACE_UNREADY = "pulumi.com/replaceUnready"
PATCH_FORCE = "pulumi.com/patchForce"
DELETION_PROPAGATION = "pulumi.com/deletionPropagationPolicy"

#: The program's kinds that belong to no namespace, for a preview before the cluster exists, when no API server can be
#: asked. From `kubectl api-resources --namespaced=false` of Kubernetes 1.34.
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "Namespace", "PersistentVolume", "PriorityClass", "StorageClass"}


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
        return self.token.split(":")[1].removeprefix("core/")

    def is_patch(self, kind: str | None) -> bool:
        """Whether this is a patch resource (`JobPatch` for kind `Job`), which owns some fields of an object."""
        return bool(kind) and self.type_name == f"{kind}Patch"


def api_version_and_kind(urn: Urn, inputs: dict[str, Any]) -> tuple[str, str]:
    """Return apiVersion and kind from the inputs, or from the type token if the inputs lack them (import)."""
    api_version = inputs.get("apiVersion") or urn.api_version
    return str(api_version).removeprefix("core/"), str(inputs.get("kind") or urn.type_name.removesuffix("Patch"))


def metadata(obj: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of an object; an empty dict if it has none or it is unknown."""
    found = obj.get("metadata")
    return found if isinstance(found, dict) else {}


def annotation(obj: dict[str, Any], key: str) -> str:
    """The value of an annotation, or an empty string."""
    annotations = metadata(obj).get("annotations")
    value = annotations.get(key) if isinstance(annotations, dict) else None
    return value if isinstance(value, str) else ""


def annotated_true(obj: dict[str, Any], key: str) -> bool:
    return annotation(obj, key) == "true"


def object_id(obj: dict[str, Any]) -> str:
    """Return Pulumi's id of an object: `namespace/name`, or `name` if it has no namespace."""
    meta = metadata(obj)
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


def parse_id(text: str) -> tuple[str, str]:
    """(namespace or "", name) of an id."""
    namespace, _, name = text.rpartition("/")
    return namespace, name


def describe(obj: dict[str, Any]) -> str:
    """`Job demo/train`: how messages name an object."""
    return f"{obj.get('kind', 'object')} {object_id(obj)}"


def is_named(inputs: dict[str, Any]) -> bool:
    """Whether the program set metadata.name, even to an unknown value."""
    return bool(metadata(inputs).get("name")) or inputs.get("metadata") is UNKNOWN


def is_autonamed(inputs: dict[str, Any]) -> bool:
    """Whether the plugin chose the name."""
    return annotated_true(inputs, AUTONAMED)


def random_suffix(seed: bytes) -> str:
    """Return eight hex digits, the same for the same seed, so that preview and update agree."""
    return hashlib.sha512(seed).hexdigest()[:8] if seed else secrets.token_hex(4)


def assign_name(inputs: dict[str, Any], olds: dict[str, Any], urn: Urn, seed: bytes) -> None:
    """Name `inputs` if the program did not: with the old automatic name, else with a new one."""
    if is_named(inputs):
        return
    meta = inputs.setdefault("metadata", {})
    automatic = olds and is_autonamed(olds)
    meta["name"] = metadata(olds)["name"] if automatic else f"{urn.name}-{random_suffix(seed)}"
    annotations = meta.setdefault("annotations", {})
    if isinstance(annotations, dict):
        annotations[AUTONAMED] = "true"


def field_manager(state: dict[str, Any]) -> str:
    """Return the field manager of a resource for server-side apply: the one in its state, else a new one."""
    return str(state.get("__fieldManager") or f"pulumi-kubernetes-{secrets.token_hex(4)}")
