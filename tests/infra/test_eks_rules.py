"""Every rule about a cluster on AWS, with one configuration that breaks it and what is said then."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.config import ConfigError
from infra.eks.keys import EksConfig, versions
from infra.eks.machines import default_zones, machines, regions, system, workers
from infra.machine import allocatable
from infra.parse import parse
from tests.infra.recorded import changed

STACK = "aws-g4dn"


def problems(**sections: dict[str, Any] | None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(changed(STACK, **sections), STACK)
    return [*caught.value.lines]


def test_zones_are_the_first_of_the_region_with_such_machines_when_none_is_named() -> None:
    config = parse(changed(STACK, eks={"region": "us-west-2", "zones": []}), STACK)
    assert config.section(EksConfig).zones == ("usw2-az1", "usw2-az2", "usw2-az3"), "usw2-az4 has no g4dn"
    for region in regions():
        assert 1 <= len(default_zones(region, "g4dn.xlarge")) <= 4


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"eks": {"region": "us-west-2b"}}, "eks.region: 'us-west-2b' is not a region; give one such as us-east-2"),
        ({"eks": {"zones": ["us-east-2a"]}}, "eks.zones.0: 'us-east-2a' is not a zone id; give one such as use2-az1"),
        (
            {"eks": {"apiAllowedCidrs": ["198.51.100.7/24"]}},
            "eks.apiAllowedCidrs.0: '198.51.100.7/24' is no IPv4 range (198.51.100.7/24 has host bits set)",
        ),
        ({"eks": {"viewers": ["ci"]}}, "eks.viewers.0: 'ci' is not an IAM role or user; give its ARN"),
        ({"eks": {"version": "1.29"}}, "eks.version: '1.29' is not known; allowed: '1.35', '1.36'"),
        (
            {"nodes": {"machineType": "g5.8xlarge", "alternatives": [], "efa": True, "consumption": "flex_start"}},
            "nodes.consumption: 'flex_start' is not known; allowed: 'on_demand', 'spot'",
        ),
        ({"nodes": {"diskType": "pd-ssd"}}, "nodes.diskType: unknown key; allowed: machineType, "),
        ({"storage": {"kind": "nfs"}}, "storage.kind: 'nfs' is not known; allowed: 'efs'"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value.split(";")[0][:60],
)
def test_each_rule_says_what_is_wrong_and_what_is_allowed(
    sections: dict[str, dict[str, Any] | None], expected: str
) -> None:
    found = problems(**sections)
    assert [problem for problem in found if problem.startswith(expected)], found
    assert all("\n" not in problem for problem in found)


def test_a_smaller_network_is_allowed_and_an_ampere_trains_in_bf16() -> None:
    nodes = {"machineType": "g5.xlarge", "alternatives": ["g5.2xlarge"], "consumption": "on_demand"}
    config = parse(
        changed(STACK, eks={"vpcCidr": "192.168.16.0/20"}, nodes=nodes, training={"precision": "bf16"}), STACK
    )
    assert config.training.precision == "bf16"


def test_the_keys_of_a_cloud_are_refused_where_it_is_not() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(changed("gcp-c3", nodes={"efa": True, "alternatives": ["c3-highmem-22"]}), "gcp-c3")
    assert [problem.split(":")[0] for problem in caught.value.lines] == [
        "nodes.alternatives",
        "nodes.efa",
    ]


def test_every_version_has_its_autoscaler() -> None:
    images = {version: facts["autoscaler"] for version, facts in versions().items()}
    assert set(get_args(EksConfig.model_fields["version"].annotation)) == images.keys()
    assert all(f":v{version}." in image and "@sha256:" in image for version, image in images.items())


def test_the_machines_are_what_they_are_for() -> None:
    assert not set(workers()) & set(system())
    for name in workers():
        machine = machines()[name]
        assert ("bf16" in machine.precisions) == (machine.family != "g4dn")
        assert machine.efa == (machine.vcpus >= 32), "EFA begins at 8xlarge in all three families"
    # amazon-eks-ami's own figures for g4dn.xlarge: 29 pods, 574 MiB for the kubelet.
    assert allocatable(machines()["g4dn.xlarge"])[1] == pytest.approx(16 * 0.925 - 574 / 1024 - 100 / 1024, abs=0.01)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "eks": st.dictionaries(
                st.sampled_from(["region", "zones", "apiAllowedCidrs", "vpcCidr", "version", "admins", "systemNodes"]),
                st.one_of(st.none(), st.integers(), st.text(max_size=8), st.lists(st.text(max_size=8), max_size=3)),
                max_size=4,
            ),
            "nodes": st.dictionaries(
                st.sampled_from(["machineType", "alternatives", "max", "consumption", "efa", "localSsds", "diskType"]),
                st.one_of(st.none(), st.integers(), st.booleans(), st.sampled_from([*machines(), ""])),
                max_size=4,
            ),
        },
    )
)
def test_any_nonsense_is_one_line_a_problem_and_no_traceback(sections: dict[str, Any]) -> None:
    found: list[str] = ["nothing"]
    try:
        parse(changed(STACK, **sections), STACK)
    except ConfigError as error:
        found = [*error.lines]
    assert found
    assert all("\n" not in problem for problem in found)
