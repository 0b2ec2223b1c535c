"""The values that a cloud adds to a resource once it exists: ids, addresses, e-mails, by computed.yaml of its folder.

They replace a cloud in the recording (review/recording.py) and in the tests of the engine (tests/standin), so that both
see the same values.

A table has them by type, and answers by function, in the provider's own form, and only those that the program reads.
An entry is filled from top to bottom, its id first. Templates may use {name} of the resource in the cloud, {project} or
{region} of its provider, {account} of AWS, {place} (region/name), every input, and keys filled before. {x:hex17} is 17
hex digits of a hash of x, HEX32 32 in capitals, number and number10 a decimal number, uuid a hash in UUID form, part5
the part after the fifth /, 192.0 an address in that network, host a URL without its scheme. A key that ends in ? is
added only where the inputs have it.
"""

from __future__ import annotations

import hashlib
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
    place = {"region": where, "place": f"{where}/{name}", "account": ACCOUNT}
    given = {**place, **inputs, "name": name, "project": inputs.get("project") or where}
    known = _Known({key: _Text(value) for key, value in given.items()})
    added: dict[str, Any] = {}
    entry = table().get(type_, {})
    # Fill the id first: YAML's merge key puts its own keys before it.
    for key, template in sorted(entry.items(), key=lambda item: item[0] != "id"):
        name_ = key.removesuffix("?")
        if name_ == key or inputs.get(name_):
            added[name_] = _filled(template, known)
            known[name_] = _Text(added[name_])
    return added


class _Known(dict[str, "_Text"]):
    """Values for the templates of an entry; a missing input is replaced by its own name."""

    def __missing__(self, key: str) -> _Text:
        return _Text(key)


class _Text(str):
    """A string with the format specifiers of the table."""

    def __format__(self, form: str) -> str:
        digits = hashlib.sha256(self.encode()).hexdigest()
        if form.startswith(("hex", "HEX")):
            found = digits[: int(form[3:])]
            return found if form.startswith("hex") else found.upper()
        if form == "uuid":
            return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
        if form in ("number", "number10"):
            return str(_number(self) % 10**10 if form == "number10" else _number(self))
        if form.startswith("part"):
            return self.split("/")[int(form[4:])]
        if form == "host":
            return self.removeprefix("https://")
        return address(self, form) if form else str(self)


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
        added["spec"] = {"clusterIP": address(id_, "10.100")}
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


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)


def address(text: str, network: str = "10.0") -> str:
    """An address that depends on the text alone."""
    number = _number(text)
    return f"{network}.{number // 250 % 250}.{number % 250 + 1}"
