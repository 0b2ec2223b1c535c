"""The table of all types: what creates, changes and deletes a resource of Pulumi's aws package."""

from __future__ import annotations

from typing import Any

from local.plugin.errors import PluginError

from . import dependents, eks, identity, network, prerequisites, storage
from .account import Account, Inputs
from .kind import Kind

KINDS: dict[str, Kind] = {**network.KINDS, **identity.KINDS, **eks.KINDS, **storage.KINDS}


def kind(type_: str) -> Kind:
    """Raises PluginError for a type that nobody looked at."""
    if type_ not in KINDS:
        raise PluginError(f"{type_} is not known here: say how AWS makes it in tests/standin/aws")
    return KINDS[type_]


def named(type_: str, inputs: Inputs, name: str) -> dict[str, Any]:
    """The inputs with `name` where the provider gives a name of its own and the program gives none."""
    property_ = kind(type_).name
    prefix = f"{property_}Prefix"
    if not property_ or inputs.get(property_) or inputs.get(prefix):
        return dict(inputs)
    return {**inputs, property_: f"alias/{name}" if type_ == "aws:kms/alias:Alias" else name}


def create(account: Account, type_: str, inputs: Inputs) -> tuple[str, dict[str, Any]]:
    """(id, outputs: the inputs with what AWS added).

    Raises:
        PluginError: as AWS refuses.
    """
    prerequisites.check(account, type_, inputs)
    id_, added = kind(type_).create(account, inputs)
    return id_, _laid_over(inputs, added)


def update(account: Account, type_: str, id_: str, state: Inputs, inputs: Inputs) -> dict[str, Any]:
    """The outputs of the changed resource. Raises PluginError as AWS refuses, and for a type without a translation."""
    change = kind(type_).update
    if change is None:
        raise PluginError(f"{type_} {id_}: nobody has said how AWS changes it: add it in tests/standin/aws")
    return _laid_over(inputs, change(account, id_, state, inputs))


def delete(account: Account, type_: str, id_: str, state: Inputs) -> None:
    """Raises PluginError as AWS refuses."""
    dependents.check(account, type_, id_, state)
    kind(type_).delete(account, id_, state)


def _laid_over(inputs: Inputs, added: Inputs) -> dict[str, Any]:
    merged = dict(inputs)
    for key, value in added.items():
        mine = merged.get(key)
        merged[key] = {**mine, **value} if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged
