"""The resources of the AWS stack around its nodes: network, control plane, rights, storage and images."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import pytest

from review.recording import Recording
from tests.infra.eks import ZONES, stack
from tests.infra.recorded import pod


def statements(found: Recording, policy: str) -> list[dict[str, Any]]:
    return json.loads(found.one("RolePolicy", policy).inputs["policy"])["Statement"]


#: Kind -> its timeouts in the provider's schemas (hashicorp/terraform-provider-aws 5.100.0), where they are not create,
#: update and delete. The provider ignores any other timeout.
TIMES = {
    "Vpc": set(),
    "FileSystem": set(),
    "Subnet": {"create", "delete"},
    "SecurityGroup": {"create", "delete"},
    "MountTarget": {"create", "delete"},
    "Eip": {"read", "update", "delete"},
}


def test_a_timeout_is_one_that_the_provider_knows() -> None:
    for item in stack().all("aws:"):
        assert item.timeouts.keys() <= TIMES.get(item.kind, {"create", "update", "delete"}), item.kind


def test_no_two_subnets_overlap_and_the_order_of_zones_moves_none() -> None:
    cidr = "192.168.0.0/20"  # the smallest that is allowed

    def blocks(zones: list[str]) -> dict[str, ipaddress.IPv4Network]:
        found = stack(eks={"vpcCidr": cidr, "zones": zones})
        subnets = [item for item in found.resources if item.kind == "Subnet"]
        return {item.name: ipaddress.IPv4Network(item.inputs["cidrBlock"]) for item in subnets}

    found = blocks(ZONES)
    networks = list(found.values())
    assert all(network.subnet_of(ipaddress.IPv4Network(cidr)) for network in networks)
    assert not any(one.overlaps(other) for at, one in enumerate(networks) for other in networks[at + 1 :])
    assert blocks(ZONES[::-1]) == found
    assert blocks(ZONES[:2]).items() <= found.items()


@pytest.mark.parametrize("zones", [ZONES[2:], ZONES[::-1]], ids=["last alone", "backwards"])
def test_other_zones_of_workers_change_nothing_that_cannot_move(zones: list[str]) -> None:
    """A cluster cannot change its zones, a subnet its zone, or a node group its subnets."""
    before, after = stack(), stack(eks={"zones": zones})
    fixed = ["nat", *(f"{kind}-{zone}" for kind in ("nodes", "control-plane") for zone in ZONES[:2])]
    assert [after.one("Subnet", name).inputs for name in fixed] == [before.one("Subnet", name).inputs for name in fixed]
    for kind, name in (("Cluster", None), ("NatGateway", None), ("NodeGroup", "system")):
        assert after.one(kind, name).inputs == before.one(kind, name).inputs, kind
    subnets = {item.urn for item in after.all("aws:ec2/subnet")}
    assert {urn.rsplit("::", 1)[1] for urn in subnets.intersection(after.one("Cluster").dependencies)} == set(
        fixed[-2:]
    )


CI = ("arn:aws:iam::123456789012:role/ci", "arn:aws:iam::123456789012:user/ci")
ADMIN = "arn:aws:iam::123456789012:role/ops"
#: Options of the control plane that the stack file does not take.
OPTIONS = {"admins": [ADMIN], "viewers": [*CI], "secretsEncryption": False, "irsa": True, "logs": ["audit"]}


def test_admins_may_do_everything_and_who_previews_may_read_every_object_and_change_none() -> None:
    found = stack(eks=OPTIONS)
    assert {item.inputs["principalArn"] for item in found.resources if item.kind == "AccessEntry"} >= {ADMIN, *CI}
    policies = {item.name: item.inputs for item in found.resources if item.kind == "AccessPolicyAssociation"}
    (admin,) = (each for each in policies.values() if each["principalArn"] == ADMIN)
    assert admin["policyArn"].endswith("AmazonEKSClusterAdminPolicy")
    for name, arn in zip(("viewer-123456789012-role-ci", "viewer-123456789012-user-ci"), CI, strict=True):
        assert policies[name]["principalArn"] == arn, "by its ARN: one that goes moves no other"
        # A refresh reads Secrets and cluster-scoped objects.
        assert policies[name]["policyArn"].endswith("cluster-access-policy/AmazonEKSAdminViewPolicy")
        assert policies[name]["accessScope"] == {"type": "cluster"}


def test_software_that_knows_no_pod_identity_gets_an_oidc_provider() -> None:
    provider = stack(eks={"irsa": True}).one("OpenIdConnectProvider").inputs
    assert provider["url"].startswith("https://oidc.eks.us-east-2.amazonaws.com/id/")
    assert provider["clientIdLists"] == ["sts.amazonaws.com"]
    assert not [item for item in stack().resources if item.kind == "OpenIdConnectProvider"]


def test_own_buckets_are_read_by_the_dataset_job_alone() -> None:
    assert not [item for item in stack().resources if item.kind == "ServiceAccount" and item.name == "dataset"]
    found = stack(dataset={"input": ["s3://my-texts/books", "s3://my-texts/more", "sample"]})
    look, read = statements(found, "reader-buckets")
    assert look["Resource"] == ["arn:aws:s3:::my-texts"]
    assert (read["Action"], read["Resource"]) == ("s3:GetObject", ["arn:aws:s3:::my-texts/*"])
    association = found.one("PodIdentityAssociation", "reader").inputs
    assert (association["namespace"], association["serviceAccount"]) == ("trainyard", "dataset")
    dataset = found.one("Job", "dataset")
    assert dataset.inputs["spec"]["template"]["spec"]["serviceAccountName"] == "dataset"
    assert found.one("PodIdentityAssociation", "reader").urn in found.earlier(dataset), "or its pods get no role"
    assert "serviceAccountName" not in pod(found, "Job", "training")
