"""Follows a change of a stack through its recorded graph, without an engine: what is added, changed, replaced and
deleted, with what hangs on a replaced resource. The providers' own schemas say what replaces one (replaces.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from review.recording import Alter, Recorded
from review.snapshot import entry
from tests.standin import replaces

Entry = Mapping[str, Any]
Path = tuple[str | int, ...]

ADDED, CHANGED, REPLACED, DELETED = "added", "changed", "replaced", "deleted"
#: Inputs of a provider that name its cluster, project or region.
PLACE = ("clusterIdentifier", "project", "region")
#: Suffix of values that the cloud knows only after it has replaced the resource.
ANEW = "-anew"


@dataclass(frozen=True)
class Change:
    operation: str
    resource: str
    """Type and name."""
    rolls: bool = False
    """Whether it replaces the nodes of a pool or group, some at a time."""


def compare(old: Entry, new: Entry) -> list[Change]:
    """The changes from one snapshot's content to another's."""
    before, after = _resources(old), _resources(new)
    found = [_change(title, before, after) if title in before else Change(ADDED, title) for title in after]
    return [*filter(None, found), *(Change(DELETED, title) for title in before if title not in after)]


def follow(old: Entry, declare: Callable[[Alter], Entry]) -> tuple[Entry, list[Change]]:
    """What `declare` records, and all changes from an old content to it, with their consequences: a replaced resource
    has a new id, which changes, and may replace, the resources that use it."""
    before = _resources(old)
    after: dict[str, Entry] = {}
    by_urn: dict[str, Recorded] = {}

    def alter(item: Recorded, id_: str, outputs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        by_urn[item.urn] = item
        title = f"{item.type} {item.name}"
        if title not in before:
            return id_, outputs
        # The order moves nothing, and is not known until all resources are registered.
        after[title] = entry(item, by_urn, before[title].get("after") or [])
        change = _change(title, before, after)
        if change and change.operation == REPLACED:
            return id_ + ANEW, _anew(outputs, item.inputs)
        counted = replaces.counted(item.type) if change else []
        return id_, {key: _anew(value, None) if key in counted else value for key, value in outputs.items()}

    new = declare(alter)
    return new, compare(old, new)


def _anew(value: Any, given: Any) -> Any:
    """New values for all that the cloud adds to the inputs that were given."""
    if isinstance(value, dict):
        return {key: _anew(item, given.get(key) if isinstance(given, Mapping) else None) for key, item in value.items()}
    if isinstance(value, list):
        paired = given if isinstance(given, list) and len(given) == len(value) else [None] * len(value)
        return [_anew(*pair) for pair in zip(value, paired, strict=True)]
    if value is None or given is not None or isinstance(value, bool):
        return value
    return value + (ANEW if isinstance(value, str) else 1)


def _resources(content: Entry) -> dict[str, Entry]:
    """Resources by type and name, without components, which no provider makes."""
    items = (content.get("resources") or {}).items()
    return {title: item for title, item in items if not title.startswith("trainyard:")}


def _change(title: str, resources: Mapping[str, Entry], others: Mapping[str, Entry]) -> Change | None:
    """How a resource that both sides have differs; None: it does not."""
    type_, old, new = title.partition(" ")[0], resources[title], others[title]
    options = new.get("options") or {}
    before, after = old.get("inputs") or {}, new.get("inputs") or {}
    if (provider := options.get("provider", "")) in resources:
        sides = [side[provider].get("inputs") or {} for side in (resources, others)]
        if any(sides[0].get(key) != sides[1].get(key) for key in PLACE):
            return Change(REPLACED, title)
    ignored = [_path(text) for text in options.get("ignoreChanges", [])]
    force_new = [*_force_new(type_, before, after), *map(_path, options.get("replaceOnChanges", []))]
    paths = [
        path
        for path in differences(before, after)
        if not any(replaces.matches(path, [pattern]) and len(pattern) <= len(path) for pattern in ignored)
    ]
    # The types of a resource's parents are part of its URN.
    moved = (old.get("parent") or "").partition(" ")[0] != (new.get("parent") or "").partition(" ")[0]
    if moved or any(replaces.matches(path, force_new) for path in paths):
        return Change(REPLACED, title)
    rest = any((old.get(key) or {}) != (new.get(key) or {}) for key in ("options", "after"))
    rolls = any(replaces.matches(path, replaces.rolls(type_)) for path in paths)
    return Change(CHANGED, title, rolls) if paths or rest else None


def _force_new(type_: str, old: Entry, new: Entry) -> list[tuple[str, ...]]:
    if type_.startswith("kubernetes:"):
        # A patch changes fields in place whose change would replace the object itself.
        is_patch = type_.endswith("Patch") or "kind" not in new
        return replaces.IDENTITY if is_patch else replaces.of_object(new)
    if type_.startswith("pulumi:providers:"):
        return [(key,) for key in PLACE]
    return replaces.paths(type_, old, new) if replaces.is_known(type_) else []


def _path(text: str) -> tuple[str, ...]:
    return tuple(text.replace("[", ".").replace("]", "").split("."))


def differences(old: Any, new: Any, path: Path = ()) -> Iterator[Path]:
    """The paths at which two values differ; null and missing are the same. List items are compared by `name` where they
    all have one, as containers and variables do, else by position."""
    if isinstance(old, list) and isinstance(new, list):
        named = [_by_name(side) for side in (old, new)]
        old, new = named if all(side is not None for side in named) else (dict(enumerate(old)), dict(enumerate(new)))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from differences(old.get(key), new.get(key), (*path, key))
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield path


def _by_name(items: list[Any]) -> dict[Any, Any] | None:
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    return dict(zip(names, items, strict=True)) if all(names) and len(set(names)) == len(names) else None
