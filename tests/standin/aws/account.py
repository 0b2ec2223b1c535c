"""AWS emulated on loopback (moto), one of its accounts, and the conversion of Pulumi's inputs to AWS's arguments."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ..naming import PluginError

Inputs = Mapping[str, Any]
#: Kinds that cost money or block a later run: kind -> (service, operation, JMESPath of the ids in the answer). AWS
#: lists some for an hour after their deletion.
LISTED = {
    "vpc": ("ec2", "describe_vpcs", "Vpcs[].VpcId"),
    "subnet": ("ec2", "describe_subnets", "Subnets[].SubnetId"),
    "internet gateway": ("ec2", "describe_internet_gateways", "InternetGateways[].InternetGatewayId"),
    "NAT gateway": ("ec2", "describe_nat_gateways", "NatGateways[?State != 'deleted'].NatGatewayId"),
    "address": ("ec2", "describe_addresses", "Addresses[].AllocationId"),
    "route table": ("ec2", "describe_route_tables", "RouteTables[].RouteTableId"),
    "endpoint": ("ec2", "describe_vpc_endpoints", "VpcEndpoints[?State != 'deleted'].VpcEndpointId"),
    "security group": ("ec2", "describe_security_groups", "SecurityGroups[].GroupId"),
    "network interface": ("ec2", "describe_network_interfaces", "NetworkInterfaces[].NetworkInterfaceId"),
    "launch template": ("ec2", "describe_launch_templates", "LaunchTemplates[].LaunchTemplateId"),
    "cluster": ("eks", "list_clusters", "clusters"),
    "role": ("iam", "list_roles", "Roles[].RoleName"),
    "identity provider": ("iam", "list_open_id_connect_providers", "OpenIDConnectProviderList[].Arn"),
    "alias": ("kms", "list_aliases", "Aliases[].AliasName"),
    "log group": ("logs", "describe_log_groups", "logGroups[].logGroupName"),
    "file system": ("efs", "describe_file_systems", "FileSystems[].FileSystemId"),
    "access point": ("efs", "describe_access_points", "AccessPoints[].AccessPointId"),
    "repository": ("ecr", "describe_repositories", "repositories[].repositoryName"),
}


@contextmanager
def aws() -> Iterator[str]:
    """Serve an emulated AWS; yields its endpoint."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    # Load the policies that AWS manages: tests check that those that are named exist.
    with patch.dict("os.environ", MOTO_IAM_LOAD_MANAGED_POLICIES="true"):
        server.start()
        try:
            host, port = server.get_host_and_port()
            yield f"http://{host}:{port}"
        finally:
            server.stop()


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
        # boto3 takes half a second to import: import it only in a process that calls AWS.
        import boto3
        from botocore.config import Config

        client = boto3.client(  # pyrefly: ignore[no-matching-overload]
            service,
            region_name=self.region,
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"max_attempts": 1}, read_timeout=60),
        )
        # This header of moto chooses an account without assuming a role in it.
        client.meta.events.register(
            "before-send.*", lambda request, **_: request.headers.__setitem__("x-moto-account-id", self.number)
        )
        return client

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation (`create_vpc`); return its answer. Raises PluginError if the API refuses."""
        from botocore.exceptions import ClientError

        try:
            return getattr(self.client(service), operation)(**arguments)
        except ClientError as error:
            answer = error.response.get("Error", {})
            raise PluginError(f"{answer.get('Code', '?')}: {answer.get('Message', error)}") from None

    def arguments(self, service: str, operation: str, inputs: Inputs) -> dict[str, Any]:
        """Convert Pulumi's `inputs` (camelCase, numbers as the engine sends them) to arguments of an operation.

        Raises:
            PluginError: the operation has no such parameter, or refuses the value.
        """
        from botocore.exceptions import ParamValidationError
        from botocore.validate import validate_parameters

        model = self.client(service).meta
        shape = model.service_model.operation_model(model.method_to_api_mapping[operation]).input_shape
        given = _shaped(shape, inputs, operation)
        # The client fills in idempotency tokens.
        tokens = {name: "token" for name, member in shape.members.items() if member.metadata.get("idempotencyToken")}
        try:
            validate_parameters({**tokens, **given}, shape)
        except ParamValidationError as error:
            raise PluginError(f"ParamValidation: {' '.join(str(error).split())}") from None
        return given

    def ids(self, kind: str) -> list[str]:
        import jmespath

        service, operation, query = LISTED[kind]
        return jmespath.search(query, self.call(service, operation))

    def everything(self) -> set[str]:
        """ "KIND ID" of all that exists. A new account already has a network and a few key aliases."""
        keys = [self.call("kms", "describe_key", KeyId=key["KeyId"]) for key in self.call("kms", "list_keys")["Keys"]]
        # A key that waits for its deletion costs nothing.
        living = [key["KeyMetadata"] for key in keys if key["KeyMetadata"]["KeyState"] != "PendingDeletion"]
        own = {f"key {key['KeyId']}" for key in living if key["KeyManager"] == "CUSTOMER"}
        return own | {f"{kind} {id_}" for kind in LISTED for id_ in self.ids(kind)}

    def interfaces(self, subnet: str) -> list[dict[str, Any]]:
        """List the network interfaces in a subnet."""
        filters = [{"Name": "subnet-id", "Values": [subnet]}]
        return self.call("ec2", "describe_network_interfaces", Filters=filters)["NetworkInterfaces"]

    def offerings(self, location_type: str, filters: list[dict[str, Any]]) -> list[tuple[str, str]]:
        """List (zone or its id, machine type) of all offers: AWS's own answers as of moto's release."""
        given = {"LocationType": location_type, "Filters": filters}
        answer = self.call("ec2", "describe_instance_type_offerings", **given)
        return [(item["Location"], item["InstanceType"]) for item in answer["InstanceTypeOfferings"]]


def _shaped(shape: Any, value: Any, where: str) -> Any:
    """Convert a value to one of botocore's shapes: members in the API's spelling, integers as int."""
    match shape.type_name, value:
        case "structure", [one]:
            return _shaped(shape, one, where)
        case "structure", Mapping():
            given = {key: item for key, item in value.items() if item is not None}
            members = {_member(shape, key, where): (key, item) for key, item in given.items()}
            return {name: _shaped(shape.members[name], item, f"{where}.{key}") for name, (key, item) in members.items()}
        case "list", Mapping() if set(getattr(shape.member, "members", ())) == {"Key", "Value"}:
            return [{"Key": key, "Value": item} for key, item in sorted(value.items())]
        case "list", _:
            # The provider flattens a list of at most one item to the item.
            return [_shaped(shape.member, item, where) for item in (value if isinstance(value, list) else [value])]
        case "map", Mapping():
            return {key: _shaped(shape.value, item, where) for key, item in value.items()}
        case "integer" | "long", int() | float() | str():
            return int(value)
        case "boolean", str():
            # Some of the provider's booleans are strings, to tell false from unset.
            return value == "true"
        case "string", int() | float() if not isinstance(value, bool):
            return str(int(value))
    return value


def _member(shape: Any, key: str, where: str) -> str:
    """Find the API's name of a property, which may differ in case and in a plural s."""
    members = {name.lower(): name for name in shape.members}
    for spelling in (key.lower(), f"{key.lower()}s", key.lower().removesuffix("s")):
        if spelling in members:
            return members[spelling]
    raise PluginError(f"{where} has no parameter {key}")
