"""The calls of Pulumi's provider protocol, on Python values instead of messages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.standin import replaces as replacing

from . import awaiting, diff, naming, operations, state
from .client import Client
from .engine import Engine
from .errors import ApiError, InitFailedError, NoSuchKindError, PluginError, UnreachableError
from .naming import Urn, metadata
from .settings import Settings
from .values import UNKNOWN, has_unknown, mark_secrets, reveal

UNREACHABLE_HINT = (
    "if the cluster was deleted, run again with PULUMI_K8S_DELETE_UNREACHABLE=true to drop its objects from the state"
)
# Values that a dry run invents and the real request chooses anew: a preview must not promise them.
CHOSEN_AT_CREATION = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


@dataclass(frozen=True)
class Provider:
    """A configured provider for one cluster."""

    settings: Settings
    client: Client
    engine: Engine

    def check(self, urn: Urn, olds: dict[str, Any], news: dict[str, Any], seed: bytes) -> dict[str, Any]:
        """Return the inputs with a name and a namespace. Raises PluginError if they cannot work."""
        inputs = reveal(news)
        inputs["apiVersion"], inputs["kind"] = naming.api_version_and_kind(urn, inputs)
        if inputs.get("metadata") is None:
            inputs["metadata"] = {}
        inputs = state.normalize(inputs)
        if urn.is_patch(inputs["kind"]) and not naming.is_named(inputs):
            raise PluginError("a patch resource needs metadata.name: the object whose fields it sets")
        naming.assign_name(inputs, reveal(olds), urn, seed)
        meta = inputs["metadata"]
        if isinstance(meta, dict) and not meta.get("namespace") and self._is_namespaced(inputs):
            meta["namespace"] = self.settings.namespace
        return mark_secrets(inputs, {**news, "kind": inputs["kind"]})

    def _is_namespaced(self, obj: dict[str, Any]) -> bool:
        if obj["kind"] in naming.CLUSTER_SCOPED:
            return False
        if self.client.problem():
            return True
        try:
            return self.client.kind(obj["apiVersion"], obj["kind"]).namespaced
        except NoSuchKindError:
            return True  # the creation will report what is wrong

    def diff(
        self, urn: Urn, olds: dict[str, Any], news: dict[str, Any], ignored: list[str]
    ) -> tuple[dict[str, str], list[str], bool]:
        """Return (detailed diff, replacing paths, delete before replace)."""
        new = state.normalize(reveal(news))
        old, live = state.parse(olds)
        found, replaces = compare(urn, state.normalize(old), new, ignored)
        if naming.annotated_true(new, naming.REPLACE_UNREADY) and self._is_unready_job(urn, live):
            replaces.append(f'metadata.annotations["{naming.REPLACE_UNREADY}"]')
        return found, replaces, diff.must_delete_first(bool(replaces), new, live)

    def _is_unready_job(self, urn: Urn, live: dict[str, Any]) -> bool:
        if problem := self.client.problem():
            self.engine.warn(urn.text, f"{naming.REPLACE_UNREADY} is skipped: {problem}")
            return False
        try:
            now = self.client.get(live)
        except PluginError:
            return False
        return now is not None and not awaiting.readiness(now).ready

    def create(self, urn: Urn, given: dict[str, Any], timeout: float, preview: bool) -> tuple[str, dict[str, Any]]:
        """Create an object; return (id, state). Raises InitFailedError if it exists but does not become ready."""
        inputs = reveal(given)
        call = self._call(urn, naming.field_manager({}), timeout, preview, inputs["kind"])
        if preview and (call.is_patch or self._cannot_preview(inputs)):
            return "", given
        self._require_cluster()
        try:
            if preview and self.client.get(inputs):
                return "", given  # the old object, which is deleted before this one is created
            live = self._store(call, inputs, given, lambda: operations.create(call, inputs))
        except (ApiError, UnreachableError) as error:
            if preview and _preview_proves_nothing(error):
                return "", given
            raise
        if preview:
            live = _without_chosen(live, inputs)
        return "" if preview else naming.object_id(live), state.checkpoint(inputs, live, given, call.manager)

    def update(
        self, urn: Urn, olds: dict[str, Any], given: dict[str, Any], ignored: list[str], timeout: float, preview: bool
    ) -> dict[str, Any]:
        """Update an object; return its state. Raises InitFailedError if it does not become ready."""
        inputs = state.normalize(reveal(given))
        old_live = state.parse(olds)[1]
        call = self._call(urn, naming.field_manager(olds), timeout, preview, inputs["kind"])
        if preview and self._cannot_preview(inputs):
            return given
        self._require_cluster()
        try:
            live = self._store(call, inputs, given, lambda: operations.update(call, inputs, old_live, ignored))
        except ApiError as error:
            if preview and error.reason == "Forbidden":
                return given
            raise
        return state.checkpoint(inputs, live, given, call.manager)

    def read(
        self, urn: Urn, object_id: str, properties: dict[str, Any], old_given: dict[str, Any]
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return (id, state, inputs) of the live object; an empty id if it is gone.

        Raises:
            InitFailedError: the object is not ready.
        """
        if self._is_dropped(urn):
            return "", {}, {}
        old_inputs, old_live = state.normalize(reveal(old_given)), state.parse(properties)[1]
        namespace, name = naming.parse_id(object_id)
        api_version, kind = naming.api_version_and_kind(urn, old_inputs or old_live)
        try:
            live = self.client.get(
                {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}
            )
        except NoSuchKindError:
            live = None
        if live is None:
            return "", {}, {}
        imported = not old_inputs.get("kind") and not old_live.get("kind")
        live_inputs = state.imported_inputs(live) if imported else state.prune(live, old_inputs)
        checkpoint = state.checkpoint(live_inputs, live, old_given, naming.field_manager(properties))
        inputs = mark_secrets(live_inputs, old_given)
        reasons = [] if imported else awaiting.unready_reasons(self.client, old_inputs, live)
        if reasons:
            error = InitFailedError(f"{naming.describe(live)}: " + "\n  ".join(reasons), reasons, live)
            error.object_id, error.properties, error.inputs = object_id, checkpoint, inputs
            raise error
        return object_id, checkpoint, inputs

    def delete(self, urn: Urn, object_id: str, properties: dict[str, Any], timeout: float) -> None:
        """Delete the object and wait until it is gone. Raises InitFailedError if it stays."""
        if self._is_dropped(urn):
            return
        inputs, live = state.parse(properties)
        live["metadata"] = {**metadata(live), "name": naming.parse_id(object_id)[1]}
        call = self._call(urn, naming.field_manager(properties), timeout, False, live["kind"])
        self._store(call, inputs, properties, lambda: operations.delete(call, inputs, live))

    def _store(
        self, call: operations.Call, inputs: dict[str, Any], given: dict[str, Any], operate: Callable[[], Any]
    ) -> Any:
        """Run `operate` and return its result. Adds the state of the object, which exists, to its InitFailedError."""
        try:
            return operate()
        except InitFailedError as error:
            error.object_id = naming.object_id(error.live)
            error.properties = state.checkpoint(inputs, error.live, given, call.manager)
            raise

    def _call(self, urn: Urn, manager: str, timeout: float, preview: bool, kind: str) -> operations.Call:
        return operations.Call(
            self.client, self.engine, self.settings, urn.text, manager, timeout, preview, urn.is_patch(kind)
        )

    def _is_dropped(self, urn: Urn) -> bool:
        """Whether the cluster is gone and the user wants its objects removed from the state.

        Raises:
            UnreachableError: the cluster is gone, and the user did not ask for that.
        """
        problem = self.client.problem()
        if problem and not self.settings.delete_unreachable:
            raise UnreachableError(f"{problem}; {UNREACHABLE_HINT}")
        if problem:
            self.engine.warn(urn.text, f"{problem}; PULUMI_K8S_DELETE_UNREACHABLE drops the object from the state")
        return problem is not None

    def _require_cluster(self) -> None:
        if problem := self.client.problem():
            raise UnreachableError(problem)

    def _cannot_preview(self, inputs: dict[str, Any]) -> bool:
        """Whether a dry run is impossible: a value or the kind is not known yet, or no server answers."""
        if problem := self.client.problem():
            self.engine.warn("", f"previewed without the cluster: {problem}")
            return True
        if has_unknown(inputs):
            return True
        try:
            self.client.kind(inputs["apiVersion"], inputs["kind"])
        except NoSuchKindError:
            return True
        return False


def compare(urn: Urn, old: dict[str, Any], new: dict[str, Any], ignored: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return (detailed diff, replacing paths) of an object's normalized inputs."""
    # A patch can change in place the fields that would replace a whole object.
    force_new = replacing.IDENTITY if urn.is_patch(new.get("kind")) else replacing.of_object(new)
    found = diff.detailed(old, new, ignored, force_new)
    return found, diff.replacing(found)


def _preview_proves_nothing(error: Exception) -> bool:
    """Whether a dry run failed for a reason that the real update will not meet.

    The same update makes the namespace, this user may not dry-run, or an admission webhook does not support it.
    """
    if not isinstance(error, ApiError):
        return True
    no_dry_run = error.code == 400 and "dry run" in str(error).lower()
    return error.reason in ("Forbidden", "NotFound") or no_dry_run


def _without_chosen(live: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Return a dry run's object without its status, with unknowns for what the server will choose."""
    shown = copy.deepcopy(live)
    shown.pop("status", None)
    chosen = {key: UNKNOWN for key in CHOSEN_AT_CREATION if key in shown["metadata"]}
    shown["metadata"] |= chosen
    if live["kind"] == "Service" and "clusterIP" not in inputs["spec"]:
        shown["spec"] |= {"clusterIP": UNKNOWN, "clusterIPs": UNKNOWN}
    return shown
