"""One emulated account: boto3's clients, and Pulumi's inputs as the arguments of AWS's operations."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from local.plugin.errors import PluginError

Inputs = Mapping[str, Any]


class Refused(PluginError):
    """AWS's answer to a call: `code` is the API's error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Account:
    """An account at an endpoint; accounts with different numbers share nothing."""

    def __init__(self, endpoint: str, number: str, region: str) -> None:
        self.endpoint, self.number, self.region = endpoint, number, region
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._new_client(service)
            return self._clients[service]

    def _new_client(self, service: str) -> Any:
        # Takes half a second to import: only a process that asks AWS pays for it.
        import boto3
        from botocore.config import Config

        client = boto3.client(
            service,  # type: ignore[call-overload]
            region_name=self.region,
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"max_attempts": 1}, read_timeout=60),
        )
        # moto's way to choose an account without assuming a role in it.
        client.meta.events.register(
            "before-send.*", lambda request, **_: request.headers.__setitem__("x-moto-account-id", self.number)
        )
        return client

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """The answer of an operation (`create_vpc`). None arguments are left out.

        Raises:
            Refused: as the API does; also for arguments that are not the API's.
        """
        from botocore.exceptions import ClientError, ParamValidationError

        given = {key: value for key, value in arguments.items() if value is not None}
        try:
            return getattr(self.client(service), operation)(**given)
        except ClientError as error:
            answer = error.response.get("Error", {})
            raise Refused(answer.get("Code", "?"), answer.get("Message", str(error))) from None
        except ParamValidationError as error:
            raise Refused("ParamValidation", " ".join(str(error).split())) from None

    def translated(
        self, service: str, operation: str, inputs: Inputs, renamed: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Pulumi's `inputs` (camelCase, numbers as the engine sends them) as arguments of an operation.

        Args:
            renamed: property -> argument, where the provider's name is not the API's.

        Raises:
            Refused: a property that the operation does not have, so that none is dropped unseen.
        """
        client = self.client(service)
        shape = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation]).input_shape
        return shaped(shape, {(renamed or {}).get(key, key): value for key, value in inputs.items()}, operation)


def shaped(shape: Any, value: Any, where: str) -> Any:
    """A value in the form of one of botocore's shapes: members in the API's spelling, whole numbers whole."""
    if shape.type_name == "structure" and isinstance(value, Mapping):
        found = {}
        for key, item in value.items():
            if item is not None:
                member = _member(shape, key, where)
                found[member] = shaped(shape.members[member], item, f"{where}.{key}")
        return found
    if shape.type_name == "list" and isinstance(value, Mapping) and _is_tag(shape.member):
        return [{"Key": key, "Value": item} for key, item in sorted(value.items())]
    if shape.type_name == "list":
        # The provider shows lists of at most one item as the item.
        items = value if isinstance(value, list) else [value]
        return [shaped(shape.member, item, where) for item in items]
    if shape.type_name == "map" and isinstance(value, Mapping):
        return {key: shaped(shape.value, item, where) for key, item in value.items()}
    if shape.type_name in ("integer", "long") and isinstance(value, (int, float, str)):
        return int(value)
    if shape.type_name == "boolean" and isinstance(value, str):
        # Some of the provider's booleans are strings, to tell false from not given.
        return value == "true"
    if shape.type_name == "string" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(int(value))
    return value


def _is_tag(shape: Any) -> bool:
    return shape.type_name == "structure" and set(shape.members) == {"Key", "Value"}


def _member(shape: Any, key: str, where: str) -> str:
    """The API's name of a property: spelt otherwise, or a plural of it."""
    members = {name.lower(): name for name in shape.members}
    for spelling in (key.lower(), f"{key.lower()}s", key.lower().removesuffix("s")):
        if spelling in members:
            return members[spelling]
    raise Refused("UnknownProperty", f"{where} has no parameter {key}")


def split(inputs: Inputs, *apart: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs without some properties, those properties)."""
    rest = {key: value for key, value in inputs.items() if key not in apart and not key.startswith("__")}
    return rest, {key: inputs.get(key) for key in apart}


def tag_specification(kind: str, inputs: Inputs) -> list[dict[str, Any]] | None:
    """Tags as EC2 wants them at creation."""
    tags = [{"Key": key, "Value": value} for key, value in sorted((inputs.get("tags") or {}).items())]
    return [{"ResourceType": kind, "Tags": tags}] if tags else None
