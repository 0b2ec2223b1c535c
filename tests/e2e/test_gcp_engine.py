"""What the real Pulumi engine makes, changes and deletes in the stacks on Google Cloud, and in which order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from infra.state import protection
from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import JOB, CloudStack, by_change, of_cloud, replaced

pytestmark = pytest.mark.engine
POOL, DISK, CLUSTER = (
    "gcp:container/nodePool:NodePool workers",
    "gcp:compute/disk:Disk data",
    "gcp:container/cluster:Cluster cluster",
)


@pytest.fixture(scope="module")
def a100_up(tmp_path_factory: pytest.TempPathFactory) -> CloudStack:
    """gcp-a100, created."""
    stack = cloud_stack.make("gcp-a100", tmp_path_factory.mktemp("a100"))
    stack.planned = stack.preview()
    stack.up()
    return stack


@pytest.fixture
def a100(a100_up: CloudStack) -> Iterator[CloudStack]:
    """Restore the configuration after the test."""
    yield from a100_up.restored()


def test_the_first_preview_shows_all_that_up_makes_and_a_second_up_changes_nothing(a100: CloudStack) -> None:
    """No declaration waits for a value of the cloud, so a pull request shows everything."""
    assert a100.planned == {"create": a100.made()}
    assert a100.preview() == {}


@pytest.mark.parametrize(
    ("change", "replaces", "updates"),
    [
        # The workers go on training.
        ({"nodes": {"max": 8}, "workers": {"count": 1}, "storage": {"sizeGib": 2000}}, set(), {POOL, DISK}),
        ({"nodes": {"machineType": "a2-highgpu-4g", "localSsds": 4}}, {POOL, *JOB}, set()),
        ({"nodes": {"consumption": "spot"}}, {POOL}, set()),
    ],
    ids=by_change,
)
def test_a_change_updates_and_replaces_no_more_than_it_must(
    a100: CloudStack, change: dict[str, dict[str, Any]], replaces: set[str], updates: set[str]
) -> None:
    a100.configure(**change)
    plan = a100.preview()
    assert replaced(plan) == replaces
    assert of_cloud(plan.get("update", set())) == updates
    assert of_cloud(plan.get("delete", set())) == set()
    if "workers" in change:
        assert "kubernetes:batch/v1:JobPatch training-size" in plan["update"]


def test_destroy_goes_in_order_and_leaves_nothing_that_costs(a100_up: CloudStack) -> None:
    """The cluster takes pools and objects with it; what it used goes after it."""
    before = len(a100_up.cloud.journal)
    a100_up.destroy()
    order = [name for operation, name in a100_up.cloud.journal[before:] if operation == "delete"]
    assert order.index(CLUSTER) < order.index(DISK)
    assert order.index(CLUSTER) < order.index("gcp:compute/network:Network network")
    one_by_one = [name for name in order if name.startswith("kubernetes:") or "NodePool" in name]
    assert one_by_one == [], "these go with their cluster, in one operation"
    assert a100_up.cloud.things == []
    assert a100_up.made() == set()


def test_a_retained_disk_stays_and_comes_back(tmp_path: Any) -> None:
    stack = cloud_stack.make("gcp-c3", tmp_path)
    stack.configure(storage={"retain": True})
    stack.up()
    wanted = {"storage": {"retain": True}}
    assert protection(json.loads(stack.state()), "gcp-c3", wanted) == []
    stack.destroy()
    (disk,) = stack.cloud.things
    assert disk.title == DISK
    stack.configure(storage={"retain": False, "disk": disk.outputs["name"]})
    stack.up()
    assert [volume for volume in stack.cloud.of_type(":PersistentVolume") if disk.id in str(volume.inputs)]
    (line,) = protection(json.loads(stack.state()), "gcp-c3", wanted)
    assert line.startswith("storage.retain: true in Pulumi.gcp-c3.yaml, but stack gcp-c3 was brought up with false")
    stack.destroy()
    assert stack.cloud.titles() == {DISK}


def test_a_destroy_of_what_is_protected_is_refused_before_anything_goes(tmp_path: Any) -> None:
    """If only the cloud refused, the pools would be gone from the state but not from the cloud: no `up` would work.

    The stack to prove with, with fallback pools and a grant on own buckets.
    """
    stack = cloud_stack.make("gcp-smoke", tmp_path)
    nodes = {"consumption": "spot", "fallback": "on_demand", "zones": ["us-central1-b", "us-central1-c"]}
    del stack.values["trainyard:cluster"]["ttlHours"]
    stack.configure(cluster={"deletionProtection": True}, nodes=nodes, dataset={"input": ["gs://my-texts/books"]})
    stack.planned = stack.preview()
    stack.up()
    assert stack.planned == {"create": stack.made()}
    assert {f"{POOL}-on-demand", POOL, "kubernetes:cloud.google.com/v1:ComputeClass workers"} <= stack.made()
    before = list(stack.cloud.journal)
    assert "cluster.deletionProtection: stack gcp-smoke was brought up with true" in stack.down_refused()
    assert stack.cloud.journal == before
    (line,) = stack.refused(cluster={"replace": True}, gke={"zone": "us-central1-b"})
    assert "replaces the cluster and the data, which cluster.deletionProtection protects" in line
    stack.configure(cluster={"deletionProtection": False})
    stack.up()
    urn = next(line for line in stack.pulumi("stack", "--show-urns").split() if line.endswith("Disk::data"))
    stack.pulumi("state", "protect", urn, "--yes")
    assert "its state protects gcp:compute/disk:Disk data" in stack.down_refused()
    stack.pulumi("state", "unprotect", urn, "--yes")
    stack.destroy()
    assert stack.cloud.things == []
