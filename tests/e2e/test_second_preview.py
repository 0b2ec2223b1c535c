"""After `up` and a refresh a preview shows nothing, whatever the clouds write into their resources themselves.

The stand-in clouds change what the real ones do (infra/{gke,eks}/sets.yaml); the real engine compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import CloudStack
from tests.standin import own
from tests.standin.aws.account import Account, aws

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
Sections = dict[str, dict[str, Any]]
ON_GCP: dict[str, tuple[str, Sections]] = {
    # A pool for each; nodes of flex-start and of a queue live a limited time.
    "spot, flex-start and on demand": ("gcp-a100", {"nodes": {"consumption": "spot", "fallback": "on_demand"}}),
    "queued, with a driver of ours": (
        "gcp-a100",
        {"nodes": {"consumption": "queued", "gpuDriver": "daemonset"}, "check": {"enabled": False}},
    ),
    "compact on CPUs, with Filestore": (
        "gcp-c3",
        {
            "nodes": {"compactPlacement": True, "threadsPerCore": 1, "maxRunHours": 24},
            "gke": {"noUpgradesSince": None},
            "storage": {"kind": "filestore", "sizeGib": 1024},
        },
    ),
}
ON_AWS: dict[str, Sections] = {
    "spot with a fallback and an own bucket": {
        "nodes": {"consumption": "spot", "fallback": "on_demand"},
        "dataset": {"input": ["s3://my-texts/books"]},
    },
    "adapters on public nodes": {
        "nodes": {"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True, "compactPlacement": True},
        "eks": {
            "publicNodes": True,
            "irsa": True,
            "nodeRelease": "1.36.0-20261101",
            "gpuMetrics": True,
            "efaPlugin": f"mine/plugin@sha256:{'a' * 64}",
        },
    },
}


def assert_settled(stack: CloudStack) -> None:
    """After a refresh a preview changes nothing, though the cloud has set values of its own.

    The refresh writes them into the state; without it, the stand-in's comparison sees the same values.
    """
    changed = [
        (thing.title, path)
        for thing in stack.cloud.things().values()
        for path, value, _ in own.set_in(thing.type, thing.inputs)
        if own.at(thing.inputs, path) not in (None, value)
    ]
    assert changed, "the cloud changes nothing that the program declares"
    stack.pulumi("refresh", "--yes", "--skip-preview")
    assert stack.preview() == {}


@pytest.mark.parametrize("variant", ON_GCP)
def test_on_google_cloud(tmp_path_factory: pytest.TempPathFactory, variant: str) -> None:
    name, changes = ON_GCP[variant]
    stack = cloud_stack.make(name, tmp_path_factory.mktemp("settled"))
    stack.configure(**changes)
    stack.up()
    assert_settled(stack)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with aws() as address:
        yield address


@pytest.mark.parametrize("variant", ON_AWS)
def test_on_aws(endpoint: str, tmp_path_factory: pytest.TempPathFactory, variant: str) -> None:
    number = f"5100000000{list(ON_AWS).index(variant):02}"
    stack = cloud_stack.make("aws-g4dn", tmp_path_factory.mktemp("settled"), Account(endpoint, number, "us-east-2"))
    stack.configure(**ON_AWS[variant])
    stack.up()
    assert_settled(stack)
