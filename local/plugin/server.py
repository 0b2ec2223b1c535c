"""The gRPC face: messages in, calls of `Provider`, messages out, and every error as one readable status."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc, status_pb2

from . import settings
from .client import Client
from .engine import Engine
from .errors import InitFailedError, PluginError, hide
from .naming import Urn
from .provider import Provider
from .values import from_struct, reveal, secret_strings, to_struct


class Server(provider_pb2_grpc.ResourceProviderServicer):
    """Pulumi's ResourceProvider service. Calls that are not defined here answer UNIMPLEMENTED, as gRPC's base does."""

    def __init__(self, engine: Engine, version: str) -> None:
        self._engine = engine
        self._version = version
        self._cancelled = threading.Event()
        self._provider: Provider | None = None
        self._keep_secrets = False

    def cancel(self) -> None:
        """End every wait."""
        self._cancelled.set()

    # The names below are the protocol's.

    def GetPluginInfo(self, request: Any, context: Any) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=self._version)

    def Cancel(self, request: Any, context: Any) -> empty_pb2.Empty:
        self.cancel()
        return empty_pb2.Empty()

    def DiffConfig(self, request: Any, context: Any) -> provider_pb2.DiffResponse:
        with self._errors(context):
            olds = request.old_inputs if request.old_inputs.fields else request.olds
            changed, replaces = settings.diff(reveal(from_struct(olds)), reveal(from_struct(request.news)))
            return provider_pb2.DiffResponse(changes=_some(changed), diffs=changed, replaces=replaces)

    def Configure(self, request: Any, context: Any) -> provider_pb2.ConfigureResponse:
        with self._errors(context):
            self._keep_secrets = request.acceptSecrets
            told = settings.from_variables(dict(request.variables))
            self._provider = Provider(told, Client(told, self._cancelled), self._engine)
            return provider_pb2.ConfigureResponse(acceptSecrets=True, supportsPreview=True)

    def Check(self, request: Any, context: Any) -> provider_pb2.CheckResponse:
        news = from_struct(request.news)
        with self._errors(context, news):
            try:
                inputs = self._configured().check(Urn(request.urn), from_struct(request.olds), news, request.randomSeed)
            except PluginError as error:
                failure = provider_pb2.CheckFailure(reason=hide(str(error), secret_strings(news)))
                return provider_pb2.CheckResponse(inputs=request.news, failures=[failure])
            return provider_pb2.CheckResponse(inputs=to_struct(inputs, self._keep_secrets))

    def Diff(self, request: Any, context: Any) -> provider_pb2.DiffResponse:
        with self._errors(context):
            detailed, replaces, delete_first = self._configured().diff(
                Urn(request.urn), from_struct(request.olds), from_struct(request.news), list(request.ignoreChanges)
            )
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
        given = from_struct(request.properties)
        with self._errors(context, given):
            object_id, properties = self._configured().create(Urn(request.urn), given, request.timeout, request.preview)
            return provider_pb2.CreateResponse(id=object_id, properties=self._struct(properties))

    def Update(self, request: Any, context: Any) -> provider_pb2.UpdateResponse:
        given = from_struct(request.news)
        with self._errors(context, given):
            properties = self._configured().update(
                Urn(request.urn),
                from_struct(request.olds),
                given,
                list(request.ignoreChanges),
                request.timeout,
                request.preview,
            )
            return provider_pb2.UpdateResponse(properties=self._struct(properties))

    def Read(self, request: Any, context: Any) -> provider_pb2.ReadResponse:
        properties, inputs = from_struct(request.properties), from_struct(request.inputs)
        with self._errors(context, inputs):
            object_id, properties, inputs = self._configured().read(Urn(request.urn), request.id, properties, inputs)
            if not object_id:
                return provider_pb2.ReadResponse(id="")
            return provider_pb2.ReadResponse(
                id=object_id, properties=self._struct(properties), inputs=self._struct(inputs)
            )

    def Delete(self, request: Any, context: Any) -> empty_pb2.Empty:
        properties = from_struct(request.properties)
        with self._errors(context, properties):
            self._configured().delete(Urn(request.urn), request.id, properties, request.timeout)
            return empty_pb2.Empty()

    def _configured(self) -> Provider:
        if self._provider is None:
            raise PluginError("the provider is used before it is configured")
        return self._provider

    def _struct(self, value: dict[str, Any]) -> Any:
        return to_struct(value, self._keep_secrets)

    @contextmanager
    def _errors(self, context: Any, given: Any = None) -> Iterator[None]:
        """Turn exceptions into gRPC statuses, with no secret value and no traceback in them."""
        try:
            yield
        except InitFailedError as error:
            hidden = list(secret_strings(given))
            message = hide(str(error), hidden)
            failed = provider_pb2.ErrorResourceInitFailed(
                id=error.object_id,
                properties=self._struct(error.properties),
                reasons=[hide(reason, hidden) for reason in error.reasons],
                inputs=self._struct(error.inputs) if error.inputs is not None else None,
            )
            status = status_pb2.Status(code=grpc.StatusCode.UNKNOWN.value[0], message=message)  # type: ignore[attr-defined]
            status.details.add().Pack(failed)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.UNKNOWN, message)
        except (PluginError, ValueError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, hide(str(error), secret_strings(given)))


def _some(changes: Any) -> Any:
    return provider_pb2.DiffResponse.DIFF_SOME if changes else provider_pb2.DiffResponse.DIFF_NONE


def _kind(change: str) -> Any:
    """The protocol's word for a change: `add-replace` is ADD_REPLACE there."""
    return provider_pb2.PropertyDiff.Kind.Value(change.replace("-", "_").upper())
