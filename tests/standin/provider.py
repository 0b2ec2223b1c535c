"""One provider for every package under the real Pulumi engine, in place of the clouds and of Kubernetes.

It echoes inputs, adds what review/computed.py says that a cloud adds, knows which changes replace a resource
(replaces.py), and refuses two things as the clouds do: what exists already, and objects without a cluster.

The engine attaches to it in the test's own process. It keeps secrets from it, and marks the outputs itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc
from pulumi.runtime.rpc import UNKNOWN

from infra.facts import load
from infra.stackfiles import ROOT
from review import computed

from . import replaces

Values = dict[str, Any]
PACKAGES = ("gcp", "aws", "docker-build", "kubernetes")
CLUSTERS = ("gcp:container/cluster:Cluster", "aws:eks/cluster:Cluster")
#: What goes with its cluster, by infra/{gke,eks}/order.yaml: types, or how they begin.
WITH_CLUSTER = (
    "kubernetes:",
    *(name for path in (ROOT / "infra").glob("*/order.yaml") for name in load(path)["with_cluster"].split()),
)
#: Inputs by which a program names a resource, beside metadata.name.
NAMES = ("name", "nodeGroupName", "repository", "repositoryId", "accountId")
#: bytes; the engine's own limit
LARGEST_MESSAGE = 400 * 1024 * 1024


@dataclass(frozen=True)
class Thing:
    """One resource that exists."""

    type: str
    name: str
    id: str
    inputs: Values
    outputs: Values

    @property
    def title(self) -> str:
        return f"{self.type} {self.name}"


@dataclass
class Cloud:
    """What exists, the oldest first, and what was done: (create, update or delete, "TYPE NAME")."""

    things: list[Thing] = field(default_factory=list)
    journal: list[tuple[str, str]] = field(default_factory=list)
    api: str = ""
    """Address of a real API server, at which a cluster of GKE is then reached."""

    def titles(self) -> set[str]:
        return {thing.title for thing in self.things}

    def of_type(self, ending: str) -> list[Thing]:
        return [thing for thing in self.things if thing.type.endswith(ending)]

    @contextmanager
    def attached(self, packages: tuple[str, ...]) -> Iterator[str]:
        """Serve the packages. Yields the value of the engine's variable PULUMI_DEBUG_PROVIDERS, "PACKAGE:PORT,..."."""
        sizes = [
            ("grpc.max_receive_message_length", LARGEST_MESSAGE),
            ("grpc.max_send_message_length", LARGEST_MESSAGE),
        ]
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=32), options=sizes)
        provider_pb2_grpc.add_ResourceProviderServicer_to_server(_Provider(self), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield ",".join(f"{package}:{port}" for package in packages)
        server.stop(grace=None).wait()


class _Provider(provider_pb2_grpc.ResourceProviderServicer):
    """Pulumi's ResourceProvider service. The names of its methods are the protocol's."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._place = "test-project"
        """The project or region of the one cloud that a stack uses."""

    def Attach(self, request: Any, context: Any) -> empty_pb2.Empty:
        return empty_pb2.Empty()

    def Cancel(self, request: Any, context: Any) -> empty_pb2.Empty:
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version="99.0.0")

    def CheckConfig(self, request: Any, context: Any) -> provider_pb2.CheckResponse:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> provider_pb2.DiffResponse:
        changed = list(_changes(_plain(request.old_inputs), _plain(request.news)))
        # Another clusterIdentifier means another cluster, and replaces every object in it.
        return _difference(changed, [path for path in changed if path[0] == "clusterIdentifier"], False)

    def Configure(self, request: Any, context: Any) -> provider_pb2.ConfigureResponse:
        given = request.variables
        self._place = given.get("gcp:config:project") or given.get("aws:config:region") or self._place
        return provider_pb2.ConfigureResponse(supportsPreview=True)

    def Invoke(self, request: Any, context: Any) -> Any:
        answer = computed.answer(request.tok, _plain(request.args), self._place)
        if answer is None:
            context.abort(grpc.StatusCode.UNKNOWN, f"the function {request.tok} is not in any computed.yaml")
        # `return` is a keyword of Python.
        fields: dict[str, Any] = {"return": _struct(answer or {})}
        return provider_pb2.InvokeResponse(**fields)

    def Check(self, request: Any, context: Any) -> provider_pb2.CheckResponse:
        type_ = _type(request.urn)
        if not replaces.is_known(type_):
            reason = f"{type_} is not known here: add it to tests/standin/replaces-KIND.yaml"
            return provider_pb2.CheckResponse(failures=[provider_pb2.CheckFailure(reason=reason)])
        return provider_pb2.CheckResponse(inputs=request.news)

    def Diff(self, request: Any, context: Any) -> provider_pb2.DiffResponse:
        type_, old, new = _type(request.urn), _plain(request.old_inputs), _plain(request.news)
        changed, forcing = list(_changes(old, new)), replaces.paths(type_, old, new)
        # Two cannot have one name that the program chose.
        return _difference(
            changed, [path for path in changed if replaces.matches(path, forcing)], _name(old) == _name(new) != ""
        )

    def Create(self, request: Any, context: Any) -> provider_pb2.CreateResponse:
        thing = self._thing(request.urn, _plain(request.properties))
        if reason := self._refusal(thing, request.preview):
            context.abort(grpc.StatusCode.UNKNOWN, f"{thing.title}: {reason}")
        if request.preview:
            outputs = _unknown_where_added(thing.outputs, thing.inputs)
            return provider_pb2.CreateResponse(id="", properties=_struct(outputs))
        self._cloud.things.append(thing)
        self._cloud.journal.append(("create", thing.title))
        return provider_pb2.CreateResponse(id=thing.id, properties=_struct(thing.outputs))

    def Update(self, request: Any, context: Any) -> provider_pb2.UpdateResponse:
        thing, state = self._thing(request.urn, _plain(request.news)), _plain(request.olds)
        counted = {key: state.get(key) for key in replaces.counted(thing.type)}
        if request.preview:
            known = _unknown_where_added(thing.outputs, thing.inputs) if UNKNOWN in str(thing.inputs) else thing.outputs
            return provider_pb2.UpdateResponse(properties=_struct({**known, **dict.fromkeys(counted, UNKNOWN)}))
        numbers = {key: value + 1 for key, value in counted.items() if isinstance(value, float)}
        # An id that is made of what changes, as an image's of its tag, stays the one of the first day.
        thing = replace(thing, id=request.id, outputs={**thing.outputs, **numbers})
        things = self._cloud.things
        at = max(at for at, each in enumerate(things) if (each.type, each.id) == (thing.type, thing.id))
        things[at] = thing
        self._cloud.journal.append(("update", thing.title))
        return provider_pb2.UpdateResponse(properties=_struct(thing.outputs))

    def Read(self, request: Any, context: Any) -> provider_pb2.ReadResponse:
        """Everything is as it was; what the pods of a Job leave behind is there too, under the Job's name."""
        state = request.properties
        if not state.fields:
            namespace, _, name = request.id.rpartition("/")
            state = _struct({"metadata": {"name": name, "namespace": namespace}, "data": {"result": "{}"}})
        return provider_pb2.ReadResponse(id=request.id, properties=state, inputs=request.inputs)

    def Delete(self, request: Any, context: Any) -> empty_pb2.Empty:
        type_ = _type(request.urn)
        there = [each for each in self._cloud.things if (each.type, each.id) == (type_, request.id)]
        if not there:
            return empty_pb2.Empty()  # it went with its cluster
        thing = there[0]
        self._cloud.things.remove(thing)
        self._cloud.journal.append(("delete", thing.title))
        if type_ in CLUSTERS:
            self._cloud.things[:] = [each for each in self._cloud.things if not each.type.startswith(WITH_CLUSTER)]
        return empty_pb2.Empty()

    def _thing(self, urn: str, inputs: Values) -> Thing:
        type_, name = _type(urn), urn.split("::", 3)[3]
        id_, outputs = computed.outputs(type_, name, inputs, self._place)
        if self._cloud.api and type_ == CLUSTERS[0]:
            outputs["controlPlaneEndpointsConfig"]["dnsEndpointConfig"]["endpoint"] = self._cloud.api
        return Thing(type_, name, id_, inputs, outputs)

    def _refusal(self, thing: Thing, preview: bool) -> str:
        """Say why a resource cannot be created; "": no reason.

        A patch makes what is not there, and takes what is. A preview of an object asks the API server too (a dry run);
        what a replacement is to follow is still there then.
        """
        is_object = thing.type.startswith("kubernetes:")
        once = bool(_name(thing.inputs)) and not thing.type.endswith("Patch")
        there = [each for each in self._cloud.things if once and (each.type, each.id) == (thing.type, thing.id)]
        if preview:
            there = [each for each in there if is_object and each.name != thing.name]
        if there:
            return f"409 already exists: {thing.id}"
        alone = is_object and not preview and not any(each.type in CLUSTERS for each in self._cloud.things)
        return "the API server does not answer: there is no cluster" if alone else ""


def _type(urn: str) -> str:
    return urn.split("::")[2].split("$")[-1]


def _name(inputs: Values) -> str:
    """The name that the program gives a resource; "": the provider makes one up."""
    metadata = inputs.get("metadata")  # a text where it is unknown
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    return name or next((inputs[key] for key in NAMES if inputs.get(key)), "")


def _plain(struct: struct_pb2.Struct) -> Values:
    return json_format.MessageToDict(struct)


def _struct(values: Values) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(values)
    return struct


def _changes(old: Any, new: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every path at which two values differ. null and missing are equal."""
    if isinstance(old, list) and isinstance(new, list):
        old, new = ({str(at): item for at, item in enumerate(items)} for items in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _changes(old.get(key), new.get(key), (*path, key))
    elif old != new:
        yield path


def _difference(
    changed: list[tuple[str, ...]], replacing: list[tuple[str, ...]], delete_first: bool
) -> provider_pb2.DiffResponse:
    some, none = provider_pb2.DiffResponse.DIFF_SOME, provider_pb2.DiffResponse.DIFF_NONE
    return provider_pb2.DiffResponse(
        changes=some if changed else none,
        diffs=sorted({path[0] for path in changed}),
        replaces=sorted({path[0] for path in replacing}),
        deleteBeforeReplace=bool(replacing) and delete_first,
    )


def _unknown_where_added(outputs: Any, inputs: Any) -> Any:
    """`outputs` with an unknown in place of everything that the inputs do not give: a preview's."""
    if isinstance(outputs, dict) and isinstance(inputs, dict):
        return {key: _unknown_where_added(value, inputs.get(key)) for key, value in outputs.items()}
    if isinstance(outputs, list) and isinstance(inputs, list) and len(outputs) == len(inputs):
        return [_unknown_where_added(*pair) for pair in zip(outputs, inputs, strict=True)]
    return UNKNOWN if inputs is None else inputs
