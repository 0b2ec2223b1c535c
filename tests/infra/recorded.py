"""Recordings of the stacks for tests: configurations with changes, and the order of resources."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import PurePosixPath
from typing import Any

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


@cache
def recorded(stack: str) -> Recording:
    """The resources of a stack file, on any machine; all tests that only read them share one recording."""
    return record_anywhere(stack)
