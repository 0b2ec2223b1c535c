"""The gRPC face of the stand-ins: messages in, calls of `Resources`, messages out, a refusal as one readable status."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from . import diff
from .aws.account import Account
from .cloud import Cloud
from .naming import PluginError, Urn
from .server import PROJECT, Resources
from .values import from_struct, reveal, to_struct

LARGEST_MESSAGE = 400 * 1024 * 1024  # bytes; the engine's own limit


class Server(provider_pb2_grpc.ResourceProviderServicer):
    """Pulumi's ResourceProvider service for one package. The names of its methods are the protocol's."""

    def __init__(self, version: str, package: str, cloud: Cloud, account: Account | None) -> None:
        self._version, self._package, self._cloud, self._account = version, package, cloud, account
        self._resources: Resources | None = None
        self._keep_secrets = False

    def Attach(self, request: Any, context: Any) -> empty_pb2.Empty:
        return empty_pb2.Empty()

    def Cancel(self, request: Any, context: Any) -> empty_pb2.Empty:
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=self._version)

    def CheckConfig(self, request: Any, context: Any) -> provider_pb2.CheckResponse:
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request: Any, context: Any) -> provider_pb2.DiffResponse:
        changed = diff.changes(reveal(from_struct(request.old_inputs)), reveal(from_struct(request.news)))
        # Another clusterIdentifier means another cluster, and replaces every object in it.
        replaces = [key for path, _ in changed.items() if (key := str(path[0])) == "clusterIdentifier"]
        return provider_pb2.DiffResponse(
            changes=_some(changed), diffs=map(diff.format_path, changed), replaces=replaces
        )

    def Configure(self, request: Any, context: Any) -> provider_pb2.ConfigureResponse:
        self._keep_secrets = request.acceptSecrets
        if self._package == "aws":
            from .aws.provider import AwsResources

            region = request.variables["aws:config:region"]
            self._resources = AwsResources(self._cloud, region, self._account)
        else:
            project = request.variables.get(f"{self._package}:config:project") or PROJECT
            self._resources = Resources(self._package, self._cloud, project)
        return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    def Invoke(self, request: Any, context: Any) -> Any:
        with self._refusals(context) as resources:
            answer = resources.answer(request.tok, reveal(from_struct(request.args)))
            # `return` is a keyword of Python.
            fields: dict[str, Any] = {"return": to_struct(answer, True)}
            return provider_pb2.InvokeResponse(**fields)

    def Check(self, request: Any, context: Any) -> provider_pb2.CheckResponse:
        with self._refusals(context) as resources:
            try:
                given = from_struct(request.olds), from_struct(request.news)
                inputs = resources.check(Urn(request.urn), *given, request.randomSeed)
            except PluginError as error:
                failure = provider_pb2.CheckFailure(reason=str(error))
                return provider_pb2.CheckResponse(inputs=request.news, failures=[failure])
            return provider_pb2.CheckResponse(inputs=self._struct(inputs))

    def Diff(self, request: Any, context: Any) -> provider_pb2.DiffResponse:
        with self._refusals(context) as resources:
            # What the program gave before, not what the cloud added to it.
            given = from_struct(request.old_inputs), from_struct(request.news)
            detailed, replaces, delete_first = resources.diff(Urn(request.urn), *given, list(request.ignoreChanges))
            return provider_pb2.DiffResponse(
                changes=_some(detailed or replaces),
                replaces=replaces,
                deleteBeforeReplace=delete_first,
                detailedDiff={
                    path: provider_pb2.PropertyDiff(kind=_kind(kind), inputDiff=True) for path, kind in detailed.items()
                },
                hasDetailedDiff=True,
            )

    def Create(self, request: Any, context: Any) -> provider_pb2.CreateResponse:
        with self._refusals(context) as resources:
            given = from_struct(request.properties)
            object_id, outputs = resources.create(Urn(request.urn), given, request.timeout, request.preview)
            return provider_pb2.CreateResponse(id=object_id, properties=self._struct(outputs))

    def Update(self, request: Any, context: Any) -> provider_pb2.UpdateResponse:
        with self._refusals(context) as resources:
            given = from_struct(request.olds), from_struct(request.news), list(request.ignoreChanges)
            outputs = resources.update(Urn(request.urn), *given, request.timeout, request.preview)
            return provider_pb2.UpdateResponse(properties=self._struct(outputs))

    def Read(self, request: Any, context: Any) -> provider_pb2.ReadResponse:
        with self._refusals(context) as resources:
            given = from_struct(request.properties), from_struct(request.inputs)
            id_, outputs, inputs = resources.read(Urn(request.urn), request.id, *given)
            if not id_:
                return provider_pb2.ReadResponse(id="")
            return provider_pb2.ReadResponse(id=id_, properties=self._struct(outputs), inputs=self._struct(inputs))

    def Delete(self, request: Any, context: Any) -> empty_pb2.Empty:
        with self._refusals(context) as resources:
            resources.delete(Urn(request.urn), request.id, from_struct(request.properties), request.timeout)
            return empty_pb2.Empty()

    def _struct(self, value: dict[str, Any]) -> Any:
        return to_struct(value, self._keep_secrets)

    @contextmanager
    def _refusals(self, context: Any) -> Iterator[Resources]:
        try:
            if self._resources is None:
                raise PluginError("the provider is used before it is configured")
            yield self._resources
        except (PluginError, ValueError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))


def listen(server: Server) -> tuple[grpc.Server, int]:
    """Serve a package; return the gRPC server and its port on 127.0.0.1."""
    sizes = [("grpc.max_receive_message_length", LARGEST_MESSAGE), ("grpc.max_send_message_length", LARGEST_MESSAGE)]
    # One thread for each resource that is awaited at the same time.
    listening = grpc.server(futures.ThreadPoolExecutor(max_workers=256), options=sizes)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(server, listening)
    port = listening.add_insecure_port("127.0.0.1:0")
    listening.start()
    return listening, port


def _some(changes: Any) -> Any:
    return provider_pb2.DiffResponse.DIFF_SOME if changes else provider_pb2.DiffResponse.DIFF_NONE


def _kind(change: str) -> Any:
    """The protocol's word for a change: `add-replace` is ADD_REPLACE there."""
    return provider_pb2.PropertyDiff.Kind.Value(change.replace("-", "_").upper())
