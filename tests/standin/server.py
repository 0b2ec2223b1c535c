"""What a provider does with the resources of a cloud, and with the Kubernetes objects in its clusters."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any

from review import computed

from . import diff, naming, own, replaces
from .cloud import Cloud, Thing
from .naming import PluginError, Urn
from .values import UNKNOWN, has_unknown, mark_secrets, reveal

#: The property that the provider names by itself, with random digits, where the program does not.
NAMED = ("compute/", "container/", "filestore/")
DEFAULTS = "__defaults"
JOB, CONFIG_MAP = "kubernetes:batch/v1:Job", "kubernetes:core/v1:ConfigMap"
PROJECT = "test-project"


class Resources:
    """One package's resources."""

    def __init__(self, package: str, cloud: Cloud, project: str) -> None:
        self._package, self._cloud, self._project = package, cloud, project

    def check(self, urn: Urn, olds: dict[str, Any], news: dict[str, Any], seed: bytes) -> dict[str, Any]:
        """The inputs, with a name where the provider gives one. Raises PluginError for types that nobody looked at."""
        if self._package == "kubernetes":
            return _check_object(urn, olds, news, seed)
        if not replaces.is_known(urn.token):
            raise PluginError(f"{urn.token} is not known here: add it to tests/standin/replaces-KIND.yaml")
        named = self._named(urn.token)
        if named and named not in news:
            automatic = named in olds.get(DEFAULTS, [])
            name = olds[named] if automatic else f"{urn.name}-{naming.random_suffix(seed)[:7]}"
            return {**news, named: name, DEFAULTS: [named]}
        return {**news, DEFAULTS: []}

    def _named(self, token: str) -> str:
        """The property that the provider fills where the program does not; "": none."""
        return "name" if token.removeprefix("gcp:").startswith(NAMED) else ""

    def diff(
        self, urn: Urn, olds: dict[str, Any], news: dict[str, Any], ignored: list[str]
    ) -> tuple[dict[str, str], list[str], bool]:
        """(detailed diff, replacing paths, delete before replace)."""
        old, new = reveal(olds), reveal(news)
        if self._package == "kubernetes":
            old, new = normalize(old), normalize(new)
            # A patch can change in place the fields that would replace a whole object.
            forcing = replaces.IDENTITY if urn.is_patch(new.get("kind")) else replaces.of_object(new)
            found = diff.detailed(old, new, ignored, forcing)
            replacing = diff.replacing(found)
            return found, replacing, diff.must_delete_first(bool(replacing), new, old)
        old.pop(DEFAULTS, None)
        automatic = bool(new.pop(DEFAULTS, None))
        old = own.compared(urn.token, old, new)
        found = diff.detailed(old, new, ignored, replaces.paths(urn.token, old, new))
        replacing = diff.replacing(found)
        # As the bridge does: two cannot have one name, unless the provider chose it and takes another.
        return found, replacing, bool(replacing) and not automatic and self._same_name(urn.token, old, new)

    def _same_name(self, token: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
        return old.get("name") == new.get("name")

    def create(self, urn: Urn, given: dict[str, Any], timeout: float, preview: bool) -> tuple[str, dict[str, Any]]:
        """(id, outputs) of a new resource."""
        if preview:
            return "", self._previewed(urn, given)
        thing = self._thing(urn, given)
        self._cloud.create(urn.text, thing)
        return thing.id, mark_secrets(thing.outputs, given)

    def update(
        self, urn: Urn, olds: dict[str, Any], given: dict[str, Any], ignored: list[str], timeout: float, preview: bool
    ) -> dict[str, Any]:
        """The outputs of the changed resource."""
        if preview and has_unknown(given):
            return self._previewed(urn, given)
        thing = self._thing(urn, given)
        if not preview:
            # An id that is made of what changes, as an image's of its tag, stays the one of the first day.
            self._cloud.update(urn.text, replace(thing, id=self._cloud.id_of(urn.text)))
        return mark_secrets(thing.outputs, given)

    def read(
        self, urn: Urn, object_id: str, properties: dict[str, Any], old_given: dict[str, Any]
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """What exists is as it was, but for what the cloud sets; what the pods of a Job leave behind is there too."""
        things = self._cloud.things()
        if f"{urn.text}#{object_id}" in things:
            given = own.inputs(urn.token, old_given)
            return object_id, own.outputs(urn.token, reveal(old_given), properties), given
        namespace, _, name = object_id.rpartition("/")
        jobs = [thing.id for thing in things.values() if thing.type == JOB]
        if urn.token == CONFIG_MAP and object_id in jobs:
            kind = {"apiVersion": "v1", "kind": "ConfigMap"}
            found = {**kind, "metadata": {"name": name, "namespace": namespace}, "data": {"result": "{}"}}
            return object_id, found, found
        return "", {}, {}

    def delete(self, urn: Urn, object_id: str, properties: dict[str, Any], timeout: float) -> None:
        self._cloud.delete(urn.text, object_id)

    def answer(self, token: str, given: dict[str, Any]) -> dict[str, Any]:
        """What a function of the package answers."""
        if (found := computed.answer(token, given, self._project)) is None:
            raise PluginError(f"the function {token} is not known here")
        return found

    def _thing(self, urn: Urn, given: dict[str, Any]) -> Thing:
        inputs = reveal(given)
        inputs.pop(DEFAULTS, None)
        id_, outputs = computed.outputs(urn.token, urn.name, inputs, self._project)
        if self._cloud.api and urn.token == "gcp:container/cluster:Cluster":
            outputs["controlPlaneEndpointsConfig"]["dnsEndpointConfig"]["endpoint"] = self._cloud.api
        return Thing(urn.token, urn.name, id_, inputs, _with_digest(outputs))

    def _previewed(self, urn: Urn, given: dict[str, Any]) -> dict[str, Any]:
        """The inputs; what the cloud will add is not known yet."""
        known = reveal(given)
        _, outputs = computed.outputs(urn.token, urn.name, _without_unknowns(known), self._project)
        return mark_secrets(_unknown_where_added(outputs, known), given)


def _check_object(urn: Urn, olds: dict[str, Any], news: dict[str, Any], seed: bytes) -> dict[str, Any]:
    """A Kubernetes object's inputs with a name and a namespace."""
    inputs = reveal(news)
    inputs["apiVersion"], inputs["kind"] = naming.api_version_and_kind(urn, inputs)
    if inputs.get("metadata") is None:
        inputs["metadata"] = {}
    inputs = normalize(inputs)
    if urn.is_patch(inputs["kind"]) and not naming.is_named(inputs):
        raise PluginError("a patch resource needs metadata.name: the object whose fields it sets")
    naming.assign_name(inputs, reveal(olds), urn, seed)
    meta = inputs["metadata"]
    if isinstance(meta, dict) and not meta.get("namespace") and inputs["kind"] not in naming.CLUSTER_SCOPED:
        meta["namespace"] = "default"
    return mark_secrets(inputs, {**news, "kind": inputs["kind"]})


def normalize(obj: dict[str, Any]) -> dict[str, Any]:
    """Copy an object's inputs as the API server would return them: without nulls, and with stringData in data."""
    obj = _without_nulls(obj)
    given = obj.get("stringData")
    if obj.get("kind") == "Secret" and isinstance(given, dict) and not has_unknown(obj):
        encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in given.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}
        del obj["stringData"]
    return obj


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _with_digest(outputs: dict[str, Any]) -> dict[str, Any]:
    """An image's digest tells its contents, of which the tag is the hash."""
    if computed.DIGEST not in str(outputs):
        return outputs
    digest = f"sha256:{hashlib.sha256(str(outputs.get('tags')).encode()).hexdigest()}"
    return {
        key: value.replace(computed.DIGEST, digest) if isinstance(value, str) else value
        for key, value in outputs.items()
    }


def _without_unknowns(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_unknowns(item) for key, item in value.items() if item is not UNKNOWN}
    if isinstance(value, list):
        return ["unknown" if item is UNKNOWN else _without_unknowns(item) for item in value]
    return value


def _unknown_where_added(outputs: Any, inputs: Any) -> Any:
    """`outputs` with an unknown in place of everything that the inputs do not give."""
    if isinstance(outputs, dict) and isinstance(inputs, dict):
        return {key: _unknown_where_added(value, inputs.get(key)) for key, value in outputs.items()}
    if isinstance(outputs, list) and isinstance(inputs, list) and len(outputs) == len(inputs):
        return [_unknown_where_added(*pair) for pair in zip(outputs, inputs, strict=True)]
    return UNKNOWN if inputs is None or inputs is UNKNOWN else inputs
