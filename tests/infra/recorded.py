"""Recordings of the stacks for tests: configurations with changes, and the order of resources."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from infra.config import ConfigError
from infra.parse import parse
from infra.stackfiles import stack_file_values, stacks
from review.recording import Recording, record_anywhere
from trainer.config.schema import Config, load

Values = dict[str, Any]
#: Stands in for the image of the adapters' device plugin.
PLUGIN = f"registry.example/efa@sha256:{'a' * 64}"
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


def problems(values: Values, stack: str = "test") -> list[str]:
    """Why a configuration is refused, a line each; empty: it is valid."""
    try:
        parse(values, stack)
    except ConfigError as error:
        return [*error.lines]
    return []


def pod(stack: Recording, kind: str = "Job", name: str = "training") -> dict[str, Any]:
    """The specification of a resource's pods."""
    return stack.one(kind, name).inputs["spec"]["template"]["spec"]


def trained(stack: Recording, name: str = "training") -> Config:
    """The configuration that the pods of a Job read, by the path that their arguments name."""
    spec = pod(stack, "Job", name)
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


def recorded(stack: str, **sections: Any) -> Recording:
    """The resources of a stack file with keys of sections changed, on any machine; all tests that only read them share
    one recording."""
    return _recorded(stack, json.dumps(sections))


@cache
def _recorded(stack: str, sections: str) -> Recording:
    return record_anywhere(stack, changed(stack, **json.loads(sections)))


_IMAGE = {"builder": "prebuilt", "ref": f"ghcr.io/you/trainer@sha256:{'a' * 64}"}
#: What the clouds' stacks can declare, as much as goes together: name -> stack, changes of its sections. Order,
#: features and policy are held against each.
VARIANTS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    **{name: (name, {}) for name in CLOUD_STACKS},
    "gke queued": (
        "gcp-a100",
        {
            "nodes": {"gpuDriver": "daemonset", "consumption": "queued"},
            "check": {"enabled": False},
            "storage": {"kind": "filestore", "sizeGib": 2560},
        },
    ),
    "gke spot": (
        "gcp-a100",
        {
            "nodes": {"consumption": "spot", "fallback": "on_demand", "max": 3, "maxRunHours": 400},
            "dataset": {"input": ["gs://mine/folder", "gs://other"]},
            "rendezvous": {"tls": True},
            "secrets": {"huggingFaceToken": "hf_x", "wandbApiKey": "key", "imagePull": "you:ghp_x"},
            "training": {"engine": {"name": "deepspeed"}},
            "workers": {"spares": 1},
        },
    ),
    "gke prebuilt": (
        "gcp-a100",
        {
            "nodes": {"consumption": "reservation", "reservation": "mine"},
            "image": _IMAGE,
            "storage": {"disk": "mine", "serverImage": f"ghcr.io/you/nfs@sha256:{'b' * 64}"},
            "cluster": {"namespace": "team-storage", "deletionProtection": True},
        },
    ),
    "gke compact": (
        "gcp-c3",
        {"nodes": {"compactPlacement": True}, "storage": {"kind": "filestore", "sizeGib": 1024}},
    ),
    "eks adapters": (
        "aws-g4dn",
        {
            "nodes": {"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True, "compactPlacement": True},
            "eks": {
                "publicNodes": True,
                "irsa": True,
                "secretsEncryption": False,
                "efaPlugin": PLUGIN,
                "admins": ["arn:aws:iam::123456789012:role/ops"],
            },
        },
    ),
    "eks spot": (
        "aws-g4dn",
        {
            "nodes": {"consumption": "spot", "fallback": "on_demand"},
            "dataset": {"input": ["s3://mine/folder"]},
            "storage": {"disk": "fs-0123456789abcdef0"},
        },
    ),
    "eks prebuilt": (
        "aws-g4dn",
        {
            "nodes": {"machineType": "g5.xlarge", "alternatives": [], "consumption": "on_demand"},
            "image": _IMAGE,
        },
    ),
}


def variant(name: str) -> Recording:
    """The resources of one of VARIANTS."""
    stack, sections = VARIANTS[name]
    return recorded(stack, **sections)


def variants_of(cloud: str) -> list[str]:
    """The names of the variants on `gcp` or `aws`."""
    return [name for name, (stack, _) in VARIANTS.items() if stack.startswith(cloud)]
