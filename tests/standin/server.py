"""The protocol's calls, for resources of a cloud and for Kubernetes objects in its clusters."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from typing import Any

from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2

from local.plugin import diff, naming, state
from local.plugin.client import Client
from local.plugin.engine import Engine
from local.plugin.errors import PluginError
from local.plugin.naming import Urn
from local.plugin.provider import Provider, compare
from local.plugin.server import Server
from local.plugin.settings import Settings
from local.plugin.values import UNKNOWN, from_struct, has_unknown, mark_secrets, reveal, to_struct
from review import computed, replaces

from . import own
from .aws.account import Account
from .cloud import Cloud, Thing

#: The property that the provider names by itself, with random digits, where the program does not.
NAMED = ("compute/", "container/", "filestore/")
DEFAULTS = "__defaults"
JOB, CONFIG_MAP = "kubernetes:batch/v1:Job", "kubernetes:core/v1:ConfigMap"
PROJECT = "test-project"


class CloudServer(Server):
    """Everything of the Kubernetes stand-in's server but where resources live, and how they are compared."""

    def __init__(self, engine: Any, version: str, package: str, cloud: Cloud, account: Account | None) -> None:
        super().__init__(engine, version)
        self._package, self._cloud, self._account = package, cloud, account

    def Attach(self, request: Any, context: Any) -> empty_pb2.Empty:
        """The engine's address, which a plugin that it starts has as an argument."""
        self._engine = Engine(request.address)
        return empty_pb2.Empty()

    def CheckConfig(self, request: Any, context: Any) -> provider_pb2.CheckResponse:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> provider_pb2.DiffResponse:
        if self._package == "kubernetes":
            return super().DiffConfig(request, context)
        changed = diff.changes(reveal(from_struct(request.old_inputs)), reveal(from_struct(request.news)))
        some = provider_pb2.DiffResponse.DIFF_SOME if changed else provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(changes=some)

    def Configure(self, request: Any, context: Any) -> provider_pb2.ConfigureResponse:
        self._keep_secrets = request.acceptSecrets
        if self._package == "aws":
            from .aws.provider import AwsResources

            region = request.variables["aws:config:region"]
            resources: Resources = AwsResources(self._cloud, region, self._engine, self._account)
        else:
            project = request.variables.get(f"{self._package}:config:project") or PROJECT
            resources = Resources(self._package, self._cloud, project, self._engine)
        self._provider = resources  # type: ignore[assignment]
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    def Invoke(self, request: Any, context: Any) -> Any:
        if self._package == "kubernetes":
            return super().Invoke(request, context)
        with self._errors(context):
            answer = self._configured().answer(request.tok, reveal(from_struct(request.args)))  # type: ignore[attr-defined]
            # `return` is a keyword of Python.
            fields: dict[str, Any] = {"return": to_struct(answer, True)}
            return provider_pb2.InvokeResponse(**fields)

    def Diff(self, request: Any, context: Any) -> provider_pb2.DiffResponse:
        # What the program gave before, not what the cloud added to it.
        request.olds.CopyFrom(request.old_inputs)
        return super().Diff(request, context)


class Resources:
    """Does with a package's resources what local.plugin's Provider does with Kubernetes objects."""

    def __init__(self, package: str, cloud: Cloud, project: str, engine: Any) -> None:
        self._package, self._cloud, self._project = package, cloud, project
        settings = Settings(kubeconfig={}, context=None, namespace="default", problem="no cluster is asked")
        self._kubernetes = Provider(settings, Client(settings, threading.Event()), engine)

    def check(self, urn: Urn, olds: dict[str, Any], news: dict[str, Any], seed: bytes) -> dict[str, Any]:
        """The inputs, with a name where the provider gives one. Raises PluginError for types that nobody looked at."""
        if self._package == "kubernetes":
            return self._kubernetes.check(urn, olds, news, seed)
        if not replaces.is_known(urn.token):
            raise PluginError(f"{urn.token} is not known here: add what replaces it to its cloud's replaces.yaml")
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
            old, new = state.normalize(old), state.normalize(new)
            found, replacing = compare(urn, old, new, ignored)
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
        if token not in computed.ANSWERS:
            raise PluginError(f"the function {token} is not known here")
        return computed.ANSWERS[token](given, self._project)

    def _thing(self, urn: Urn, given: dict[str, Any]) -> Thing:
        inputs = reveal(given)
        inputs.pop(DEFAULTS, None)
        id_, outputs = computed.outputs(urn.token, urn.name, inputs, self._project)
        return Thing(urn.token, urn.name, id_, inputs, _with_digest(outputs))

    def _previewed(self, urn: Urn, given: dict[str, Any]) -> dict[str, Any]:
        """The inputs; what the cloud will add is not known yet."""
        known = reveal(given)
        _, outputs = computed.outputs(urn.token, urn.name, _without_unknowns(known), self._project)
        return mark_secrets(_unknown_where_added(outputs, known), given)


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
