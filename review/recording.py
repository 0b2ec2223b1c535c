"""Runs the program of a stack without a cloud and records every resource that it declares, with its options.

Tests and the policy rules read the record. Pulumi's mocks answer for the providers; the recorder keeps
what they drop: dependencies, deletedWith, ignoreChanges and the other options.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import tempfile
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pulumi
import yaml
from google.protobuf import json_format
from pulumi import _types
from pulumi.runtime import mocks, resource
from pulumi.runtime.config import set_all_config
from pulumi.runtime.proto import source_pb2
from pulumi.runtime.settings import set_root_resource
from pulumi.runtime.stack import run_in_stack
from pulumi.runtime.sync_await import _sync_await
from pydantic.alias_generators import to_camel

from cli import CommandError
from infra import changes
from infra.stackfiles import PROJECT, ROOT, stack_file_values
from review import computed

#: The key, and its value, that mark a secret among Pulumi's values (sdk/go/common/resource/sig.go).
SIGNATURE, SECRET = "4dabf18193072939515e22adb298388d", "1b47061264138c4ac30d75fd1eb44270"
# No record keeps where a resource was declared, and reading the whole call stack for it takes a third of a recording.
resource._get_stack_trace = source_pb2.StackTrace
# Called thousands of times in a recording for the same few hundred types.
_types.unwrap_type = cache(_types.unwrap_type)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One resource as the engine would be asked to register it."""

    type: str
    name: str
    urn: str
    parent: str = ""
    inputs: dict[str, Any] = field(default_factory=dict, metadata={"key": "object"})
    dependencies: tuple[str, ...] = ()
    """URNs of the resources that must exist before this one."""
    provider: str = ""
    custom: bool = False
    """False: a component, which no provider makes."""
    deleted_with: str = ""
    delete_before_replace: bool = False
    ignore_changes: tuple[str, ...] = ()
    replace_on_changes: tuple[str, ...] = ()
    protect: bool = False
    retain_on_delete: bool = False
    timeouts: Mapping[str, str] = field(default_factory=dict, metadata={"key": "customTimeouts"})
    """create, update and delete, as the program wrote them ("60m")."""

    @property
    def plain_name(self) -> str:
        """The name without the content hash, which any change of the trainer changes."""
        return re.sub(r"-[0-9a-f]{8}$", "", self.name)

    @property
    def kind(self) -> str:
        """Last part of the type: Job, Namespace ..."""
        return self.type.rsplit(":", 1)[1]

    @property
    def is_kubernetes(self) -> bool:
        return self.type.startswith("kubernetes:")

    def at(self, *path: str) -> Any:
        """The input at a path of keys; None where there is none."""
        value: Any = self.inputs
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


#: Field of a record -> its key in the engine's request.
KEYS = {each.name: each.metadata.get("key") or to_camel(each.name) for each in fields(Recorded) if each.name != "urn"}


class _Loop(asyncio.SelectorEventLoop):
    """Runs executor calls at once: pulumi's threads for its monitor cost a sixth of a recording and make the order of
    resources random."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits: the nested event loop of the mocks would make the order random too."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the mocks answer with plain values, and wait for none")


mocks._sync_await = _at_once  # pyrefly: ignore[bad-assignment]


class _Answers(mocks.Mocks):
    """Returns resources as they were declared, with the outputs that a provider would add."""

    def __init__(self, known: bool) -> None:
        self.known = known
        self.projects: dict[str, str] = {}
        """Name of a provider -> the project or region that it is configured for."""

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        # A provider would add random digits to a name of its choice; without them every record is the same.
        if args.typ.startswith("pulumi:providers:"):
            self.projects[args.name] = args.inputs.get("project") or args.inputs.get("region") or PROJECT
        if not self.known:
            return None, args.inputs
        return computed.outputs(args.typ, args.name, args.inputs, self._where(args.provider))

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        if args.token == changes.STATE:
            # A stack that was never brought up.
            return {"outputs": {}}, []
        if (answer := computed.answer(args.token, args.args, self._where(args.provider))) is not None:
            return answer, []
        raise AssertionError(f"the program calls {args.token}: each call is a round trip to a cloud at preview")

    def _where(self, provider: str | None) -> str:
        """The project or region of a provider reference, URN::id."""
        return self.projects.get((provider or "").rsplit("::", 1)[0].rsplit("::", 1)[-1], PROJECT)


class _Recorder(mocks.MockMonitor):
    def __init__(self, known: bool) -> None:
        super().__init__(_Answers(known))
        self.recorded: list[Recorded] = []
        """In the order of registration: a resource after those that it depends on."""
        self.outputs: dict[str, Any] = {}

    def RegisterResourceOutputs(self, request: Any) -> Any:
        if request.urn.split("::")[2] == "pulumi:pulumi:Stack":
            self.outputs = json_format.MessageToDict(request.outputs)
        return super().RegisterResourceOutputs(request)

    def RegisterResource(self, request: Any) -> Any:
        if request.type != "pulumi:pulumi:Stack":
            sent = json_format.MessageToDict(request)
            said: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in sent.items()
            }
            given = {name: said[key] for name, key in KEYS.items() if key in said}
            item = Recorded(**given, urn=self.make_urn(request.parent, request.type, request.name))
            self.recorded.append(item)
        return super().RegisterResource(request)


def closure(direct: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Each node -> all its direct and indirect predecessors."""
    found: dict[str, set[str]] = {}
    for node in TopologicalSorter(direct).static_order():
        before = direct.get(node, ())
        found[node] = set(before).union(*(found[each] for each in before))
    return found


@dataclass(frozen=True)
class Recording:
    resources: list[Recorded]
    outputs: dict[str, Any]

    def one(self, kind: str, name: str | None = None) -> Recorded:
        """The only resource of a kind (and name)."""
        found = [item for item in self.resources if item.kind == kind and name in (None, item.name)]
        if len(found) != 1:
            raise LookupError(f"{len(found)} resources of kind {kind} named {name or 'anything'}, not one")
        return found[0]

    @cached_property
    def direct(self) -> dict[str, set[str]]:
        """URN -> URNs that must exist before the resource: its dependencies and its provider."""
        urns = {item.urn for item in self.resources}
        return {item.urn: {*item.dependencies, item.provider.rsplit("::", 1)[0]} & urns for item in self.resources}

    @cached_property
    def _before(self) -> dict[str, set[str]]:
        return closure(self.direct)

    def earlier(self, item: Recorded) -> set[str]:
        """URNs of all direct and indirect predecessors of a resource."""
        return self._before[item.urn]

    def all(self, prefix: str) -> list[Recorded]:
        """The resources whose type starts with `prefix`."""
        return [item for item in self.resources if item.type.startswith(prefix)]


def record(stack_name: str, values: Mapping[str, Any] | None = None, known: bool = True) -> Recording:
    """Run the program for a stack. `values` (the keys under `trainyard:`) default to the stack's file.

    Without `known` it is the first preview: nothing exists, and the values that a cloud would add are unknown.

    Raises:
        pulumi.RunError: the configuration is invalid.
    """
    values = stack_file_values(stack_name) if values is None else values
    recorder = _Recorder(known)
    loop = _Loop()
    asyncio.set_event_loop(loop)
    try:
        mocks.set_mocks(recorder.mocks, project=PROJECT, stack=stack_name, preview=not known, monitor=recorder)
        set_all_config({f"{PROJECT}:{key}": json.dumps(value) for key, value in values.items()})
        # Drop set_mocks' own root stack: the program runs in a fresh one, as under the real engine.
        set_root_resource(None)  # pyrefly: ignore[bad-argument-type]
        _sync_await(run_in_stack(_program))
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return Recording(recorder.recorded, recorder.outputs)


def record_anywhere(stack_name: str, values: Mapping[str, Any] | None = None) -> Recording:
    """Record a stack on any machine: a temporary kubeconfig stands in for the context of an existing cluster, with the
    local node's offers. Raises CommandError."""
    values = stack_file_values(stack_name) if values is None else values
    context = (values.get("cluster") or {}).get("context")
    offer = {"registry": "registry", "registryInsecure": True, "builder": "buildah", "storagePath": "/storage"}
    content = {
        "clusters": [{"name": context, "cluster": {"extensions": [{"name": "trainyard", "extension": offer}]}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
    }
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, KUBECONFIG=f"{folder}/kubeconfig"):
        Path(folder, "kubeconfig").write_text(yaml.safe_dump(content))
        try:
            return record(stack_name, values)
        except pulumi.RunError as error:
            raise CommandError(str(error), code=2) from None


def _program() -> None:
    runpy.run_path(str(ROOT / "__main__.py"), run_name="trainyard_program")
