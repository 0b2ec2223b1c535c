"""What a stack on AWS costs: figures worked out by hand, and on the bill exactly what the program declares."""

from __future__ import annotations

from typing import Any

import pytest

from infra.config import StackConfig
from infra.cost import Estimate
from infra.eks import cost, machines
from infra.parse import parse
from infra.stackfiles import stack_file_values
from tests.infra import billed
from tests.infra.billed import line
from tests.infra.recorded import recorded

STACK = "aws-g4dn"


def config(**changes: dict[str, Any]) -> StackConfig:
    values: dict[str, Any] = {
        "cluster": {"kind": "eks"},
        "eks": {"region": "us-west-2", "apiAllowedCidrs": ["203.0.113.7/32"]},
        "nodes": {"machineType": "g4dn.xlarge", "max": 4, "consumption": "spot"},
        "storage": {"kind": "efs", "sizeGib": 100},
        "training": {"precision": "fp16"},
    }
    return parse({name: values[name] | changes.get(name, {}) for name in values}, "test")


def bill(**changes: dict[str, Any]) -> Estimate:
    return billed.estimate(config(**changes))


def test_four_spot_t4s_by_hand() -> None:
    """us-west-2: g4dn.xlarge 0.526 an hour, 0.2443 as Spot; m6i.large 0.096; gp3 0.08 and EFS 0.30 a GB-month."""
    estimate = bill()
    assert line(estimate, "g4dn.xlarge").at_full == pytest.approx(4 * 0.2443)
    assert line(estimate, "g4dn.xlarge").at_rest == 0
    assert line(estimate, "m6i.large").at_full == pytest.approx(3 * 0.096)
    assert line(estimate, "EFS").at_rest == pytest.approx(100 * 0.30 / 730)
    assert line(estimate, "NAT").at_rest == pytest.approx(0.045 + 0.005)
    # 0.10 control plane + 0.096 node + 0.0055 its disk + 0.05 NAT + 0.0411 EFS + 0.0014 key + 0.0014 images
    assert estimate.at_rest == pytest.approx(0.2953, abs=1e-4)
    # 0.10 + 0.288 + 0.0164 + 0.9772 + 0.0877 boot disks + 0.05 + 0.0411 + 0.0014 + 0.0014
    assert estimate.at_full == pytest.approx(1.5632, abs=1e-4)


def test_the_small_stack_has_no_gateway_and_no_key() -> None:
    estimate = billed.estimate(parse(stack_file_values("aws-smoke"), "aws-smoke"))
    assert not [entry.what for entry in estimate.lines if "NAT" in entry.what or "KMS" in entry.what]


def test_on_demand_elsewhere() -> None:
    """eu-west-1: g4dn.xlarge 0.587; g4dn.metal 8.724 in AWS's list, 8.731 by the family's scale."""
    nodes = {"consumption": "on_demand"}
    assert line(bill(eks={"region": "eu-west-1"}, nodes=nodes), "g4dn.xlarge").at_full == pytest.approx(4 * 0.587)
    assert cost.machine("eu-west-1", "g4dn.metal") == pytest.approx(8.724, rel=0.002)


def test_public_nodes_pay_for_addresses_instead_of_a_gateway() -> None:
    estimate = bill(eks={"publicNodes": True})
    assert not [entry for entry in estimate.lines if "NAT" in entry.what]
    assert line(estimate, "public address").at_rest == pytest.approx(0.005)
    assert line(estimate, "public address").at_full == pytest.approx(7 * 0.005)


def test_spot_is_cheaper_everywhere_and_every_default_region_has_a_price() -> None:
    for region, found in cost.REGIONS.items():
        on_demand, spot = found["g4dn"]
        assert 0 < spot < on_demand, region
    assert set(cost.REGIONS) <= set(machines.regions())
    assert set(cost.US_EAST_1) == set(machines.machines())


@pytest.mark.parametrize(
    "changes",
    [
        {"eks": {"region": "sa-east-1"}},
        {"nodes": {"machineType": "g5.xlarge"}},
        {"nodes": {"machineType": "g6.xlarge", "consumption": "on_demand"}, "eks": {"region": "us-west-1"}},
    ],
)
def test_a_price_that_nobody_knows_is_not_counted_as_nothing(changes: dict[str, Any]) -> None:
    estimate = bill(**changes)
    assert estimate.at_full is None
    assert estimate.unknown


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "Spot prices follow demand"),
        ({"nodes": {"fallback": "on_demand"}}, "all workers come on demand for 2.10 USD an hour instead."),
        ({}, "CloudWatch bills 0.50 USD for each GB of the control plane's logs (api, authenticator)."),
        ({"nodes": {"alternatives": ["g4dn.2xlarge"]}}, "the alternatives cost more"),
        ({"storage": {"throughput": "elastic"}}, "each GB read (0.03) and written (0.06)"),
        ({"storage": {"retain": True}}, "is still billed"),
    ],
)
def test_what_the_figures_do_not_say_is_said(changes: dict[str, Any], said: str) -> None:
    assert any(said in note for note in bill(**changes).notes)


def test_every_group_is_on_the_bill() -> None:
    stack = parse(stack_file_values(STACK), STACK)
    estimate = billed.estimate(stack)
    assert stack.nodes
    declared = recorded(STACK).all("aws:")
    # A gateway endpoint is free, an interface endpoint is not.
    assert {item.inputs["vpcEndpointType"] for item in declared if item.kind == "VpcEndpoint"} == {"Gateway"}
    groups = {item.name: item.inputs for item in declared if item.kind == "NodeGroup"}
    system = groups.pop("system")
    assert line(estimate, f"{system['instanceTypes'][0]}, system").what.startswith(_count(system))
    # One group a zone, of which the training fills one; the autoscaler holds all to nodes.max (test_eks_nodes.py).
    for workers in groups.values():
        assert workers["instanceTypes"][0] == stack.nodes.machine_type
        assert workers["scalingConfig"]["minSize"] == 0
    assert line(estimate, "workers, spot").what.startswith(f"0 to {stack.nodes.max} x ")
    disks = {
        item.name: item.inputs["blockDeviceMappings"][0]["ebs"]["volumeSize"]
        for item in declared
        if item.kind == "LaunchTemplate"
    }
    assert line(estimate, "system boot disks").what.endswith(f"{disks['system']:g} GiB gp3")
    assert line(estimate, "worker boot disks").what.endswith(f"{disks['workers']:g} GiB gp3")


def _count(group: dict[str, Any]) -> str:
    scaling = group["scalingConfig"]
    return f"{scaling['minSize']:g} to {scaling['maxSize']:g} x "
