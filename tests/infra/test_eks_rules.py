"""Every rule about a cluster on AWS, with one configuration that breaks it and what is said then."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from infra.config import ConfigError
from infra.eks.keys import EksConfig, versions
from infra.eks.machines import default_zones, regions
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


def test_every_version_has_its_autoscaler() -> None:
    images = {version: facts["autoscaler"] for version, facts in versions().items()}
    assert set(get_args(EksConfig.model_fields["version"].annotation)) == images.keys()
    assert all(f":v{version}." in image and "@sha256:" in image for version, image in images.items())
