"""The tables of what features need, and the graphs of all stacks checked against them."""

from __future__ import annotations

import pytest

from infra.features import features_of
from infra.gke.services import apis, used
from infra.parse import parse
from review.recording import Recorded, Recording
from tests.infra.recorded import VARIANTS, changed, variant, variants_of

POOL, CLUSTER, SERVICE = (
    "gcp:container/nodePool:NodePool",
    "gcp:container/cluster:Cluster",
    "gcp:projects/service:Service",
)


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


@pytest.mark.parametrize("name", variants_of("gcp"))
def test_every_resource_comes_after_all_that_it_needs(name: str) -> None:
    file, sections = VARIANTS[name]
    stack, config = variant(name), parse(changed(file, **sections), file)
    assert not_met(stack) == []
    # The program asks for exactly what its resources show.
    seen = {feature for item in stack.resources for feature in features_of("gke", item.type, item.inputs)}
    assert seen == set(used(config))
    enabled = [item.inputs["service"] for item in stack.all("gcp:projects/service:Service")]
    assert sorted(enabled) == apis(config)
