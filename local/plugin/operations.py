"""Create, update, delete and read of one object, as sequences of API requests."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from . import awaiting, ownership
from .client import APPLY, JSON_PATCH, Client
from .engine import Engine
from .errors import ApiError, CannotPreviewError, NoSuchKindError, PluginError
from .naming import DELETION_PROPAGATION, PATCH_FORCE, annotated_true, annotation, describe, metadata
from .settings import Settings

# A create waits this long for its namespace or CustomResourceDefinition, which a program may create at the same time.
MISORDER_PAUSES = (1.0, 2.0, 4.0, 8.0)
# A controller changed the object while the server applied to it: no conflict of ours.
CHANGED_PAUSES = (0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Call:
    """One operation on one resource."""

    client: Client
    engine: Engine
    settings: Settings
    urn: str
    manager: str
    timeout: float = 0.0
    preview: bool = False
    is_patch: bool = False

    @property
    def dry_run(self) -> dict[str, Any]:
        """The query of a request that is only tried."""
        return {"dryRun": "All"} if self.preview else {}


def create(call: Call, inputs: dict[str, Any]) -> dict[str, Any]:
    """The live object, ready; an existing one is an error, unless it is to be patched or taken over."""
    for pause in (*MISORDER_PAUSES, None):
        try:
            if call.is_patch or call.settings.upsert:
                live = _apply(call, inputs, None)
            else:
                live = call.client.request(
                    "POST", inputs, inputs, collection=True, fieldManager=ownership.CREATOR, **call.dry_run
                )
            break
        except (ApiError, NoSuchKindError) as error:
            missing = isinstance(error, NoSuchKindError) or error.code == 404
            if not missing or pause is None or call.preview:
                raise
            call.engine.status(call.urn, f"tries again in {pause:.0f} s: {error}")
            if call.client.cancelled.wait(pause):
                raise
    if call.preview:
        return live
    if not (call.is_patch or call.settings.upsert):
        live = _own_what_was_given(call, inputs, live)
    if inputs["kind"] == "CustomResourceDefinition":
        _wait_until_served(call, inputs)
    return awaiting.until_ready(call.client, call.engine, call.urn, inputs, live, call.timeout)


def _own_what_was_given(call: Call, inputs: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """Make our manager the owner of exactly the given fields of a new object, and the creating POST of none.

    The real plugin does this before the first update only, and then cannot preview that one: the dry run would keep the
    old items of lists beside the new ones.
    """
    try:
        live = call.client.request("PATCH", inputs, inputs, content_type=APPLY, fieldManager=call.manager, force="true")
        for _ in range(5):
            patch = ownership.disown_creation(live)
            if patch is None:
                return live
            try:
                return call.client.request("PATCH", live, patch, content_type=JSON_PATCH)
            except ApiError as error:
                if error.code not in (409, 422):
                    raise
                live = call.client.get(live) or live
    except ApiError:
        pass  # the object exists; the next update takes the ownership
    return live


def _wait_until_served(call: Call, crd: dict[str, Any]) -> None:
    """A new kind appears in discovery a moment after its definition exists."""
    spec = crd.get("spec") or {}
    for version in spec.get("versions") or []:
        api_version, kind = f"{spec.get('group')}/{version.get('name')}", (spec.get("names") or {}).get("kind", "")
        for _ in range(50):
            try:
                call.client.kind(api_version, kind)
                break
            except NoSuchKindError:
                if not version.get("served") or call.client.cancelled.wait(0.1):
                    break


def _apply(call: Call, inputs: dict[str, Any], live: dict[str, Any] | None) -> dict[str, Any]:
    """Server-side apply. Conflicts with other managers are errors, unless the program or the provider forces."""
    force = annotated_true(inputs, PATCH_FORCE) or call.settings.patch_force
    if call.preview:
        force = force or live is None or ownership.created_by_pulumi(live)
    if live is not None and not metadata(live).get("managedFields"):
        force = True
    query = {"fieldManager": call.manager, "force": str(force).lower(), **call.dry_run}
    for pause in (*CHANGED_PAUSES, None):
        try:
            return call.client.request("PATCH", inputs, inputs, content_type=APPLY, **query)
        except ApiError as error:
            if error.code != 409 or error.is_conflict_of_managers or pause is None or call.client.cancelled.wait(pause):
                raise
    raise AssertionError("unreachable: the last pause is None")


def dry_run(call: Call, inputs: dict[str, Any]) -> dict[str, Any]:
    """The object as it would be with these inputs, whoever owns its fields."""
    query: dict[str, Any] = {"fieldManager": call.manager, "force": "true", "dryRun": "All"}
    return call.client.request("PATCH", inputs, inputs, content_type=APPLY, **query)


def update(
    call: Call, inputs: dict[str, Any], old_live: dict[str, Any], ignored: list[str], old_manager: str
) -> dict[str, Any]:
    """The live object with the new inputs, ready."""
    inputs = copy.deepcopy(inputs)  # ignored paths are changed below; the state keeps what the engine sent
    identity = {**inputs, "metadata": {**metadata(inputs), "name": metadata(old_live)["name"]}}
    live = call.client.get(identity)
    if live is None:
        raise PluginError(
            f"{describe(identity)} does not exist any more: run `pulumi refresh`, then `pulumi up` creates it again"
        )
    if inputs["kind"] == "CustomResourceDefinition":
        body = {**inputs, "metadata": {**metadata(inputs), "resourceVersion": metadata(live)["resourceVersion"]}}
        new = call.client.request("PUT", inputs, body, fieldManager=call.manager, **call.dry_run)
        if not call.preview:
            call.client.forget_kinds(inputs["apiVersion"])
            _wait_until_served(call, inputs)
    else:
        if not call.is_patch and not call.preview:
            live = _take_ownership(call, identity, live)
        ownership.keep_ignored(inputs, live, ignored, call.manager)
        try:
            new = _apply(call, inputs, live)
        except ApiError as error:
            # The fields of the creation cannot be handed over in a dry run; the real update does that first.
            if call.preview and error.reason == "Invalid" and ownership.created_by_pulumi(live):
                raise CannotPreviewError(str(error)) from None
            raise
        if not call.preview and old_manager != call.manager:
            relinquish(call.client, new, old_manager)
    if call.preview:
        return new
    return awaiting.until_ready(call.client, call.engine, call.urn, inputs, new, call.timeout)


def _take_ownership(call: Call, identity: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """Hand the fields of earlier plugins and of kubectl to our manager; tried again if the object just changed."""
    for attempt in range(5):
        patch = ownership.hand_over(live, call.manager)
        if patch is None:
            return live
        try:
            return call.client.request("PATCH", identity, patch, content_type=JSON_PATCH)
        except ApiError as error:
            if error.code != 409 or attempt == 4:
                raise
            live = call.client.get(identity) or live
    return live


def relinquish(client: Client, obj: dict[str, Any], manager: str) -> None:
    """Give up every field that `manager` owns; those that nobody else owns go back to their defaults."""
    meta = {key: metadata(obj)[key] for key in ("name", "namespace") if metadata(obj).get(key)}
    body = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": meta}
    client.request("PATCH", body, body, content_type=APPLY, fieldManager=manager)


def delete(call: Call, inputs: dict[str, Any], live: dict[str, Any]) -> None:
    """Delete the object and wait until it is gone; a missing object or kind counts as gone."""
    try:
        if call.is_patch:
            _delete_patch(call, live)
            return
        policy = annotation(inputs, DELETION_PROPAGATION).lower()
        propagation = {"orphan": "Orphan", "background": "Background"}.get(policy, "Foreground")
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        call.client.request("DELETE", live, body)
    except NoSuchKindError:
        return
    except ApiError as error:
        if error.code == 404:
            return
        raise
    awaiting.until_gone(call.client, call.engine, call.urn, inputs, live, call.timeout)


def _delete_patch(call: Call, live: dict[str, Any]) -> None:
    current = call.client.get(live)
    if current is None:
        return
    try:
        relinquish(call.client, live, call.manager)
    except ApiError as error:
        if error.reason == "Invalid":
            fields = ", ".join(error.required_fields) or "a field that may not be unset"
            raise PluginError(
                f"{describe(live)}: this patch manages {fields}, which nobody else does, so it cannot be released: set "
                f"retainOnDelete on the patch resource, or delete the object first ({error})"
            ) from None
        raise
