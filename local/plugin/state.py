"""What goes into Pulumi's state for an object, and how the live object is compared with what the program said.

The state of a resource is the live object plus `__inputs` (the program's inputs), `__initialApiVersion` and
`__fieldManager`: the real plugin's format, so that a stack can move between the two.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from .naming import READ_ONLY_METADATA, metadata
from .quantity import canonical, is_quantity_map
from .values import has_unknown, mark_secrets, reveal, underscored

INPUTS, INITIAL_API_VERSION, FIELD_MANAGER = "__inputs", "__initialApiVersion", "__fieldManager"


def checkpoint(
    inputs: dict[str, Any], live: dict[str, Any], given: dict[str, Any], initial_api_version: str, manager: str
) -> dict[str, Any]:
    """The state to store: `given` are the inputs with their secrets still marked."""
    outputs = mark_secrets(underscored(live), given)
    outputs[INPUTS] = mark_secrets(underscored(inputs), given)
    outputs[INITIAL_API_VERSION] = initial_api_version
    outputs[FIELD_MANAGER] = manager
    return outputs


def parse(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs, live object) of a stored state, secrets revealed."""
    plain = reveal(state)
    inputs = plain.pop(INPUTS, {})
    for key in (INITIAL_API_VERSION, FIELD_MANAGER):
        plain.pop(key, None)
    return inputs, plain


def normalize(obj: dict[str, Any]) -> dict[str, Any]:
    """Inputs as the API server would write them back: quantities canonical, stringData folded into data, read-only
    metadata dropped. Without this, `cpu: 1000m` would differ from the live `1` for ever.

    nulls go too (but in custom resources, where they may mean something). Objects with unknowns keep their form
    otherwise. The argument is changed; use what is returned.
    """
    for key in READ_ONLY_METADATA:
        metadata(obj).pop(key, None)
    if _is_built_in(str(obj.get("apiVersion") or "")):
        obj = _without_nulls(obj)
    if has_unknown(obj):
        return obj
    if obj.get("kind") == "Secret" and obj.get("apiVersion") == "v1":
        _fold_string_data(obj)
    elif _is_built_in(str(obj.get("apiVersion") or "")):
        for key in ("spec", "template"):
            if isinstance(obj.get(key), dict):
                _normalize_quantities(obj[key])
    return obj


def _is_built_in(api_version: str) -> bool:
    group = api_version.partition("/")[0] if "/" in api_version else ""
    return group != "apiextensions.k8s.io" and ("." not in group or group.endswith(".k8s.io"))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _fold_string_data(secret: dict[str, Any]) -> None:
    """The API server merges stringData into data, base64-encoded, and forgets it."""
    string_data = secret.get("stringData")
    if isinstance(string_data, dict):
        data = dict(secret.get("data") or {})
        for key, value in string_data.items():
            data[key] = base64.b64encode(str(value).encode()).decode()
        secret["data"] = data
        del secret["stringData"]
    for key, value in (secret.get("data") or {}).items():
        try:  # one spelling per value: line breaks inside base64 are dropped by the server
            secret["data"][key] = base64.b64encode(base64.b64decode(value, validate=False)).decode()
        except (binascii.Error, TypeError, ValueError):
            continue  # the server says what is wrong with it


def _normalize_quantities(value: Any, key: str = "") -> None:
    if isinstance(value, list):
        for item in value:
            _normalize_quantities(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            if is_quantity_map(name) and isinstance(item, dict):
                value[name] = {resource: canonical(amount) for resource, amount in item.items()}
            elif name in ("sizeLimit", "divisor", "averageValue") and isinstance(item, (str, int, float)):
                value[name] = canonical(item)
            else:
                _normalize_quantities(item, name)


def prune(live: Any, like: Any) -> Any:
    """The part of the live object that the program gave values for, in the shape that `like` has.

    A value that the server dropped because it is empty or zero (`readOnly: false`) counts as unchanged.
    """
    if isinstance(live, dict) and isinstance(like, dict):
        pruned = {}
        for key, wanted in like.items():
            if key in live:
                pruned[key] = prune(live[key], wanted)
            elif not wanted:
                pruned[key] = wanted
        return pruned
    if isinstance(live, list) and isinstance(like, list):
        aligned = _align(live, like)
        return [prune(item, like[index]) if index < len(like) else item for index, item in enumerate(aligned)]
    if isinstance(live, (int, float)) and isinstance(like, (int, float)) and live == like:
        return like
    return live


def _align(live: list[Any], like: list[Any]) -> list[Any]:
    """The live items in the order of the inputs where they are named; items that the program did not give go last.

    Admission controllers append volumes, tolerations and the like to lists: those are not the program's, so extra
    named items are left out. In lists without names, every live item counts.
    """
    names = [item.get("name") for item in like if isinstance(item, dict)]
    if not like or len(names) != len(like) or None in names or not all(isinstance(item, dict) for item in live):
        return live[: len(like)] if like and isinstance(like[0], dict) else live
    by_name = {item.get("name"): item for item in live}
    return [by_name[name] for name in names if name in by_name]


def imported_inputs(live: dict[str, Any]) -> dict[str, Any]:
    """Inputs for an object that enters the state by import: all of it but the status and the server's metadata."""
    inputs = {key: value for key, value in live.items() if key != "status"}
    meta = {key: value for key, value in metadata(live).items() if key not in READ_ONLY_METADATA}
    server_written = ("deployment.kubernetes.io/revision", "kubectl.kubernetes.io/last-applied-configuration")
    annotations = {
        key: value for key, value in (meta.pop("annotations", None) or {}).items() if key not in server_written
    }
    inputs["metadata"] = {**meta, "annotations": annotations} if annotations else meta
    return inputs
