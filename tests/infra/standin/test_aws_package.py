"""The aws package as the engine sees it: names, which changes replace, and what a preview can know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.standin.aws.account import Account
from tests.standin.aws.provider import AwsResources
from tests.standin.cloud import Cloud
from tests.standin.naming import PluginError, Urn
from tests.standin.values import UNKNOWN

GROUP, TEMPLATE = "aws:eks/nodeGroup:NodeGroup", "aws:ec2/launchTemplate:LaunchTemplate"
LIFECYCLE = "aws:ecr/lifecyclePolicy:LifecyclePolicy"
SUBNET, CLUSTER = "aws:ec2/subnet:Subnet", "aws:eks/cluster:Cluster"


@pytest.fixture
def package(tmp_path: Path) -> AwsResources:
    """Nothing here asks AWS."""
    account = Account("http://127.0.0.1:1", "100000000000", "us-east-2")
    return AwsResources(Cloud(tmp_path / "cloud.json"), "us-east-2", account)


def urn(type_: str) -> Urn:
    return Urn(f"urn:pulumi:s::p::{type_}::x")


@pytest.mark.parametrize(
    ("type_", "old", "new", "replaces", "old_first"),
    [
        (GROUP, {"capacityType": "SPOT"}, {"capacityType": "ON_DEMAND"}, ["capacityType"], True),
        (GROUP, {"launchTemplate": {"version": "1"}}, {"launchTemplate": {"version": "2"}}, [], False),
        (SUBNET, {"cidrBlock": "10.0.0.0/20"}, {"cidrBlock": "10.0.16.0/20"}, ["cidrBlock"], False),
        (CLUSTER, {"roleArn": "a"}, {"roleArn": "b"}, ["roleArn"], True),
        (LIFECYCLE, {"policy": "a"}, {"policy": "b"}, ["policy"], True),
    ],
)
def test_which_changes_replace_and_which_goes_first(
    package: AwsResources, type_: str, old: dict[str, Any], new: dict[str, Any], replaces: list[str], old_first: bool
) -> None:
    """Two resources cannot share a name that the program gives; without one, both can exist at once."""
    name = {GROUP: {"nodeGroupName": "n"}, CLUSTER: {"name": "n"}, TEMPLATE: {"name": "n"}}.get(type_, {})
    before = package.check(urn(type_), {}, {**name, **old}, b"seed")
    after = package.check(urn(type_), before, {**name, **new}, b"other")
    assert package.diff(urn(type_), before, after, [])[1:] == (replaces, old_first)


def test_a_name_of_the_providers_own_stays_and_lets_the_new_one_come_first(package: AwsResources) -> None:
    before = package.check(urn(GROUP), {}, {"capacityType": "SPOT"}, b"seed")
    after = package.check(urn(GROUP), before, {"capacityType": "ON_DEMAND"}, b"other")
    assert before["nodeGroupName"] == after["nodeGroupName"]
    assert before["nodeGroupName"].startswith("x-")
    assert package.diff(urn(GROUP), before, after, [])[1:] == (["capacityType"], False)


def test_a_preview_of_a_change_knows_all_but_what_changes_with_it(package: AwsResources) -> None:
    state = {"name": "n", "userData": "a", "arn": "arn:template", "latestVersion": 3, "defaultVersion": 3}
    shown = package.update(urn(TEMPLATE), state, {"name": "n", "userData": "b"}, [], 0, preview=True)
    assert shown == {**state, "userData": "b", "latestVersion": UNKNOWN, "defaultVersion": UNKNOWN}
    state = {"vpcConfig": {"publicAccessCidrs": ["a"], "clusterSecurityGroupId": "sg-1"}}
    shown = package.update(urn(CLUSTER), state, {"vpcConfig": {"publicAccessCidrs": ["b"]}}, [], 0, preview=True)
    assert shown["vpcConfig"] == {"publicAccessCidrs": ["b"], "clusterSecurityGroupId": "sg-1"}


def test_a_token_for_the_registry_is_the_only_function(package: AwsResources) -> None:
    answer = package.answer("aws:ecr/getAuthorizationToken:getAuthorizationToken", {})
    assert answer["userName"] == "AWS"
    with pytest.raises(PluginError, match="aws:index/getRegion:getRegion is not known here"):
        package.answer("aws:index/getRegion:getRegion", {})


def test_without_an_emulated_account_nothing_is_made(tmp_path: Path) -> None:
    """Otherwise a test could reach a real account with the credentials of whoever runs it."""
    with pytest.raises(PluginError, match="no AWS is emulated"):
        AwsResources(Cloud(tmp_path / "cloud.json"), "us-east-2", None)
