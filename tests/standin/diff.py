"""What changed between two sets of inputs, path by path, and whether a change replaces the resource."""

from __future__ import annotations

import re
from typing import Any

from kubernetes.utils import parse_quantity

from .naming import is_autonamed, is_named, metadata
from .replaces import matches
from .values import UNKNOWN, has_unknown

Path = tuple[str | int, ...]

_PART = re.compile(r'\["([^"]*)"\]|\[(\d+)\]|([^.\[\]]+)')
#: Maps whose values are quantities, and fields that are quantities.
_QUANTITIES = {"limits", "requests", "capacity", "hard", "sizeLimit"}


def parse_path(text: str) -> Path:
    """Parse a Pulumi property path: `spec.containers[0].image`, `metadata.labels["a.b/c"]`, `*` for any part."""
    found = (match.groups() for match in _PART.finditer(text))
    return tuple(int(index) if index else quoted or name for quoted, index, name in found)


def format_path(path: Path) -> str:
    """The inverse of `parse_path`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif "." in part or "/" in part:
            text += f'["{part}"]'
        else:
            text += f".{part}" if text else part
    return text


def contains(outer: Path, inner: Path) -> bool:
    """Whether `inner` is `outer` or lies below it; `*` in `outer` matches any one part."""
    return len(outer) <= len(inner) and all(have in ("*", want) for have, want in zip(outer, inner, strict=False))


def is_same(old: Any, new: Any, path: Path) -> bool:
    """Whether two scalars are equal. Quantities may be written differently (`1000m` and `1`)."""
    if isinstance(old, bool) != isinstance(new, bool):
        return False
    if old == new or old is None or new is None or not _QUANTITIES.intersection(path):
        return old == new
    try:
        return parse_quantity(str(old)) == parse_quantity(str(new))
    except ValueError:  # the server will report what is wrong with it
        return False


def changes(old: Any, new: Any, path: Path = ()) -> dict[Path, str]:
    """Map every path at which `new` differs from `old` to `add`, `delete` or `update`. null and missing are equal."""
    if new is UNKNOWN or old is UNKNOWN:
        return {path: "update" if old is not None else "add"}
    pairs: list[tuple[str | int, Any, Any]] | None = None
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(key, old.get(key), new.get(key)) for key in sorted({*old, *new})]
    elif isinstance(old, list) and isinstance(new, list):
        before, after = dict(enumerate(old)), dict(enumerate(new))
        pairs = [(index, before.get(index), after.get(index)) for index in sorted({*before, *after})]
    if pairs is not None:
        return {at: kind for key, a, b in pairs for at, kind in changes(a, b, (*path, key)).items()}
    if is_same(old, new, path):
        return {}
    return {path: "add" if old is None else "delete" if new is None else "update"}


def detailed(
    old: dict[str, Any], new: dict[str, Any], ignored: list[str], force_new: list[tuple[str, ...]]
) -> dict[str, str]:
    """Map formatted paths to kinds of change, with the suffix `-replace` where a change forces a replacement."""
    ignored_paths = [parse_path(text) for text in ignored]
    return {
        format_path(path): f"{kind}-replace" if matches(path, force_new) else kind
        for path, kind in changes(_with_namespace(old, new), _with_namespace(new, old)).items()
        if not any(contains(ignored_path, path) for ignored_path in ignored_paths)
    }


def replacing(found: dict[str, str]) -> list[str]:
    """List the paths of a detailed diff that force a replacement."""
    return [path for path, kind in found.items() if kind.endswith("-replace")]


def _with_namespace(obj: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Set the namespace `default` if `obj` has none and `other` has `default`, so that the two compare as equal."""
    if metadata(other).get("namespace") == "default" and not metadata(obj).get("namespace"):
        return {**obj, "metadata": {**metadata(obj), "namespace": "default"}}
    return obj


def must_delete_first(replaces: bool, new: dict[str, Any], live: dict[str, Any]) -> bool:
    """Whether a replacement must delete the old object first: both have the same name, chosen by the program."""
    if not replaces or not is_named(new) or is_autonamed(new) or has_unknown(metadata(new).get("name")):
        return False
    return all(
        (metadata(new).get(key) or fallback) == (metadata(live).get(key) or fallback)
        for key, fallback in (("name", ""), ("namespace", "default"))
    )
