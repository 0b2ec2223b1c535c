"""The traps of GKE; test_traps.py has those of both clouds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from review.recording import Recorded, Recording, record
from tests.infra.recorded import changed, recorded

STACKS = ["gcp-a100", "gcp-c3", "gcp-smoke"]
CANARY = "hf_canaryCanaryCANARYcanary"


@pytest.fixture(scope="module", params=STACKS)
def stack(request: pytest.FixtureRequest) -> Recording:
    return recorded(request.param)


def with_changes(name: str, **changes: dict[str, Any]) -> Recording:
    return record(name, changed(name, **changes))


def cluster(recording: Recording) -> Recorded:
    return recording.one("Cluster", "cluster")


def pool(recording: Recording, name: str) -> Recorded:
    return recording.one("NodePool", name)


def objects(recording: Recording) -> list[Recorded]:
    """The Kubernetes objects."""
    return recording.all("kubernetes:")


def test_t1_what_costs_is_never_deleted_with_something_else(stack: Recording) -> None:
    """Otherwise it stays, and is still billed, after the cluster is gone."""
    for item in stack.all("gcp:"):
        kept = cluster(stack).urn if item.kind == "NodePool" else ""
        assert item.deleted_with == kept, f"{item.kind} {item.name} would not be deleted by itself"


def test_t11_what_the_autoscaler_changes_is_no_difference(stack: Recording) -> None:
    """Otherwise the next `pulumi up` sets a running pool back to nothing."""
    for name in ("system", "workers"):
        assert "initialNodeCount" in pool(stack, name).ignore_changes
        assert "nodeCount" not in pool(stack, name).inputs


def test_t12_operations_do_not_collide_and_have_time(stack: Recording) -> None:
    """Otherwise an upgrade starts during `pulumi up`, or a slow create is given up and left behind."""
    policy = cluster(stack).inputs["maintenancePolicy"]
    (exclusion,) = policy["maintenanceExclusions"]
    assert exclusion["exclusionOptions"]["scope"] == "NO_MINOR_OR_NODE_UPGRADES"
    for item in (cluster(stack), pool(stack, "system"), pool(stack, "workers")):
        assert item.timeouts["create"] in ("60m", "3600s"), item.timeouts
        assert item.timeouts["delete"] in ("60m", "3600s")


def test_t14_making_the_pool_needs_neither_capacity_nor_quota(stack: Recording) -> None:
    """Otherwise `pulumi up` waits for accelerators that a zone does not have."""
    workers = pool(stack, "workers").inputs
    assert workers["initialNodeCount"] == 0
    assert workers["autoscaling"]["totalMinNodeCount"] == 0
    assert workers["autoscaling"]["locationPolicy"] == "ANY"
    assert "minNodeCount" not in workers["autoscaling"], "limits are of the pool, not of each zone"
    for name in ("system", "workers"):
        assert pool(stack, name).inputs["nodeLocations"] == ["us-central1-a"]
    system = pool(stack, "system").inputs
    assert system["nodeConfig"]["machineType"].startswith("e2-")
    assert not system["nodeConfig"].get("spot")


def test_t16_accelerators_come_after_the_system_pool_with_an_explicit_taint(stack: Recording) -> None:
    """Otherwise GKE does not taint them, and every pod runs on the most expensive nodes."""
    workers = pool(stack, "workers")
    assert pool(stack, "system").urn in stack.earlier(workers)
    (taint,) = workers.inputs["nodeConfig"]["taints"]
    tolerations = stack.one("Job", "training").inputs["spec"]["template"]["spec"]["tolerations"]
    assert [item for item in tolerations if item["key"] == taint["key"] and item["effect"] == "NoSchedule"]
    for item in objects(stack):
        if item.kind in ("Deployment", "StatefulSet"):
            tolerated = item.inputs["spec"]["template"]["spec"].get("tolerations") or []
            assert taint["key"] not in [entry.get("key") for entry in tolerated], item.name


def test_t19_c3_has_a_disk_that_it_takes_and_a_request_that_fits() -> None:
    """Otherwise the pool is refused; or the pod is pending for ever, because hyperthreads off halve the CPUs."""
    threads = with_changes("gcp-c3", nodes={"threadsPerCore": 1})
    for recording, most in ((recorded("gcp-c3"), 8), (threads, 4)):
        assert pool(recording, "workers").inputs["nodeConfig"]["diskType"] != "pd-standard"
        pod = recording.one("Job", "training").inputs["spec"]["template"]["spec"]["containers"][0]
        request = pod["resources"]["requests"]["cpu"]
        cpus = int(request.removesuffix("m")) / 1000 if request.endswith("m") else float(request)
        assert 0 < cpus < most


@pytest.mark.parametrize("kind", ["nfs", "filestore"])
def test_t20_the_storages_address_is_wired_and_never_a_name(kind: str) -> None:
    """Otherwise somebody edits an address by hand; or a node cannot resolve a name that only pods can."""
    size = {"nfs": 250, "filestore": 1024}[kind]
    recording = with_changes("gcp-c3", storage={"kind": kind, "sizeGib": size})
    volumes = [item for item in objects(recording) if item.kind == "PersistentVolume"]
    (mounted,) = [item for item in volumes if "nfs" in item.inputs["spec"]]
    server = mounted.inputs["spec"]["nfs"]["server"]
    assert all(part.isdigit() for part in server.split(".")), server
    source = recording.one("Instance") if kind == "filestore" else recording.one("Service", "nfs-server")
    assert source.urn in recording.earlier(mounted)
    assert mounted.delete_before_replace
    assert recording.outputs["storageAddress"].startswith(server)


def test_t22_the_jobs_name_changes_with_the_training_and_only_then() -> None:
    """Otherwise a Job that has run is changed in place, which Kubernetes refuses."""

    def name(**changes: dict[str, Any]) -> str:
        return with_changes("gcp-c3", **changes).one("Job", "training").inputs["metadata"]["name"]

    assert name() == name(nodes={"max": 5}) == name(workers={"count": 2}) == name(nodes={"compactPlacement": True})
    assert name() == name(nodes={"consumption": "spot"}), "its pods get the same time to save on both"
    assert name() == name(rendezvous={"image": "quay.io/coreos/etcd:v3.6.6"})
    assert len({name(), name(training={"steps": 600}), name(training={"precision": "fp32"})}) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"workers": {"memoryGib": 20}},
        {"workers": {"allocator": "glibc"}},
        {"job": {"maxHours": 1}},
        {"dataset": {"name": "other"}},
        {"secrets": {"wandbApiKey": CANARY}},
    ],
    ids=str,
)
def test_t22_a_job_that_changes_gets_another_name(change: dict[str, dict[str, Any]]) -> None:
    """Otherwise the new Job meets the old one, which is still going away under the same name."""
    logs = {"training": {"metrics": {"wandbProject": "a"}}, "workers": {"environment": {"WANDB_MODE": "offline"}}}
    first = logs if "secrets" in change else {}
    before, after = with_changes("gcp-c3", **first), with_changes("gcp-c3", **first, **change)
    old, new = (recording.one("Job", "training").inputs for recording in (before, after))
    assert old["spec"] != new["spec"]
    assert old["metadata"]["name"] != new["metadata"]["name"]


@pytest.mark.parametrize(("token", "users"), [("huggingFaceToken", ["dataset"]), ("wandbApiKey", [])])
def test_t22_a_token_changes_no_job_that_does_not_use_it(token: str, users: list[str]) -> None:
    """Otherwise a training ends for a token of another pod: trainers are offline, and these log to no service."""
    before, after = recorded("gcp-c3"), with_changes("gcp-c3", secrets={token: CANARY})
    for name in ("dataset", "training"):
        old, new = (recording.one("Job", name).inputs for recording in (before, after))
        assert (old["spec"] != new["spec"]) == (name in users)
        assert old["metadata"]["name"] == new["metadata"]["name"], (
            "the dataset's is deleted before its successor is made"
        )


def test_t23_a_preview_builds_nothing_and_what_runs_is_named_by_digest(stack: Recording) -> None:
    """Otherwise every preview needs a Docker engine, and every `pulumi up` shows a difference."""
    for image in (item for item in stack.resources if item.type == "docker-build:index:Image"):
        assert image.inputs["buildOnPreview"] is False
        assert image.inputs["platforms"] == ["linux/amd64"]
        assert ",mode=max," in image.inputs["cacheTo"][0]["raw"]
        assert "password" not in json.dumps(image.inputs.get("registries") or [])
    for item in objects(stack):
        template = item.inputs.get("spec", {}).get("template", {}).get("spec", {})
        for container in template.get("containers") or []:
            if "your-project" in container["image"]:
                assert "@sha256:" in container["image"], item.name


def test_nothing_accelerated_is_there_at_rest(stack: Recording) -> None:
    for item in stack.all("gcp:container/nodePool:NodePool"):
        special = item.inputs["nodeConfig"].get("guestAccelerators") or item.name == "workers"
        assert not special or item.inputs["autoscaling"]["totalMinNodeCount"] == 0
    # The cluster's temporary default pool has no accelerators either.
    assert "guestAccelerators" not in cluster(stack).inputs["nodeConfig"]
    asking = [
        item.name
        for item in objects(stack)
        if "nvidia.com/gpu" in json.dumps(item.inputs) and item.kind not in ("Job", "DaemonSet")
    ]
    assert asking == [], "a Deployment that asks for an accelerator keeps its node for ever"


def test_a_forgotten_run_ends(stack: Recording) -> None:
    assert stack.one("Job", "training").inputs["spec"]["activeDeadlineSeconds"] > 0
    assert pool(stack, "workers").inputs["nodeConfig"]["maxRunDuration"].endswith("s")
