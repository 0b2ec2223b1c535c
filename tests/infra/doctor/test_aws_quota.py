"""The account's quotas against an emulated AWS: what is free, what is needed, how to ask for more."""

from __future__ import annotations

from typing import Any

import pytest

from infra.eks.doctor import quota
from infra.eks.doctor.aws_client import Amazon
from infra.eks.machines import machines
from infra.features import features
from tests.infra.doctor.conftest import NAME, Cloud, client, config, only, problems


def test_a_new_account_has_no_quota_for_spot_accelerators(cloud: Cloud, here: Amazon) -> None:
    del cloud.quotas["L-3819A6DF"]
    cloud.defaults["L-3819A6DF"] = 0
    finding = only(problems(quota.checks(here, config())))
    assert finding.key == "quota All G and VT Spot Instance Requests"
    assert finding.text == "0 of 0 vCPUs free in us-east-1, 20 are needed"
    assert finding.fix == (
        "aws service-quotas request-service-quota-increase --region us-east-1 --service-code ec2 "
        "--quota-code L-3819A6DF --desired-value 20"
    )


def test_on_demand_has_a_quota_of_its_own(here: Amazon) -> None:
    finding = only(problems(quota.checks(here, config(nodes={"consumption": "on_demand"}))))
    assert finding.key == "quota Running On-Demand G and VT instances"


def test_the_largest_alternative_counts_and_a_successor_while_a_spot_machine_goes(cloud: Cloud, here: Amazon) -> None:
    cloud.quotas |= {"L-3819A6DF": 79, "L-DB2E81BA": 63}
    alternatives = {"alternatives": ["g4dn.2xlarge", "g4dn.4xlarge"]}
    finding = only(problems(quota.checks(here, config(nodes=alternatives))))
    assert finding.text == "79 of 79 vCPUs free in us-east-1, 80 are needed"
    on_demand = config(nodes={**alternatives, "consumption": "on_demand"})
    assert only(problems(quota.checks(here, on_demand))).text.endswith("64 are needed")
    cloud.quotas |= {"L-3819A6DF": 80, "L-DB2E81BA": 15}
    both = config(nodes={**alternatives, "fallback": "on_demand"})
    assert only(problems(quota.checks(here, both))).text == "15 of 15 vCPUs free in us-east-1, 16 are needed"


def start(instance_type: str, count: int, cluster: str, **options: Any) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "eks:cluster-name", "Value": cluster}]}]
    client("ec2").run_instances(
        ImageId="ami-12c6146b",
        InstanceType=instance_type,
        MinCount=count,
        MaxCount=count,
        TagSpecifications=tags,
        **options,
    )


def test_what_runs_counts_and_the_stacks_own_does_not(cloud: Cloud, here: Amazon) -> None:
    start("m5.xlarge", 6, "somebody")
    start("m6i.large", 3, NAME)
    start("m5.large", 8, "somebody", InstanceMarketOptions={"MarketType": "spot"})
    assert problems(quota.checks(here, config())) == []
    cloud.quotas["L-1216C47A"] = 29
    finding = only(problems(quota.checks(here, config())))
    assert finding.text == "5 of 29 vCPUs free in us-east-1, 6 are needed"
    assert finding.fix.endswith("--desired-value 30")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("g4dn.xlarge", "L-3819A6DF"),
        ("p5.48xlarge", "L-7212CCBC"),
        ("t3.large", "L-34B43A08"),
    ],
)
def test_which_quota_a_machine_falls_under(name: str, code: str) -> None:
    found = quota.quota_of(name, spot=True)
    assert found == code
    assert quota.quota_of(name, spot=False) not in (None, found)


def test_every_machine_of_the_catalog_has_a_quota() -> None:
    assert all(quota.quota_of(name, spot=spot) for name in machines() for spot in (True, False))
    named = {name for feature in features("eks").values() for name in feature.quotas}
    assert named == quota.TITLES.keys(), "what a feature takes from, and what the doctor counts"
