"""The tables of what features need, and the graphs of all stacks held to them."""

from __future__ import annotations

from typing import Any

import pytest

from infra.needs import Trace, shown

POOL = "gcp:container/nodePool:NodePool"


@pytest.mark.parametrize(
    ("where", "inputs", "matches"),
    [
        ({}, {}, True),
        ({"nodeConfig.spot": True}, {"nodeConfig": {"spot": True}}, True),
        ({"nodeConfig.spot": True}, {"nodeConfig": {"spot": False}}, False),
        ({"nodeConfig.spot": True}, {"nodeConfig": None}, False),
        ({"a.b": ["x", "y"]}, {"a": [{"b": "z"}, {"b": "y"}]}, True),
        ({"image": "*-docker.pkg.dev/*"}, {"image": "r-docker.pkg.dev/p/i"}, True),
        ({"image": "*"}, {"image": ""}, False),
        ({"image": "*"}, {"image": {"of": "something"}}, True),
        ({"image": "*", "other": "*"}, {"image": "x"}, False),
    ],
)
def test_a_feature_shows_in_the_inputs_of_a_resource(where: dict[str, Any], inputs: Any, matches: bool) -> None:
    assert Trace(type="gcp:container/*", where=where).matches(POOL, inputs) is matches
    assert not Trace(type="gcp:compute/*", where=where).matches(POOL, inputs)


def test_a_pool_with_image_streaming_needs_its_api_and_a_role_of_the_nodes() -> None:
    feature = shown("gke", POOL, {"nodeConfig": {"gcfsConfig": {"enabled": True}}})["image_streaming"]
    assert feature.apis == ("containerfilesystem.googleapis.com",)
    assert feature.roles == {"nodes": ("roles/serviceusage.serviceUsageConsumer",)}
