"""Recordings of the stacks for tests: configurations with changes, and the order of resources."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any, Literal, get_args, get_origin

from infra import clouds
from infra.config import ConfigError, StackConfig
from infra.parse import parse
from infra.stackfiles import stack_file_values, stacks
from review.recording import Recording, record_anywhere
from trainer.config.schema import Config, load

Values = dict[str, Any]
#: Stacks that create their cluster; the local stack runs on an existing one.
CLOUD_STACKS = [name for name in stacks() if "context" not in stack_file_values(name)["cluster"]]


def changed(stack: str, **sections: dict[str, Any] | None) -> Values:
    """The values of a stack file with keys of sections changed; None removes a section."""
    values = stack_file_values(stack)
    for name, change in sections.items():
        if change is None:
            values.pop(name, None)
        else:
            values[name] = {**values.get(name, {}), **change}
    return values


def trained(stack: Recording, name: str = "training") -> Config:
    """The configuration that the pods of a Job read, by the path that their arguments name."""
    spec = stack.one("Job", name).inputs["spec"]["template"]["spec"]
    (container,), arguments = spec["containers"], spec["containers"][0]["args"]
    path = PurePosixPath(arguments[arguments.index("--config") + 1])
    (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == str(path.parent))
    (volume,) = (each for each in spec["volumes"] if each["name"] == mount["name"])
    maps = {
        each.inputs["metadata"].get("name"): each.inputs for each in stack.resources if each.kind == "ConfigMapPatch"
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(maps[volume["configMap"]["name"]]["data"][path.name])
        file.flush()
        return load(["--config", file.name])


def sections_to_vary(stack: str, sections: Iterable[str]) -> tuple[str, ...]:
    """The sections to vary; none for a smoke stack, whose keys are varied on the stack that it is a small copy of, and
    for gcp-c3, which differs from gcp-a100 by its machines, those alone."""
    return () if stack.endswith("-smoke") else ("nodes",) if stack == "gcp-c3" else tuple(sections)


def variants(
    stack: str,
    kind: str,
    sections: Iterable[str],
    more: Iterable[dict[str, Any]],
    together: Mapping[tuple[str, str, Any], dict[str, dict[str, Any]]],
) -> Iterator[tuple[str, Values, StackConfig]]:
    """Yield (title, values, configuration) of the stack as it is, with each change of `more`, and with each value of
    each enumerated key of the sections. `together` has the keys that such a value needs beside it. Leave out
    what the rules refuse, what is of another kind of cluster, and what equals an earlier configuration.
    """
    changes: list[dict[str, Any]] = [{}, *more]
    for section in sections:
        for name, field in clouds.sections(kind)[section].model_fields.items():
            for value in _few(field.annotation):
                change = {section: {field.alias or name: value}}
                for other, beside in together.get((section, name, value), {}).items():
                    change[other] = {**change.get(other, {}), **beside}
                changes.append(change)
    seen: list[StackConfig] = []
    for change in changes:
        values = changed(stack, **change)
        try:
            config = parse(values, stack)
        except ConfigError:
            continue
        if config.cluster.kind == kind and config not in seen:
            seen.append(config)
            yield f"{stack} {change}", values, config


def _few(annotation: Any) -> tuple[Any, ...]:
    """All values of a bool or of a Literal of words, the first and last of one of numbers; none of another type."""
    if annotation is bool:
        return (True, False)
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        return values if isinstance(values[0], str) else (values[0], values[-1])
    return tuple(value for part in get_args(annotation) if part is not ... for value in _few(part))


@cache
def recorded(stack: str) -> Recording:
    """The resources of a stack file, on any machine; all tests that only read them share one recording."""
    return record_anywhere(stack)
