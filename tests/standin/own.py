"""The values that a cloud sets by itself, by infra/{gke,eks}/sets.yaml, and what the providers make of them.

A provider compares the program with the state that it has read, so a value that the cloud has changed shows in each
preview, unless its schema leaves it to the cloud where the program does not declare it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from infra.facts import load
from infra.stackfiles import ROOT

Values = dict[str, Any]


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    return {k: v for path in sorted((ROOT / "infra").glob("*/sets.yaml")) for k, v in load(path)["sets"].items()}


def set_in(type_: str, inputs: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """(path, value, the path of `declared`) of all that the cloud sets in a resource with these inputs."""
    for entry in _table().get(type_, []):
        filled = entry.get("fills")
        if filled and at(inputs, filled) is not None:
            continue
        if all(at(inputs, path) == wanted for path, wanted in entry.get("if", {}).items()):
            yield filled or entry["path"], entry["to"], filled or entry.get("declared", "")


def outputs(type_: str, inputs: Mapping[str, Any], known: Values) -> Values:
    """The state of a resource, as the cloud has changed it."""
    return _with(known, {path: value for path, value, _ in set_in(type_, inputs)})


def inputs(type_: str, given: Values) -> Values:
    """The inputs that a refresh writes into the state: those given, with the cloud's values."""
    return _with(given, {path: value for path, value, _ in set_in(type_, given) if at(given, path) is not None})


def compared(type_: str, old: Values, new: Mapping[str, Any]) -> Values:
    """The old inputs of a resource as its provider compares them with the new.

    What the program no longer declares, and leaves to the cloud, stays as it is.
    """
    named = [entry.get("fills") or entry.get("declared") for entry in _table().get(type_, [])]
    left = {path for path in named if path}
    told = {path: value for path, value, whose in set_in(type_, old) if not whose or at(new, whose) is not None}
    return _with(old, {**{path: None for path in left if at(old, path) and at(new, path) is None}, **told})


def at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _with(values: Values, changes: Mapping[str, Any]) -> Values:
    values = copy.deepcopy(values)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = values
        for part in parents:
            place[part] = dict(place.get(part) or {})
            place = place[part]
        place[last] = value
    return values
