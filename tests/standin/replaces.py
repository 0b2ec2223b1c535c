"""Which changed properties replace a resource, by the providers' own schemas: replaces-KIND.yaml beside this file."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path as File
from typing import Any

from infra.facts import load

Path = tuple[str, ...]
HERE = File(__file__).parent
#: For every Kubernetes object.
IDENTITY: list[Path] = [("metadata", "name"), ("metadata", "namespace")]


@cache
def _table(kind: str) -> dict[str, list[Path]]:
    """Type -> its paths of one kind: always, smaller, switched_off and narrower replace it, counted are outputs that
    change in place."""
    found: dict[str, list[Path]] = {}
    for file in HERE.glob("replaces-*.yaml"):
        content = load(file)
        for type_, paths in content.get(kind, {}).items():
            found[type_] = [tuple(path.split(".")) for path in paths.split()]
    return found


def is_known(type_: str) -> bool:
    """Whether the tables have the type. Any other is refused, so that no new resource of a cloud goes unnoticed."""
    return type_.startswith("kubernetes:") or type_ in _table("always")


def paths(type_: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Path]:
    """The paths whose change replaces a resource with these inputs. A patch changes in place what would replace a
    whole object."""
    if type_.startswith("kubernetes:"):
        group, _, _ = new["apiVersion"].rpartition("/")
        whole = [] if type_.endswith("Patch") else _table("kubernetes").get(f"{group}/{new['kind']}", [])
        return [*IDENTITY, *whole]
    found = list(_table("always")[type_])
    for condition, holds in (("smaller", _smaller), ("switched_off", _switched_off), ("narrower", _narrower)):
        found += [path for path in _table(condition).get(type_, []) if holds(_at(old, path), _at(new, path))]
    return found


def matches(path: Sequence[str], patterns: Sequence[Path]) -> bool:
    """Whether a changed path is, contains or lies below one of the patterns."""
    return any(all(want in ("*", have) for have, want in zip(path, pattern, strict=False)) for pattern in patterns)


def counted(type_: str) -> list[str]:
    """The outputs whose values change when the resource changes in place."""
    return [path[0] for path in _table("counted").get(type_, [])]


def _at(inputs: Any, path: Path) -> Any:
    for part in path:
        inputs = inputs.get(part) if isinstance(inputs, Mapping) else None
    return inputs


def _smaller(old: Any, new: Any) -> bool:
    return isinstance(old, int | float) and isinstance(new, int | float) and new < old


def _switched_off(old: Any, new: Any) -> bool:
    return bool(old) and not new


def _narrower(old: Any, new: Any) -> bool:
    try:
        return not ipaddress.IPv4Network(old).subnet_of(ipaddress.IPv4Network(new))
    except ValueError:
        return False
