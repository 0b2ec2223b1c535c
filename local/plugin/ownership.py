"""Field ownership in server-side apply: who manages which field of a live object.

An object is created with a plain POST, so that an existing one is an error and not overwritten. Its fields then belong
to the manager `pulumi-kubernetes` (operation Update) and must pass to the resource's own manager, or a field that the
program drops would stay for ever.
"""

from __future__ import annotations

import copy
from typing import Any

from .diff import parse_path
from .naming import metadata

CREATOR = "pulumi-kubernetes"
# Managers whose fields the resource takes over: earlier Pulumi plugins, and people who used kubectl on the object.
_TAKEN_OVER = {
    (CREATOR, "Update"),
    ("pulumi-kubernetes.exe", "Update"),
    ("pulumi-resource-kubernetes", "Update"),
    ("kubectl", "Apply"),
    ("kubectl", "Update"),
    ("before-first-apply", "Update"),
}


def hand_over(live: dict[str, Any], manager: str) -> list[dict[str, Any]] | None:
    """A JSON patch that gives the fields of earlier managers to `manager`; None where there is nothing to do."""
    entries = metadata(live).get("managedFields") or []
    taken = [e for e in entries if (e.get("manager"), e.get("operation")) in _TAKEN_OVER and not e.get("subresource")]
    if not taken:
        return None
    own = next((e for e in entries if e.get("manager") == manager and e.get("operation") == "Apply"), None)
    merged: dict[str, Any] = copy.deepcopy(own) if own else {**taken[-1], "manager": manager, "operation": "Apply"}
    fields: dict[str, Any] = copy.deepcopy(merged.get("fieldsV1") or {})
    for entry in taken:
        _merge(fields, entry.get("fieldsV1") or {})
    merged["fieldsV1"] = fields
    kept = [entry for entry in entries if entry is not own and entry not in taken]
    return _set_entries(live, [*kept, merged])


def disown_creation(live: dict[str, Any]) -> list[dict[str, Any]] | None:
    """A JSON patch that takes the creating POST out of the owners; None where it is none."""
    entries = metadata(live).get("managedFields") or []
    kept = [e for e in entries if (e.get("manager"), e.get("operation")) != (CREATOR, "Update") or e.get("subresource")]
    return _set_entries(live, kept) if len(kept) < len(entries) else None


def _set_entries(live: dict[str, Any], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The JSON patch; it fails with a conflict when the object changed in between."""
    return [
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata(live)["resourceVersion"]},
    ]


def _merge(into: dict[str, Any], fields: dict[str, Any]) -> None:
    for key, value in fields.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)


def created_by_pulumi(live: dict[str, Any]) -> bool:
    """Whether the fields still belong to the creating POST: a dry run must force its way then."""
    return any(
        entry.get("operation") == "Update" and str(entry.get("manager")).startswith("pulumi-")
        for entry in metadata(live).get("managedFields") or []
    )


def keep_ignored(inputs: dict[str, Any], live: dict[str, Any], ignored: list[str], manager: str) -> None:
    """Change `inputs` so that applying them leaves the ignored paths as they are on the live object.

    A field that only others manage is left out (no conflict); one that we manage, or nobody, is sent with its live
    value (leaving it out would remove it).
    """
    entries = metadata(live).get("managedFields") or []
    ours = [e.get("fieldsV1") or {} for e in entries if e.get("manager") == manager]
    theirs = [e.get("fieldsV1") or {} for e in entries if e.get("manager") != manager]
    for text in ignored:
        path = parse_path(text)
        if "*" in path:
            continue  # the engine has put the old values into the inputs already
        plain = all(isinstance(part, str) for part in path)
        if plain and any(_owns(f, path) for f in theirs) and not any(_owns(f, path) for f in ours):
            _remove(inputs, path)
            continue
        found, value = _lookup(live, path)
        if found:
            _set(inputs, path, value)


def _owns(fields: dict[str, Any], path: tuple) -> bool:
    for part in path:
        if f"f:{part}" not in fields:
            return False
        fields = fields[f"f:{part}"]
    return True


def _has(obj: Any, part: Any) -> bool:
    if isinstance(obj, list):
        return isinstance(part, int) and part < len(obj)
    return isinstance(obj, dict) and part in obj


def _lookup(obj: Any, path: tuple) -> tuple[bool, Any]:
    for part in path:
        if not _has(obj, part):
            return False, None
        obj = obj[part]
    return True, copy.deepcopy(obj)


def _remove(obj: Any, path: tuple) -> None:
    found, parent = _lookup_parent(obj, path, create=False)
    if found and isinstance(parent, dict):
        parent.pop(path[-1], None)


def _set(obj: Any, path: tuple, value: Any) -> None:
    found, parent = _lookup_parent(obj, path, create=True)
    if not found:
        return
    if isinstance(parent, dict) or (isinstance(parent, list) and isinstance(path[-1], int) and path[-1] < len(parent)):
        parent[path[-1]] = value


def _lookup_parent(obj: Any, path: tuple, create: bool) -> tuple[bool, Any]:
    for part in path[:-1]:
        if create and isinstance(obj, dict) and isinstance(part, str):
            obj.setdefault(part, {})
        if not _has(obj, part):
            return False, None
        obj = obj[part]
    return True, obj
