"""Names: URNs, automatic names, and the refusal of an operation."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

from .values import UNKNOWN

AUTONAMED = "pulumi.com/autonamed"
#: The program's kinds that belong to no namespace. From `kubectl api-resources --namespaced=false` of Kubernetes 1.34.
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "Namespace", "PersistentVolume", "PriorityClass", "StorageClass"}


class PluginError(Exception):
    """What a cloud or a provider refuses, shown to the user as it is."""


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


def is_named(inputs: dict[str, Any]) -> bool:
    """Whether the program set metadata.name, even to an unknown value."""
    return bool(metadata(inputs).get("name")) or inputs.get("metadata") is UNKNOWN


def is_autonamed(inputs: dict[str, Any]) -> bool:
    """Whether the plugin chose the name."""
    annotations = metadata(inputs).get("annotations")
    return isinstance(annotations, dict) and annotations.get(AUTONAMED) == "true"


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
