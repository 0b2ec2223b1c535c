"""What each call of Pulumi's provider protocol does with an object, on Python values instead of messages."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from review import immutable

from . import awaiting, diff, naming, operations, state
from .client import Client
from .engine import Engine
from .errors import ApiError, CannotPreviewError, InitFailedError, NoSuchKindError, PluginError, UnreachableError
from .naming import Urn, metadata
from .readiness import CHECKED_ON_READ
from .settings import Settings
from .values import UNKNOWN, has_unknown, mark_secrets, reveal, underscored

UNREACHABLE_HINT = (
    "if the cluster was deleted, run again with PULUMI_K8S_DELETE_UNREACHABLE=true to drop its objects from the state"
)
# What a dry run makes up and the real request will choose again: a preview must not promise it.
CHOSEN_AT_CREATION = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


class InitFailed(Exception):
    """The object exists but is not ready; `properties` (and for a read, `inputs`) go into the state."""

    def __init__(self, error: InitFailedError, object_id: str, properties: dict, inputs: dict | None) -> None:
        super().__init__(str(error))
        self.reasons, self.object_id, self.properties, self.inputs = error.reasons, object_id, properties, inputs


@dataclass(frozen=True)
class Provider:
    """A configured provider: one cluster, one set of switches."""

    settings: Settings
    client: Client
    engine: Engine

    def check(
        self, urn: Urn, olds: dict[str, Any], news: dict[str, Any], seed: bytes, proposed_name: str | None
    ) -> dict[str, Any]:
        """The inputs with a name, a namespace and canonical spelling. Raises PluginError where they cannot work."""
        naming.require_supported(urn)
        inputs = reveal(news)
        inputs["apiVersion"], inputs["kind"] = naming.api_version_and_kind(urn, inputs)
        if inputs.get("metadata") is None:
            inputs["metadata"] = {}
        inputs = state.normalize(inputs)
        if urn.is_patch(inputs["kind"]):
            if not self.settings.server_side_apply:
                raise PluginError("patch resources need server-side apply: do not set enableServerSideApply to false")
            if not naming.is_named(inputs):
                raise PluginError("a patch resource needs metadata.name: the object whose fields it sets")
        naming.assign_name(inputs, reveal(olds), urn, seed, proposed_name)
        meta = inputs["metadata"]
        if isinstance(meta, dict) and not meta.get("namespace") and self._is_namespaced(inputs):
            meta["namespace"] = self.settings.namespace
        return mark_secrets(underscored(inputs), {**news, "kind": inputs["kind"]})

    def _is_namespaced(self, obj: dict[str, Any]) -> bool:
        if obj["kind"] in naming.CLUSTER_SCOPED and obj["apiVersion"].count(".") != 1:
            return False
        if self.client.problem():
            return True
        try:
            return self.client.kind(obj["apiVersion"], obj["kind"]).namespaced
        except NoSuchKindError:
            return True  # a custom resource whose definition comes with the same update

    def diff(
        self, urn: Urn, olds: dict[str, Any], news: dict[str, Any], ignored: list[str]
    ) -> tuple[dict[str, str], list[str], bool]:
        """(detailed diff, replacing paths, delete before replace)."""
        new = state.normalize(reveal(news))
        old, live = state.parse(olds)
        old = state.normalize(old)
        force_new = immutable.IDENTITY
        if not urn.is_patch(new.get("kind")):
            force_new = immutable.force_new_paths(new, self.settings.mutable_config_maps, self.settings.mutable_secrets)
        found = diff.detailed(old, new, ignored, force_new)
        for path in self._dropped_zeros(urn, olds, new, found):
            del found[path]
        replaces = [path for path, kind in found.items() if kind.endswith("-replace")]
        if naming.annotated_true(new, naming.REPLACE_UNREADY) and self._replace_unready(urn, live):
            replaces.append(f'metadata.annotations["{naming.REPLACE_UNREADY}"]')
        return found, replaces, diff.must_delete_first(bool(replaces), new, live)

    def _dropped_zeros(self, urn: Urn, olds: dict[str, Any], new: dict[str, Any], found: dict[str, str]) -> list[str]:
        """Added values of zero that the API server does not keep, such as `globalDefault: false`: no change.

        The real plugin knows them by the Go type of the kind, and drops them from the inputs of a refresh, too. A zero
        that the server keeps (a pointer in Go, such as automountServiceAccountToken) is a change.
        """
        added = {text: diff.parse_path(text) for text, kind in found.items() if kind.startswith("add")}
        zeros = {text: path for text, path in added.items() if diff.value_at(new, path) in (False, 0, "", [], {})}
        if not zeros or has_unknown(new) or self.client.problem():
            return []
        manager = naming.field_manager(new, olds)
        try:
            kept = operations.dry_run(self._call(urn, manager, 0.0, True, new["kind"]), new)
        except PluginError:
            return []  # the update says what is wrong with it
        return [text for text, path in zeros.items() if diff.value_at(kept, path) is None]

    def _replace_unready(self, urn: Urn, live: dict[str, Any]) -> bool:
        """Whether a Job with pulumi.com/replaceUnready has not succeeded. Other kinds get a warning."""
        if live.get("kind") != "Job":
            self.engine.warn(urn.text, f"{naming.REPLACE_UNREADY} has no effect on a {live.get('kind')}: Jobs only")
            return False
        if problem := self.client.problem():
            self.engine.warn(urn.text, f"{naming.REPLACE_UNREADY} is skipped: {problem}")
            return False
        try:
            now = self.client.get(live)
        except PluginError:
            return False
        return now is not None and bool(awaiting.unready_reasons(self.client, {}, now))

    def create(self, urn: Urn, given: dict[str, Any], timeout: float, preview: bool) -> tuple[str, dict[str, Any]]:
        """(id, state) of a new object. Raises InitFailed when it exists but does not become ready."""
        inputs = reveal(given)
        call = self._call(urn, naming.field_manager(inputs, {}), timeout, preview, inputs["kind"])
        if preview and (call.is_patch or self._cannot_preview(inputs)):
            return "", given
        self._require_cluster()
        api_version = inputs["apiVersion"]
        try:
            live = operations.create(call, inputs)
        except InitFailedError as error:
            properties = state.checkpoint(inputs, error.live, given, api_version, call.manager)
            raise InitFailed(error, naming.object_id(error.live), properties, None) from None
        except (ApiError, UnreachableError) as error:
            if preview and _preview_proves_nothing(error):
                return "", given
            raise
        if preview:
            return "", state.checkpoint(inputs, _without_chosen(live, inputs), given, api_version, call.manager)
        return naming.object_id(live), state.checkpoint(inputs, live, given, api_version, call.manager)

    def update(
        self, urn: Urn, olds: dict[str, Any], given: dict[str, Any], ignored: list[str], timeout: float, preview: bool
    ) -> dict[str, Any]:
        """The state of the changed object. Raises InitFailed when it does not become ready."""
        inputs = state.normalize(reveal(given))
        old_inputs, old_live = state.parse(olds)
        manager = naming.field_manager(inputs, olds)
        call = self._call(urn, manager, timeout, preview, inputs["kind"])
        if preview and self._cannot_preview(inputs):
            return given
        self._require_cluster()
        api_version = str(olds.get(state.INITIAL_API_VERSION) or inputs["apiVersion"])
        try:
            live = operations.update(call, inputs, old_live, ignored, naming.field_manager(old_inputs, olds))
        except InitFailedError as error:
            properties = state.checkpoint(inputs, error.live, given, api_version, manager)
            raise InitFailed(error, naming.object_id(error.live), properties, None) from None
        except CannotPreviewError:
            return given
        except ApiError as error:
            if preview and error.reason == "Forbidden":
                return given
            raise
        return state.checkpoint(inputs, live, given, api_version, manager)

    def read(
        self, urn: Urn, object_id: str, properties: dict[str, Any], old_given: dict[str, Any]
    ) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """(id, state, inputs) of the live object; an empty id where it is gone. Raises InitFailed if it is unready."""
        naming.require_supported(urn)
        if problem := self.client.problem():
            if self.settings.delete_unreachable:
                self.engine.warn(urn.text, f"{problem}; deleteUnreachable drops the object from the state")
                return "", {}, {}
            if self.settings.skip_update_unreachable:
                self.engine.warn(urn.text, f"{problem}; skipUpdateUnreachable keeps the state as it is")
                return object_id, properties, old_given
            raise UnreachableError(f"{problem}; {UNREACHABLE_HINT}")
        old_inputs, old_live = state.normalize(reveal(old_given)), state.parse(properties)[1]
        imported = not old_inputs.get("kind") and not old_live.get("kind")
        namespace, name = naming.parse_id(object_id)
        api_version, kind = naming.api_version_and_kind(urn, old_inputs or old_live)
        identity = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}
        try:
            live = self.client.get(identity)
        except NoSuchKindError:
            live = None
        if live is None:
            return "", {}, {}
        live_inputs = state.imported_inputs(live) if imported else state.prune(live, old_inputs)
        manager = naming.field_manager(old_inputs, properties)
        initial = str(properties.get(state.INITIAL_API_VERSION) or api_version)
        checkpoint = state.checkpoint(live_inputs, live, old_given, initial, manager)
        inputs = mark_secrets(underscored(live_inputs), old_given)
        if not imported and kind in CHECKED_ON_READ:
            reasons = awaiting.unready_reasons(self.client, old_inputs, live)
            if reasons:
                error = InitFailedError(f"{naming.describe(live)}: " + "\n  ".join(reasons), reasons, live)
                raise InitFailed(error, object_id, checkpoint, inputs)
        return object_id, checkpoint, inputs

    def delete(self, urn: Urn, object_id: str, properties: dict[str, Any], timeout: float) -> None:
        """Delete the object and wait until it is gone. Raises InitFailed when it stays."""
        inputs, live = state.parse(properties)
        if problem := self.client.problem():
            if self.settings.delete_unreachable:
                self.engine.warn(urn.text, f"{problem}; deleteUnreachable drops the object from the state")
                return
            raise UnreachableError(f"{problem}; {UNREACHABLE_HINT}")
        live["metadata"] = {**metadata(live), "name": naming.parse_id(object_id)[1]}
        manager = naming.field_manager(inputs, properties)
        call = self._call(urn, manager, timeout, False, live["kind"])
        try:
            operations.delete(call, inputs, live)
        except InitFailedError as error:
            initial = str(properties.get(state.INITIAL_API_VERSION) or live["apiVersion"])
            checkpoint = state.checkpoint(inputs, error.live, properties, initial, manager)
            raise InitFailed(error, object_id, checkpoint, None) from None

    def _call(self, urn: Urn, manager: str, timeout: float, preview: bool, kind: str) -> operations.Call:
        return operations.Call(
            self.client, self.engine, self.settings, urn.text, manager, timeout, preview, urn.is_patch(kind)
        )

    def _require_cluster(self) -> None:
        if problem := self.client.problem():
            raise UnreachableError(problem)

    def _cannot_preview(self, inputs: dict[str, Any]) -> bool:
        """Whether the API server cannot be asked for a dry run: values or the kind are not known yet, or no server."""
        if problem := self.client.problem():
            self.engine.warn("", f"previewed without the cluster: {problem}", once=True)
            return True
        if has_unknown(inputs):
            return True
        try:
            self.client.kind(inputs["apiVersion"], inputs["kind"])
        except NoSuchKindError:
            return True
        return False


def _preview_proves_nothing(error: Exception) -> bool:
    """Whether a dry run failed for a reason that the real update will not meet: the namespace comes with it, the old
    object goes before it, this user may not try, or an admission webhook cannot do dry runs."""
    if not isinstance(error, ApiError):
        return True
    no_dry_run = error.code == 400 and "dry run" in str(error).lower()
    return error.reason in ("Forbidden", "AlreadyExists", "NotFound") or no_dry_run


def _without_chosen(live: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """A dry run's object without its status and with unknowns for what the server will choose."""
    shown = copy.deepcopy(live)
    shown.pop("status", None)
    for key in CHOSEN_AT_CREATION:
        if key in shown["metadata"]:
            shown["metadata"][key] = UNKNOWN
    for key in ("clusterIP", "clusterIPs"):
        if live["kind"] == "Service" and key not in (inputs.get("spec") or {}) and key in shown.get("spec", {}):
            shown["spec"][key] = UNKNOWN if shown["spec"][key] not in ("None", ["None"]) else shown["spec"][key]
    return shown
