"""What changed between two sets of inputs, path by path, and whether a change replaces the object.

The old inputs carry drift too: `refresh` writes the live values of every field that the program gives into them.
Values that the server or its controllers chose are never compared.
"""

from __future__ import annotations

import re
from typing import Any

from review import immutable
from review.immutable import Path

from .naming import is_autonamed, is_named, metadata
from .values import UNKNOWN, has_unknown

_SEGMENT = re.compile(r'\.?([^.\[\]"]+)|\[(\d+)\]|\[\*\]|\["((?:[^"\\]|\\.)*)"\]')


def parse_path(text: str) -> Path:
    """A Pulumi property path: `spec.containers[0].image`, `metadata.labels["a.b/c"]`, `[*]` and `*` for any.

    Raises:
        ValueError: not a property path.
    """
    path: list[str | int] = []
    position = 0
    while position < len(text):
        match = _SEGMENT.match(text, position)
        if not match:
            raise ValueError(f"{text!r} is not a property path")
        name, index, quoted = match.groups()
        if index is not None:
            path.append(int(index))
        elif quoted is not None:
            path.append(quoted.replace('\\"', '"').replace("\\\\", "\\"))
        else:
            path.append(name if name is not None else "*")
        position = match.end()
    return tuple(path)


def format_path(path: Path) -> str:
    """The inverse of `parse_path`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.search(r'[."\[\]]', part):
            escaped = part.replace('"', '\\"')
            text += f'["{escaped}"]'
        else:
            text += f".{part}" if text else part
    return text


def value_at(value: Any, path: Path) -> Any:
    """What stands there; None where nothing does."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def contains(outer: Path, inner: Path) -> bool:
    """Whether `inner` is `outer` or lies below it; `*` in `outer` matches any one part."""
    return len(outer) <= len(inner) and all(have in ("*", want) for have, want in zip(outer, inner, strict=False))


def changes(old: Any, new: Any, path: Path = ()) -> dict[Path, str]:
    """Every path at which `new` differs from `old`, as `add`, `delete` or `update`. null and missing are the same."""
    if new is UNKNOWN or old is UNKNOWN:
        return {path: "update" if old is not None else "add"}
    if isinstance(old, dict) and isinstance(new, dict):
        found: dict[Path, str] = {}
        for key in sorted({*old, *new}):
            found.update(changes(old.get(key), new.get(key), (*path, key)))
        return found
    if isinstance(old, list) and isinstance(new, list):
        found = {}
        for index in range(max(len(old), len(new))):
            before = old[index] if index < len(old) else None
            after = new[index] if index < len(new) else None
            found.update(changes(before, after, (*path, index)))
        return found
    if old == new and isinstance(old, bool) == isinstance(new, bool):
        return {}
    if old is None:
        return {path: "add"}
    return {path: "delete" if new is None else "update"}


def detailed(
    old: dict[str, Any],
    new: dict[str, Any],
    ignored: list[str],
    force_new: list[tuple[str, ...]],
) -> dict[str, str]:
    """The changes under their formatted paths; `-replace` is appended to the kinds that force a replacement."""
    ignored_paths = [parse_path(text) for text in ignored]
    found = {}
    for path, kind in changes(_with_namespace(old, new), _with_namespace(new, old)).items():
        if any(contains(ignored_path, path) for ignored_path in ignored_paths):
            continue
        found[format_path(path)] = f"{kind}-replace" if immutable.matches(path, force_new) else kind
    return found


def _with_namespace(obj: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """No namespace and `default` are the same for an object of which the other side has a namespace."""
    if metadata(other).get("namespace") == "default" and not metadata(obj).get("namespace"):
        return {**obj, "metadata": {**metadata(obj), "namespace": "default"}}
    return obj


def must_delete_first(replaces: bool, new: dict[str, Any], live: dict[str, Any]) -> bool:
    """Whether a replacement has to wait for the old object to go: both would have the same name, given by hand."""
    if not replaces or not is_named(new) or is_autonamed(new) or has_unknown(metadata(new).get("name")):
        return False
    return all(
        (metadata(new).get(key) or fallback) == (metadata(live).get(key) or fallback)
        for key, fallback in (("name", ""), ("namespace", "default"))
    )
