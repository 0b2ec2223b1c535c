"""Create, update and delete one object, as sequences of API requests.

Writes are server-side applies under a field manager of the resource's own: a field that the program drops is removed,
and a field that someone else manages is an error.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from .awaiting import Awaited
from .client import APPLY, Client
from .diff import parse_path
from .engine import Engine
from .errors import ApiError, NoSuchKindError, PluginError
from .naming import DELETION_PROPAGATION, PATCH_FORCE, annotated_true, annotation, describe, metadata
from .settings import Settings


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

    def awaited(self, inputs: dict[str, Any]) -> Awaited:
        return Awaited(self.client, self.engine, self.urn, inputs, self.timeout)


def create(call: Call, inputs: dict[str, Any]) -> dict[str, Any]:
    """Create the object; return the live one once it is ready. An existing object is an error, unless for a patch."""
    if call.preview:
        return _apply(call, inputs)
    if not call.is_patch and (existing := call.client.get(inputs)):
        raise PluginError(_explain_existing(existing))
    return call.awaited(inputs).until_ready(_apply(call, inputs))


def _explain_existing(live: dict[str, Any]) -> str:
    if metadata(live).get("deletionTimestamp"):
        return (
            f"{describe(live)} is still being deleted (pulumi.com/skipAwait does not wait for deletions); give the new "
            "object another name (leave metadata.name out), or try again in a moment"
        )
    return (
        f"{describe(live)} already exists in the cluster: import it (pulumi import), or give this one another name "
        "(leave metadata.name out)"
    )


def update(call: Call, inputs: dict[str, Any], old_live: dict[str, Any], ignored: list[str]) -> dict[str, Any]:
    """Apply the new inputs; return the live object once it is ready."""
    inputs = copy.deepcopy(inputs)  # the loop below changes ignored paths, but the state keeps what the engine sent
    live = call.client.get({**inputs, "metadata": {**metadata(inputs), "name": metadata(old_live)["name"]}})
    if live is None:
        raise PluginError(
            f"{describe(inputs)} does not exist any more: run `pulumi refresh`, then `pulumi up` creates it again"
        )
    for text in ignored:
        keep_live_value(inputs, live, parse_path(text))
    new = _apply(call, inputs)
    return new if call.preview else call.awaited(inputs).until_ready(new)


def keep_live_value(inputs: Any, live: Any, path: tuple[str | int, ...]) -> None:
    """Copy the live value at an ignored path into the inputs: any other value would conflict with its manager."""
    *parents, last = path
    for part in parents:
        try:
            inputs, live = inputs[part], live[part]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(inputs, dict) and isinstance(live, dict) and last in live:
        inputs[last] = copy.deepcopy(live[last])


def _apply(call: Call, inputs: dict[str, Any]) -> dict[str, Any]:
    """Send a server-side apply. A conflict with another manager is an error, unless program or provider forces it."""
    force = annotated_true(inputs, PATCH_FORCE) or call.settings.patch_force
    dry_run = {"dryRun": "All"} if call.preview else {}
    query = {"fieldManager": call.manager, "force": str(force).lower(), **dry_run}
    return call.client.request("PATCH", inputs, inputs, APPLY, **query)


def delete(call: Call, inputs: dict[str, Any], live: dict[str, Any]) -> None:
    """Delete the object and wait until it is gone; a missing object or kind counts as gone."""
    try:
        if call.is_patch:
            _release(call, live)
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
    call.awaited(inputs).until_gone(live)


def _release(call: Call, live: dict[str, Any]) -> None:
    """Release every field that a patch owns. Those that nobody else owns return to their defaults."""
    if call.client.get(live) is not None:
        meta = {key: metadata(live)[key] for key in ("name", "namespace") if metadata(live).get(key)}
        body = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": meta}
        call.client.request("PATCH", body, body, APPLY, fieldManager=call.manager)
