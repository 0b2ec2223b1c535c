"""Who may mount the file system on EFS: pods have the nodes' security group, so the network keeps nobody away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from review.recording import record
from tests.infra.recorded import changed, recorded

ROLE = "arn:aws:iam::123456789012:role/trainyard-aws-g4dn-efs-node"
MOUNTED = {"elasticfilesystem:AccessedViaMountTarget": "true", "aws:SecureTransport": "true"}
POINT = "elasticfilesystem:AccessPointArn"
OWN = "arn:aws:elasticfilesystem:us-east-2:123456789012:access-point/fsap-data"


def admits(policy: str, who: str | None, client: Mapping[str, str], action: str) -> bool:
    """Evaluate a resource's policy for a client, as IAM does: a Deny wins, and what no Allow names is denied."""

    def applies(statement: dict[str, Any]) -> bool:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        conditions = [item for part in statement.get("Condition", {}).values() for item in part.items()]
        return (
            statement["Principal"]["AWS"] in ("*", who)
            and (action in actions or "*" in actions)
            and all(client.get(key) == wanted for key, wanted in conditions)
        )

    effects = {statement["Effect"] for statement in json.loads(policy)["Statement"] if applies(statement)}
    return effects == {"Allow"}


@pytest.mark.parametrize(
    ("who", "client", "action", "admitted"),
    [
        (ROLE, {**MOUNTED, POINT: OWN}, "ClientMount", True),
        (ROLE, {**MOUNTED, POINT: OWN}, "ClientRootAccess", False),
        (ROLE, {**MOUNTED, POINT: OWN, "aws:SecureTransport": "false"}, "ClientMount", False),
        (ROLE, {**MOUNTED, POINT: OWN.replace("data", "other")}, "ClientMount", False),
        # The whole file system, in place of the trainer's folder.
        (ROLE, MOUNTED, "ClientMount", False),
        # `mount -t nfs4` in a pod, and with TLS and the access point.
        (None, {**MOUNTED, "aws:SecureTransport": "false"}, "ClientMount", False),
        ("arn:aws:iam::123456789012:role/trainyard-aws-g4dn-reader", {**MOUNTED, POINT: OWN}, "ClientMount", False),
    ],
)
def test_only_the_drivers_role_mounts_and_only_through_the_access_point(
    who: str | None, client: dict[str, str], action: str, admitted: bool
) -> None:
    policy = recorded("aws-g4dn").one("FileSystemPolicy").inputs["policy"]
    assert admits(policy, who, client, f"elasticfilesystem:{action}") is admitted


@pytest.mark.parametrize("changes", [{}, {"storage": {"disk": "fs-0123456789abcdef0"}}])
def test_volumes_are_mounted_as_that_role_which_the_drivers_pods_have_from_their_start(changes: dict[str, Any]) -> None:
    """Also a file system of somebody's, whose policy is not ours. The add-on itself takes a role for its controller
    alone."""
    found = record("aws-g4dn", changed("aws-g4dn", **changes))
    assert found.one("PersistentVolume").inputs["spec"]["mountOptions"] == ["iam"]
    given = found.one("PodIdentityAssociation", "efs-node")
    assert (given.inputs["namespace"], given.inputs["serviceAccount"]) == ("kube-system", "efs-csi-node-sa")
    assert given.inputs["roleArn"] == ROLE
    assert given.urn in found.earlier(found.one("Addon", "aws-efs-csi-driver")), "a pod gets its role when it starts"
    (granted,) = json.loads(found.one("RolePolicy", "efs-node-mount").inputs["policy"])["Statement"]
    assert granted["Condition"] == {"StringEquals": {POINT: OWN}}
    assert granted["Action"] == ["elasticfilesystem:ClientMount", "elasticfilesystem:ClientWrite"]


@pytest.mark.parametrize("zones", [["use2-az1"], ["use2-az3", "use2-az2", "use2-az1"]], ids=len)
def test_every_zone_with_nodes_has_a_mount_target(zones: list[str]) -> None:
    """Nodes resolve only the target of their own zone."""
    found = record("aws-g4dn", changed("aws-g4dn", eks={"zones": zones}))
    targets = {item.inputs["subnetId"] for item in found.resources if item.kind == "MountTarget"}
    groups = [item for item in found.resources if item.kind == "NodeGroup"]
    assert {subnet for item in groups if item.name != "system" for subnet in item.inputs["subnetIds"]} <= targets


@pytest.mark.parametrize("retain", [False, True])
def test_a_file_system_that_is_kept_stays_and_all_else_of_it_goes(retain: bool) -> None:
    found = record("aws-g4dn", changed("aws-g4dn", storage={"retain": retain}))
    assert {item.kind for item in found.all("aws:") if item.retain_on_delete} == ({"FileSystem"} if retain else set())
    assert "kmsKeyId" not in found.one("FileSystem").inputs, "it stays readable: its key is not the stack's"


def test_a_file_system_that_exists_is_used_and_never_deleted() -> None:
    found = record("aws-g4dn", changed("aws-g4dn", storage={"disk": "fs-0123456789abcdef0"}))
    assert not [item for item in found.resources if item.kind in ("FileSystem", "FileSystemPolicy")]
    handle = found.one("PersistentVolume").inputs["spec"]["csi"]["volumeHandle"]
    assert handle.startswith("fs-0123456789abcdef0::fsap-")
    targets = {item.inputs["fileSystemId"] for item in found.resources if item.kind == "MountTarget"}
    assert targets == {"fs-0123456789abcdef0"}
