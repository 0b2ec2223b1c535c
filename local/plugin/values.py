"""Pulumi's property values as Python values, and back.

The engine sends a protobuf Struct in which secrets and unknowns are marked by signatures
(pulumi/pulumi, sdk/go/common/resource/{properties,sig}.go). Here a secret is a `Secret`, an unknown is `UNKNOWN`,
and everything else is what `json` would give, so Kubernetes objects are plain dicts once `reveal`ed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import struct_pb2

SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE = "1b47061264138c4ac30d75fd1eb44270"
OUTPUT_SIGNATURE = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
UNKNOWN_STRING = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
UNKNOWN_STRINGS = {
    UNKNOWN_STRING,
    "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",  # bool
    "3eeb2bf0-c639-47a8-9e75-3b44932eb421",  # number
    "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",  # array
    "030794c1-ac77-496b-92df-f27374a8bd58",  # asset
    "e48ece36-62e2-4504-bad9-02848725956a",  # archive
    "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",  # object
}

# Python and TypeScript programs cannot write these names of CustomResourceDefinition schemas with dashes.
_DASHED = {
    name.replace("-", "_"): name
    for name in (
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    )
}
_UNDERSCORED = {dashed: underscored for underscored, dashed in _DASHED.items()}


class _Unknown:
    """The type of UNKNOWN: a value that an earlier resource will give."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __deepcopy__(self, _memo: dict) -> _Unknown:
        return self

    def __copy__(self) -> _Unknown:
        return self


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class Secret:
    """A value that the state file encrypts and the display hides."""

    value: Any

    def __repr__(self) -> str:
        return "Secret(...)"


def from_struct(struct: struct_pb2.Struct) -> dict[str, Any]:
    """The dict in a Struct, with `Secret` and `UNKNOWN` in place."""
    return {key: _from_value(value) for key, value in struct.fields.items()}


def _from_value(value: struct_pb2.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return UNKNOWN if value.string_value in UNKNOWN_STRINGS else value.string_value
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) < 2**63 else number
    if kind == "bool_value":
        return value.bool_value
    if kind == "list_value":
        return [_from_value(item) for item in value.list_value.values]
    if kind == "struct_value":
        fields = from_struct(value.struct_value)
        return _from_signed(fields) if SIGNATURE in fields else fields
    return None


def _from_signed(value: dict[str, Any]) -> Any:
    signature = value[SIGNATURE]
    if signature == SECRET_SIGNATURE:
        return Secret(value.get("value"))
    if signature == OUTPUT_SIGNATURE:
        inner = value.get("value", UNKNOWN)
        return Secret(inner) if value.get("secret") else inner
    raise ValueError("assets, archives and resource references are not Kubernetes values; give a string instead")


def to_struct(value: dict[str, Any], keep_secrets: bool = True) -> struct_pb2.Struct:
    """A Struct with signatures for secrets (unless the engine takes none) and unknowns."""
    struct = struct_pb2.Struct()
    for key, item in value.items():
        _fill(struct.fields[key], item, keep_secrets)
    return struct


def _fill(target: struct_pb2.Value, value: Any, keep_secrets: bool) -> None:
    if isinstance(value, Secret):
        if not keep_secrets:
            _fill(target, value.value, keep_secrets)
            return
        target.struct_value.fields[SIGNATURE].string_value = SECRET_SIGNATURE
        _fill(target.struct_value.fields["value"], value.value, keep_secrets)
    elif value is UNKNOWN:
        target.string_value = UNKNOWN_STRING
    elif value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, dict):
        target.struct_value.SetInParent()
        for key, item in value.items():
            _fill(target.struct_value.fields[key], item, keep_secrets)
    elif isinstance(value, (list, tuple)):
        target.list_value.SetInParent()
        for item in value:
            _fill(target.list_value.values.add(), item, keep_secrets)
    else:
        raise TypeError(f"cannot send a {type(value).__name__} to the engine")


def reveal(value: Any) -> Any:
    """A deep copy without `Secret` wrappers and with the dashed names that Kubernetes uses."""
    if isinstance(value, Secret):
        return reveal(value.value)
    if isinstance(value, dict):
        return {_DASHED.get(key, key): reveal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [reveal(item) for item in value]
    return value


def underscored(value: Any) -> Any:
    """The inverse of `reveal` for names: what a Pulumi program expects to read."""
    if isinstance(value, dict):
        return {_UNDERSCORED.get(key, key): underscored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [underscored(item) for item in value]
    return value


def has_unknown(value: Any) -> bool:
    """Whether an unknown stands anywhere in the value."""
    if isinstance(value, Secret):
        return has_unknown(value.value)
    if isinstance(value, dict):
        return any(has_unknown(item) for item in value.values())
    if isinstance(value, list):
        return any(has_unknown(item) for item in value)
    return value is UNKNOWN


def has_secret(value: Any) -> bool:
    """Whether a secret stands anywhere in the value."""
    if isinstance(value, dict):
        return any(has_secret(item) for item in value.values())
    if isinstance(value, list):
        return any(has_secret(item) for item in value)
    return isinstance(value, Secret)


def secret_strings(value: Any, inside: bool = False) -> Iterator[str]:
    """Every string (and number, as text) under a `Secret`: what an error message must not show."""
    if isinstance(value, Secret):
        yield from secret_strings(value.value, True)
    elif isinstance(value, dict):
        hidden = inside or value.get("kind") == "Secret"
        for key, item in value.items():
            yield from secret_strings(item, inside or (hidden and key in ("data", "stringData")))
    elif isinstance(value, list):
        for item in value:
            yield from secret_strings(item, inside)
    elif inside and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        yield str(value)


def mark_secrets(outputs: Any, inputs: Any) -> Any:
    """`outputs` with a `Secret` wherever `inputs` has one, and around the data of a Kubernetes Secret.

    Objects are walked, so one secret environment value does not hide a whole Deployment's metadata; a list with a
    secret in it becomes secret whole, because servers may reorder lists.
    """
    if not isinstance(outputs, dict):
        return outputs
    if outputs.get("kind") == "Secret":
        return {
            key: Secret(item) if key in ("data", "stringData") and not isinstance(item, Secret) else item
            for key, item in outputs.items()
        }
    if not isinstance(inputs, dict):
        return outputs
    marked = dict(outputs)
    for key, given in inputs.items():
        if key not in marked:
            continue
        if isinstance(marked[key], dict) and isinstance(given, dict):
            marked[key] = mark_secrets(marked[key], given)
        elif has_secret(given) and not isinstance(marked[key], Secret):
            marked[key] = Secret(marked[key])
    return marked
