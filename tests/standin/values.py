"""Pulumi's property values as Python values, and back.

The engine sends a protobuf Struct in which signatures mark secrets and unknowns
(pulumi/pulumi, sdk/go/common/resource/{properties,sig}.go). Here a secret is a `Secret`, an unknown is `UNKNOWN`,
and all other values are those of `json`, so that Kubernetes objects are plain dicts after `reveal`.
"""

from __future__ import annotations

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


class _Unknown:
    """The type of UNKNOWN: a value that another resource's creation will set."""

    def __repr__(self) -> str:
        return "UNKNOWN"

    def __deepcopy__(self, _memo: dict) -> _Unknown:
        return self


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class Secret:
    """A value that Pulumi encrypts in the state and hides in its output."""

    value: Any

    def __repr__(self) -> str:
        return "Secret(...)"


def from_struct(struct: struct_pb2.Struct) -> dict[str, Any]:
    """Return the dict in a Struct, with `Secret` and `UNKNOWN` for the marked values."""
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
    """Make a Struct with signatures for unknowns and, if the engine accepts them, for secrets."""
    struct = struct_pb2.Struct()
    struct.update(_signed(value, keep_secrets))
    return struct


def _signed(value: Any, keep_secrets: bool) -> Any:
    if isinstance(value, Secret):
        inner = _signed(value.value, keep_secrets)
        return {SIGNATURE: SECRET_SIGNATURE, "value": inner} if keep_secrets else inner
    if isinstance(value, dict):
        return {key: _signed(item, keep_secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_signed(item, keep_secrets) for item in value]
    return UNKNOWN_STRING if value is UNKNOWN else value


def reveal(value: Any) -> Any:
    """Make a deep copy without `Secret` wrappers."""
    if isinstance(value, Secret):
        return reveal(value.value)
    if isinstance(value, dict):
        return {key: reveal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [reveal(item) for item in value]
    return value


def contains(value: Any, wanted: type) -> bool:
    """Whether `value` contains a value of the type, at any depth."""
    if isinstance(value, wanted):
        return True
    if isinstance(value, Secret):
        return contains(value.value, wanted)
    if isinstance(value, (dict, list)):
        return any(contains(item, wanted) for item in (value.values() if isinstance(value, dict) else value))
    return False


def has_unknown(value: Any) -> bool:
    return contains(value, _Unknown)


def has_secret(value: Any) -> bool:
    return contains(value, Secret)


def mark_secrets(outputs: Any, inputs: Any) -> Any:
    """Copy `outputs` with a `Secret` wherever `inputs` has one, and around the data of a Kubernetes Secret.

    This descends into objects, so that one secret value does not hide a whole Deployment's metadata. A list that
    contains a secret becomes secret as a whole, because servers may reorder lists.
    """
    if not isinstance(outputs, dict):
        return outputs
    if outputs.get("kind") == "Secret":
        inputs = {key: Secret(None) for key in ("data", "stringData")}
    marked = dict(outputs)
    for key, given in inputs.items() if isinstance(inputs, dict) else ():
        value = marked.get(key)
        if isinstance(value, dict) and isinstance(given, dict):
            marked[key] = mark_secrets(value, given)
        elif key in marked and has_secret(given) and not isinstance(value, Secret):
            marked[key] = Secret(value)
    return marked
