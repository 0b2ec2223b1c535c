"""The state that Pulumi stores for an object, and the comparison of a live object with the program's inputs.

A resource's state is the live object plus `__inputs` (the program's inputs) and `__fieldManager`. It is the same in the
real plugin, so that a stack can move between the two.
"""

from __future__ import annotations

import base64
from typing import Any

from .diff import is_same
from .naming import metadata
from .values import has_unknown, mark_secrets, reveal

INPUTS, FIELD_MANAGER = "__inputs", "__fieldManager"
#: Only the real plugin writes this key.
INITIAL_API_VERSION = "__initialApiVersion"
#: Metadata and annotations that the API server, its controllers and kubectl write.
_SERVER_METADATA = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")
_SERVER_ANNOTATIONS = ("deployment.kubernetes.io/revision", "kubectl.kubernetes.io/last-applied-configuration")


def checkpoint(inputs: dict[str, Any], live: dict[str, Any], given: dict[str, Any], manager: str) -> dict[str, Any]:
    """Return the state to store. `given` are the inputs with their secrets still marked."""
    return {**mark_secrets(live, given), INPUTS: mark_secrets(inputs, given), FIELD_MANAGER: manager}


def parse(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (inputs, live object) of a stored state, with secrets revealed."""
    plain = reveal(state)
    inputs = plain.pop(INPUTS, {})
    return inputs, {key: value for key, value in plain.items() if key not in (INITIAL_API_VERSION, FIELD_MANAGER)}


def normalize(obj: dict[str, Any]) -> dict[str, Any]:
    """Copy inputs as the API server would return them: without nulls, and with stringData merged into data."""
    obj = _without_nulls(obj)
    given = obj.get("stringData")
    if obj.get("kind") == "Secret" and isinstance(given, dict) and not has_unknown(obj):
        encoded = {key: base64.b64encode(str(value).encode()).decode() for key, value in given.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}
        del obj["stringData"]
    return obj


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def prune(live: Any, like: Any, path: tuple[str | int, ...] = ()) -> Any:
    """Return the part of the live object that the program set, in the shape of `like`.

    A value that the server dropped because it is empty or zero (`readOnly: false`), or only wrote differently
    (`1000m`), counts as unchanged.
    """
    if isinstance(live, dict) and isinstance(like, dict):
        known = {key: wanted for key, wanted in like.items() if key in live or not wanted}
        return {key: prune(live[key], wanted, (*path, key)) if key in live else wanted for key, wanted in known.items()}
    if isinstance(live, list) and isinstance(like, list):
        aligned = _align(live, like)
        return [prune(item, like[at], (*path, at)) if at < len(like) else item for at, item in enumerate(aligned)]
    return like if is_same(live, like, path) else live


def _align(live: list[Any], like: list[Any]) -> list[Any]:
    """Return the live items that belong to the program, in the order of the inputs.

    Admission controllers append volumes, tolerations and the like to lists. Named items that the program did not give
    are left out; of unnamed objects, the first len(like) are kept. In a list of scalars, every live item counts.
    """
    names = [item.get("name") for item in like if isinstance(item, dict)]
    if not like or len(names) != len(like) or None in names or not all(isinstance(item, dict) for item in live):
        return live[: len(like)] if like and isinstance(like[0], dict) else live
    by_name = {item.get("name"): item for item in live}
    return [by_name[name] for name in names if name in by_name]


def imported_inputs(live: dict[str, Any]) -> dict[str, Any]:
    """Make inputs for an object that the program looks up or imports: all of it except what the server writes."""
    inputs = {key: value for key, value in live.items() if key != "status"}
    meta = {key: value for key, value in metadata(live).items() if key not in _SERVER_METADATA}
    written = meta.pop("annotations", None) or {}
    annotations = {key: value for key, value in written.items() if key not in _SERVER_ANNOTATIONS}
    inputs["metadata"] = {**meta, "annotations": annotations} if annotations else meta
    return inputs
