"""The values that a cloud adds to a resource once it exists: ids, addresses, e-mails, by computed.yaml of its folder.

They replace a cloud in the recording (review/recording.py) and in the tests of the engine (tests/standin), so that both
see the same values.

A table has them by type, and answers by function, in the provider's own form, and only those that the program reads. An
id is made of the name, so that a snapshot says which resource is meant. An entry is filled from top to bottom, its id
first. Templates may use {name} of the resource in the cloud, {parts[N]} of it between slashes, {project} or {region} of
its provider, {account} of AWS, every input, and keys filled before. A key that ends in ? is added only where the inputs
have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from infra.clouds import CLOUDS, tables

Inputs = Mapping[str, Any]

DIGEST = "sha256:" + "0" * 64
#: The AWS account in every recording.
ACCOUNT = "123456789012"


@cache
def table() -> dict[str, dict[str, Any]]:
    """Type or function -> what a cloud adds or answers."""
    return tables("computed.yaml")


def answer(token: str, given: Inputs, where: str) -> dict[str, Any] | None:
    """A cloud's answer to a provider function for a project or region; None: no table has it."""
    for cloud in CLOUDS.values():
        if token in cloud.answers:
            return cloud.answers[token](given, where)
    return {**given, **_by_table(token, given.get("name", ""), given, where)} if token in table() else None


def outputs(type_: str, name: str, inputs: Inputs, project: str) -> tuple[str, dict[str, Any]]:
    """(id, outputs) of a new resource; `name` is its name in the cloud where the inputs give none.

    Args:
        type_: Pulumi's type token, `gcp:container/cluster:Cluster`.
        inputs: as the provider gets them, camelCase.
        project: what the provider is configured for: a project of Google Cloud, or a region of AWS.
    """
    if type_.startswith("kubernetes:"):
        added = _kubernetes(type_, name, inputs)
    elif type_ == "docker-build:index:Image":
        tag = (inputs.get("tags") or ["image:latest"])[0]
        added = {"id": tag, "ref": f"{tag.rsplit(':', 1)[0]}@{DIGEST}", "digest": DIGEST}
    elif type_.endswith(":BuildahImage"):
        reference = f"{inputs['target'].rsplit(':', 1)[0]}@{DIGEST}"
        added = {"id": reference, "reference": reference}
    else:
        added = _by_table(type_, inputs.get("name") or name, inputs, project)
    id_ = added.pop("id", name)
    return id_, _merged(dict(inputs), added)


def _by_table(type_: str, name: str, inputs: Inputs, where: str) -> dict[str, Any]:
    known = _Known(region=where, account=ACCOUNT, parts=name.split("/"))
    known.update({**inputs, "name": name, "project": inputs.get("project") or where})
    added: dict[str, Any] = {}
    # Fill the id first: YAML's merge key puts its own keys before it.
    for key, template in sorted(table().get(type_, {}).items(), key=lambda item: item[0] != "id"):
        plain = key.removesuffix("?")
        if plain == key or inputs.get(plain):
            added[plain] = known[plain] = _filled(template, known)
    return added


class _Known(dict[str, Any]):
    """Values for the templates of an entry; a missing input is replaced by its own name."""

    def __missing__(self, key: str) -> str:
        return key


def _filled(template: Any, known: _Known) -> Any:
    if isinstance(template, dict):
        return {key: _filled(value, known) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, known) for value in template]
    return template.format_map(known) if isinstance(template, str) else template


def _kubernetes(type_: str, name: str, inputs: Inputs) -> dict[str, Any]:
    metadata = inputs.get("metadata") or {}
    given, namespace = metadata.get("name") or name, metadata.get("namespace")
    id_ = f"{namespace}/{given}" if namespace else given
    added: dict[str, Any] = {"id": id_, "metadata": {"name": given}}
    # A headless Service sets "None" itself; any other gets an address for its lifetime.
    if type_ == "kubernetes:core/v1:Service" and not (inputs.get("spec") or {}).get("clusterIP"):
        added["spec"] = {"clusterIP": "10.100.0.10"}
    return added


def _merged(inputs: dict[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the outputs over `inputs`: inside objects, and inside the first object of a list."""
    for key, value in added.items():
        mine = inputs.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            inputs[key] = _merged(dict(mine), value)
        elif isinstance(mine, list) and isinstance(value, list) and mine and isinstance(mine[0], dict):
            inputs[key] = [_merged(dict(mine[0]), value[0]), *mine[1:]]
        else:
            inputs[key] = value
    return inputs
