"""The tables of what features need, and the graphs of all stacks checked against them."""

from __future__ import annotations

from typing import Any

import pytest

from infra.features import Trace, features, features_of
from infra.gke.services import apis, used
from infra.stackfiles import stack_file_values, stacks
from review.recording import Recorded, Recording, record
from tests.infra.recorded import recorded, sections_to_vary, variants

POOL, CLUSTER, SERVICE = (
    "gcp:container/nodePool:NodePool",
    "gcp:container/cluster:Cluster",
    "gcp:projects/service:Service",
)
#: Sections that decide what is created on Google Cloud.
GKE_SECTIONS = ("gke", "nodes", "storage", "image")
#: Keys that another key needs beside it.
TOGETHER: dict[tuple[str, str, Any], dict[str, dict[str, Any]]] = {
    ("nodes", "consumption", "reservation"): {"nodes": {"reservation": "mine"}},
    ("nodes", "consumption", "queued"): {"check": {"enabled": False}},
    ("nodes", "fallback", "flex_start"): {"nodes": {"consumption": "spot"}},
    ("nodes", "fallback", "on_demand"): {"nodes": {"consumption": "spot"}},
    ("storage", "kind", "filestore"): {"storage": {"sizeGib": 2560, "retain": False}},
    ("image", "builder", "prebuilt"): {
        "image": {"ref": "ghcr.io/you/trainer@sha256:" + "a" * 64},
        "storage": {"serverImage": "ghcr.io/you/nfs@sha256:" + "b" * 64},
    },
}
#: Values outside any enumeration that change what is needed.
TEXTS = [
    {"dataset": {"input": ["gs://mine/folder", "gs://other"]}},
    {"nodes": {"maxRunHours": 400}},
    {"nodes": {"zones": ["us-central1-b", "us-central1-c"]}},
    {"storage": {"disk": "mine"}},
]
GKE = [name for name in stacks() if "gke" in stack_file_values(name)]


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
    feature = features_of("gke", POOL, {"nodeConfig": {"gcfsConfig": {"enabled": True}}})["image_streaming"]
    assert feature.apis == ("containerfilesystem.googleapis.com",)
    assert feature.roles == {"nodes": ("roles/serviceusage.serviceUsageConsumer",)}


def not_met(stack: Recording) -> list[str]:
    """Needs of resources on Google Cloud that do not come before them: the cloud refuses them, or no node comes."""
    problems = []
    for item in (each for each in stack.resources if each.custom):
        urns = stack.earlier(item)
        before = [other for other in stack.resources if other.urn in urns]
        enabled = {other.inputs.get("service") for other in before if other.type == SERVICE}
        for name, feature in features_of("gke", item.type, item.inputs).items():
            if item.type == SERVICE and item.inputs["service"] in feature.apis:
                continue
            problems += [f"{item.name}: {name} needs {api}" for api in feature.apis if api not in enabled]
            for role in feature.roles.get("nodes", ()):
                for account in accounts(item, before):
                    granted = any(
                        other.inputs.get("role") == role and other.inputs.get("member") == f"serviceAccount:{account}"
                        for other in before
                    )
                    problems += [] if granted else [f"{item.name}: {account} lacks {role}"]
    return problems


def accounts(item: Recorded, before: list[Recorded]) -> set[str]:
    """Accounts of the nodes that a resource makes, or that its pods run on."""
    pools = [item] if item.type in (POOL, CLUSTER) else [other for other in before if other.type == POOL]
    return {(pool.inputs.get("nodeConfig") or {}).get("serviceAccount") or "the default one" for pool in pools}


@pytest.mark.parametrize("name", GKE)
def test_every_resource_of_every_variant_comes_after_all_that_it_needs(name: str) -> None:
    tried, sections = 0, sections_to_vary(name, GKE_SECTIONS)
    for title, values, config in variants(name, "gke", sections, TEXTS, TOGETHER):
        stack = record(name, values)
        tried += 1
        assert not_met(stack) == [], title
        # The program asks for exactly what its resources show.
        seen = {feature for item in stack.resources for feature in features_of("gke", item.type, item.inputs)}
        assert seen == set(used(config)), title
        enabled = [item.inputs["service"] for item in stack.all("gcp:projects/service:Service")]
        assert sorted(enabled) == apis(config), title
    assert tried > (12 if sections else 0)


@pytest.mark.parametrize("lost", ["containerfilesystem", "nodes-serviceUsageConsumer", "images-reader"])
def test_a_graph_without_an_api_or_a_role_is_found(lost: str) -> None:
    """Both stacks once lacked these, and no test saw it."""
    whole = recorded("gcp-c3")
    without = Recording([item for item in whole.resources if item.name != lost], whole.outputs)
    problems = not_met(without)
    assert problems
    needed = [*features("gke")["image_streaming"].apis, "roles/serviceusage", "roles/artifactregistry.reader"]
    assert all(any(text in problem for text in needed) for problem in problems)
