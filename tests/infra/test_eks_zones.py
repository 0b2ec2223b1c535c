"""Which zones workers come from: by AWS's answer at preview, and by the dated table where it gives none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import get_args

import moto
import pulumi
import pytest

from infra.clouds import CLOUDS
from infra.eks.keys import EksConfig, versions
from infra.eks.machines import default_zones, machines, regions
from infra.facts import load
from infra.parse import parse
from infra.stackfiles import ROOT
from review.recording import Recording, record
from tests.infra.eks import refuse
from tests.infra.recorded import changed

STACK = "aws-g4dn"
OFFERINGS = "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings"
RELEASE = "aws:ssm/getParameter:getParameter"
OREGON = {"region": "us-west-2", "zones": ["usw2-az4", "usw2-az2", "usw2-az1"]}


def groups(found: Recording) -> dict[str, list[str]]:
    """Workers' groups and the types of their machines."""
    named = [item for item in found.resources if item.kind == "NodeGroup" and item.name != "system"]
    return {item.name: item.inputs["instanceTypes"] for item in named}


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", found.append)
    return found


def answers(monkeypatch: pytest.MonkeyPatch, *pairs: tuple[str, str]) -> None:
    """AWS says that these zones offer these types, and no others."""
    said = {"id": "x", "locations": [zone for zone, _ in pairs], "instanceTypes": [name for _, name in pairs]}
    monkeypatch.setitem(CLOUDS["eks"].answers, OFFERINGS, lambda *_: said)


def test_a_zone_without_the_machines_gets_no_nodes_and_that_is_said(warned: list[str]) -> None:
    """EKS refuses a node group there, but only when the control plane is up and billed."""
    found = groups(record(STACK, changed(STACK, eks=OREGON)))
    assert set(found) == {"workers-usw2-az2", "workers-usw2-az1"}
    assert warned == [
        "eks.zones: usw2-az4 offers no g4dn.xlarge or g4dn.2xlarge or g4dn.4xlarge; no workers come from there"
    ]


def test_what_aws_answers_counts_and_not_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, ("usw2-az4", "g4dn.2xlarge"), ("usw2-az4", "g4dn.xlarge"), ("usw2-az1", "g4dn.4xlarge"))
    found = groups(record(STACK, changed(STACK, eks=OREGON)))
    assert found == {"workers-usw2-az4": ["g4dn.xlarge", "g4dn.2xlarge"], "workers-usw2-az1": ["g4dn.4xlarge"]}


def test_without_an_answer_the_preview_goes_on_by_the_table(monkeypatch: pytest.MonkeyPatch, warned: list[str]) -> None:
    monkeypatch.setitem(CLOUDS["eks"].answers, OFFERINGS, refuse)
    monkeypatch.setitem(CLOUDS["eks"].answers, RELEASE, refuse)
    found = record(STACK, changed(STACK, eks=OREGON))
    assert sorted(groups(found)) == ["workers-usw2-az1", "workers-usw2-az2"]
    assert "releaseVersion" not in found.one("NodeGroup", "system").inputs, "the nodes keep what they have"
    assert "cannot ask AWS which zones offer g4dn.xlarge" in warned[0]
    assert any("cannot ask AWS for the newest AL2023_x86_64_NVIDIA for 1.36" in line for line in warned)


def test_zones_that_offer_nothing_are_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pulumi.RunError, match=r"eks\.zones: none of usw2-az4 offers .*; allowed: usw2-az1, usw2-az2"):
        record(STACK, changed(STACK, eks={**OREGON, "zones": ["usw2-az4"]}))
    answers(monkeypatch)
    with pytest.raises(pulumi.RunError, match=r"eks\.zones: none of use2-az1, .* allowed: none"):
        record(STACK)


def test_nodes_get_the_newest_image_or_the_one_that_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = {"nvidia": "1.36.2-20261118", "standard": "1.36.2-20261115"}
    answer = lambda given, _: {"insecureValue": newest[given["name"].split("/")[-3]]}  # noqa: E731
    monkeypatch.setitem(CLOUDS["eks"].answers, RELEASE, answer)
    found = record(STACK)
    assert found.one("NodeGroup", "system").inputs["releaseVersion"] == newest["standard"]
    assert found.one("NodeGroup", "workers-use2-az1").inputs["releaseVersion"] == newest["nvidia"]
    pinned = record(STACK, changed(STACK, eks={"nodeRelease": "1.36.0-20260901"}))
    assert pinned.one("NodeGroup", "system").inputs["releaseVersion"] == "1.36.0-20260901"


@pytest.mark.parametrize("region", regions())
def test_the_table_is_what_aws_answered(region: str) -> None:
    """moto ships AWS's answers and derives its own from them."""
    path = Path(moto.__file__).parent / f"ec2/resources/instance_type_offerings/availability-zone-id/{region}.json.gz"
    offered = {(item["Location"], item["InstanceType"]) for item in json.loads(gzip.decompress(path.read_bytes()))}
    table = regions()[region]
    for zone in table.zones:
        for name in machines():
            assert table.offers(name, zone) == ((zone, name) in offered), f"{name} in {zone}"


def test_the_home_zones_of_every_region_take_a_control_plane_and_every_system_machine() -> None:
    for region, table in regions().items():
        assert len(table.home) == 2, region
        assert not set(table.home) & set(load(ROOT / "infra/eks/zones.yaml")["no_control_plane"])
        assert all(table.offers(name, zone) for name, each in machines().items() if each.system for zone in table.home)


def test_zones_are_the_first_of_the_region_with_such_machines_when_none_is_named() -> None:
    config = parse(changed(STACK, eks={"region": "us-west-2", "zones": []}), STACK)
    assert config.section(EksConfig).zones == ("usw2-az1", "usw2-az2", "usw2-az3"), "usw2-az4 has no g4dn"
    for region in regions():
        assert 1 <= len(default_zones(region, "g4dn.xlarge")) <= 4


def test_every_version_has_its_autoscaler() -> None:
    images = {version: facts["autoscaler"] for version, facts in versions().items()}
    assert set(get_args(EksConfig.model_fields["version"].annotation)) == images.keys()
    assert all(f":v{version}." in image and "@sha256:" in image for version, image in images.items())
