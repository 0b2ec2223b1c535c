"""What replaces a resource, by the providers' schemas: every type that a stack can declare, and the conditions."""

from __future__ import annotations

from typing import Any

import pytest

from review.recording import record
from tests.infra.recorded import changed
from tests.standin import replaces

DISK, CLUSTER, SUBNET = (
    "gcp:compute/disk:Disk",
    "aws:eks/cluster:Cluster",
    "gcp:compute/subnetwork:Subnetwork",
)


@pytest.mark.parametrize(
    ("stack", "sections"),
    [
        ("gcp-a100", {"dataset": {"input": ["gs://bucket/texts"]}, "nodes": {"compactPlacement": True}}),
        ("gcp-c3", {"storage": {"kind": "filestore", "tier": "ZONAL", "sizeGib": 1024}}),
        ("aws-g4dn", {"nodes": {"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True}}),
        ("aws-g4dn", {"dataset": {"input": ["s3://bucket/texts"]}, "eks": {"irsa": True, "publicNodes": True}}),
    ],
)
def test_every_type_that_a_stack_can_have_is_in_the_tables(stack: str, sections: dict[str, Any]) -> None:
    types = {item.type for item in record(stack, changed(stack, **sections)).resources}
    clouds = {type_ for type_ in types if type_.startswith(("gcp:", "aws:", "docker-build:"))}
    assert {type_ for type_ in clouds if not replaces.is_known(type_)} == set()


@pytest.mark.parametrize(
    ("type_", "path", "old", "new", "replaced"),
    [
        # A state has numbers as floats, a program as ints.
        (DISK, "size", 1000.0, 500, True),
        (DISK, "size", 500, 1000.0, False),
        (DISK, "size", 500, None, False),
        # Envelope encryption can be switched on while the cluster lives, and never off.
        (CLUSTER, "encryptionConfig", {"resources": ["secrets"]}, None, True),
        (CLUSTER, "encryptionConfig", None, {"resources": ["secrets"]}, False),
        (SUBNET, "ipCidrRange", "10.0.0.0/20", "10.0.0.0/21", True),
        (SUBNET, "ipCidrRange", "10.0.0.0/21", "10.0.0.0/20", False),
        ("gcp:filestore/instance:Instance", "name", "a", "b", False),
        ("gcp:compute/resourcePolicy:ResourcePolicy", "name", "a", "b", False),
        ("aws:autoscaling/tag:Tag", "autoscalingGroupName", "a", "b", True),
    ],
)
def test_a_property_replaces_as_the_provider_decides(type_: str, path: str, old: Any, new: Any, replaced: bool) -> None:
    assert ((path,) in replaces.paths(type_, {path: old}, {path: new})) == replaced
