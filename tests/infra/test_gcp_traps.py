"""The traps of running a training on GKE, each by its name, on the recorded graph of both GCP stacks.

The numbers are those of the project's list of what users of comparable systems hit; the sentence says what happens to
whoever falls in.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from infra.stackfiles import ROOT, stack_file_values
from review.recording import Recorded, Recording, record, record_anywhere

STACKS = ["gcp-a100", "gcp-c3", "gcp-smoke"]
CANARY = "hf_canaryCanaryCANARYcanary"


@pytest.fixture(scope="module", params=STACKS)
def stack(request: pytest.FixtureRequest) -> Recording:
    return record_anywhere(request.param)


def changed(name: str, **changes: dict[str, Any]) -> Recording:
    """A stack with keys of sections changed."""
    values = stack_file_values(name)
    for section, change in changes.items():
        values[section] = {**values.get(section, {}), **change}
    return record(name, values)


def before(recording: Recording, item: Recorded) -> set[str]:
    """URNs of all that must exist before a resource."""
    by_urn = {entry.urn: entry for entry in recording.resources}
    found: set[str] = set()
    waiting = [item]
    while waiting:
        current = waiting.pop()
        for urn in (*current.dependencies, current.provider.rsplit("::", 1)[0]):
            if urn in by_urn and urn not in found:
                found.add(urn)
                waiting.append(by_urn[urn])
    return found


def cluster(recording: Recording) -> Recorded:
    return recording.one("Cluster", "cluster")


def pool(recording: Recording, name: str) -> Recorded:
    return recording.one("NodePool", name)


def objects(recording: Recording) -> list[Recorded]:
    """The Kubernetes objects."""
    return recording.all("kubernetes:")


def test_t1_destroy_deletes_no_object_one_by_one(stack: Recording) -> None:
    """Or it waits for, and fails on, objects of a cluster that is going away anyway."""
    assert objects(stack)
    for item in objects(stack):
        assert item.deleted_with == cluster(stack).urn, f"{item.kind} {item.name}"
    for name in ("system", "workers"):
        assert pool(stack, name).deleted_with == cluster(stack).urn


def test_t1_what_costs_is_never_deleted_with_something_else(stack: Recording) -> None:
    """Or it stays, and is still billed, after the cluster is gone."""
    for item in stack.all("gcp:"):
        if item.kind != "NodePool":
            assert item.deleted_with == "", f"{item.kind} {item.name} would not be deleted by itself"


def test_t2_objects_come_after_all_nodes_and_so_go_before_them(stack: Recording) -> None:
    """Or a namespace stays in Terminating, because nothing runs its finalizers any more."""
    for item in objects(stack):
        assert {pool(stack, "system").urn, pool(stack, "workers").urn} <= before(stack, item), item.name


def test_t4_nothing_in_the_cluster_makes_things_outside_of_it(stack: Recording) -> None:
    """Or firewall rules, forwarding rules and disks that nobody declared keep the network from being deleted."""
    assert cluster(stack).inputs["addonsConfig"]["httpLoadBalancing"]["disabled"] is True
    assert not [item for item in objects(stack) if item.kind in ("Ingress", "Gateway")]
    for item in objects(stack):
        if item.kind == "Service":
            assert item.inputs["spec"].get("type", "ClusterIP") == "ClusterIP"
        if item.kind == "PersistentVolumeClaim":
            assert item.inputs["spec"]["storageClassName"] == "", "a class would make a disk of its own"
            assert item.inputs["spec"]["volumeName"]
        if item.kind == "StatefulSet":
            assert "volumeClaimTemplates" not in item.inputs["spec"]


def test_t5_deletion_protection_is_said_and_not_the_providers_default(stack: Recording) -> None:
    """Or the first destroy fails."""
    assert cluster(stack).inputs["deletionProtection"] is False
    assert not cluster(stack).protect
    protected = cluster(changed("gcp-c3", cluster={"deletionProtection": True}))
    assert protected.inputs["deletionProtection"] is True
    assert protected.protect, "refused by the cloud alone, a destroy has dropped the pools from the state by then"


def test_t7_claims_are_bound_by_name_and_wait_for_their_volume(stack: Recording) -> None:
    """Or a claim is stuck on pv-protection, or binds somebody else's volume."""
    volumes = {item.inputs["metadata"]["name"]: item for item in objects(stack) if item.kind == "PersistentVolume"}
    claims = [item for item in objects(stack) if item.kind == "PersistentVolumeClaim"]
    assert claims
    for claim in claims:
        volume = volumes[claim.inputs["spec"]["volumeName"]]
        assert volume.urn in before(stack, claim)
        assert volume.inputs["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


def test_t8_the_cluster_is_known_at_preview(stack: Recording) -> None:
    """Or a preview in which the kubeconfig is unknown replaces every object."""
    provider = next(item for item in stack.resources if item.type == "pulumi:providers:kubernetes")
    identifier = provider.inputs["clusterIdentifier"]
    assert identifier == f"your-project/us-central1-a/{cluster(stack).inputs['name']}"


def test_t9_no_token_is_in_the_kubeconfig(stack: Recording) -> None:
    """Or it is in the state, and expired an hour later."""
    provider = next(item for item in stack.resources if item.type == "pulumi:providers:kubernetes")
    (user,) = json.loads(provider.inputs["kubeconfig"])["users"]
    assert set(user["user"]) == {"exec"}
    assert user["user"]["exec"]["command"] == "gke-gcloud-auth-plugin"


def test_t10_no_default_provider_and_so_no_stray_object(stack: Recording) -> None:
    """Or objects land in whatever cluster or project the environment points at."""
    for item in stack.resources:
        if item.custom and item.type.startswith(("gcp:", "kubernetes:")):
            assert item.provider, f"{item.kind} {item.name} has the default provider"
    for name in STACKS:
        text = (ROOT / f"Pulumi.{name}.yaml").read_text()
        assert "pulumi:disable-default-providers: [kubernetes, gcp, aws]" in text


def test_t11_what_the_autoscaler_changes_is_no_difference(stack: Recording) -> None:
    """Or the next `pulumi up` sets a running pool back to nothing."""
    for name in ("system", "workers"):
        assert "initialNodeCount" in pool(stack, name).ignore_changes
        assert "nodeCount" not in pool(stack, name).inputs


def test_t12_operations_do_not_collide_and_have_time(stack: Recording) -> None:
    """Or an upgrade starts during `pulumi up`, or a slow create is given up and left behind."""
    policy = cluster(stack).inputs["maintenancePolicy"]
    (exclusion,) = policy["maintenanceExclusions"]
    assert exclusion["exclusionOptions"]["scope"] == "NO_MINOR_OR_NODE_UPGRADES"
    for item in (cluster(stack), pool(stack, "system"), pool(stack, "workers")):
        assert item.timeouts["create"] in ("60m", "3600s"), item.timeouts
        assert item.timeouts["delete"] in ("60m", "3600s")


def test_t14_making_the_pool_needs_neither_capacity_nor_quota(stack: Recording) -> None:
    """Or `pulumi up` waits for accelerators that a zone does not have."""
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
    """Or GKE does not taint them, and every pod runs on the most expensive nodes."""
    workers = pool(stack, "workers")
    assert pool(stack, "system").urn in before(stack, workers)
    (taint,) = workers.inputs["nodeConfig"]["taints"]
    tolerations = stack.one("Job", "training").inputs["spec"]["template"]["spec"]["tolerations"]
    assert [item for item in tolerations if item["key"] == taint["key"] and item["effect"] == "NoSchedule"]
    for item in objects(stack):
        if item.kind in ("Deployment", "StatefulSet"):
            tolerated = item.inputs["spec"]["template"]["spec"].get("tolerations") or []
            assert taint["key"] not in [entry.get("key") for entry in tolerated], item.name


def test_t17_one_driver_and_never_two() -> None:
    """Or the one of GKE and the one of a DaemonSet fight for the node."""
    managed, ours = record_anywhere("gcp-a100"), changed("gcp-a100", nodes={"gpuDriver": "daemonset"})

    def version(recording: Recording) -> str:
        (accelerator,) = pool(recording, "workers").inputs["nodeConfig"]["guestAccelerators"]
        return accelerator["gpuDriverInstallationConfig"]["gpuDriverVersion"]

    assert version(managed) == "LATEST"
    assert not [item for item in managed.resources if item.kind == "DaemonSet"]
    assert version(ours) == "INSTALLATION_DISABLED"
    (daemon_set,) = [item for item in ours.resources if item.kind == "DaemonSet"]
    assert "cloud.google.com/gke-accelerator" in json.dumps(daemon_set.inputs["spec"]["template"]["spec"]["affinity"])


def test_t18_accelerators_are_asked_for_by_name_which_a_pool_of_none_can_answer() -> None:
    """Or the autoscaler sees no reason to add a node to an empty pool (DRA)."""
    pod = record_anywhere("gcp-a100").one("Job", "training").inputs["spec"]["template"]["spec"]
    assert "resourceClaims" not in pod
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_t19_c3_has_a_disk_that_it_takes_and_a_request_that_fits() -> None:
    """Or the pool is refused; or the pod is pending for ever, because hyperthreads off halve the CPUs."""
    threads = changed("gcp-c3", nodes={"threadsPerCore": 1})
    for recording, most in ((record_anywhere("gcp-c3"), 8), (threads, 4)):
        assert pool(recording, "workers").inputs["nodeConfig"]["diskType"] != "pd-standard"
        pod = recording.one("Job", "training").inputs["spec"]["template"]["spec"]["containers"][0]
        request = pod["resources"]["requests"]["cpu"]
        cpus = int(request.removesuffix("m")) / 1000 if request.endswith("m") else float(request)
        assert 0 < cpus < most


@pytest.mark.parametrize("kind", ["nfs", "filestore"])
def test_t20_the_storages_address_is_wired_and_never_a_name(kind: str) -> None:
    """Or somebody edits an address by hand; or a node cannot resolve a name that only pods can."""
    size = {"nfs": 250, "filestore": 1024}[kind]
    recording = changed("gcp-c3", storage={"kind": kind, "sizeGib": size, "diskType": "pd-ssd"})
    volumes = [item for item in objects(recording) if item.kind == "PersistentVolume"]
    (mounted,) = [item for item in volumes if "nfs" in item.inputs["spec"]]
    server = mounted.inputs["spec"]["nfs"]["server"]
    assert all(part.isdigit() for part in server.split(".")), server
    source = recording.one("Instance") if kind == "filestore" else recording.one("Service", "nfs-server")
    assert source.urn in before(recording, mounted)
    assert mounted.delete_before_replace
    assert recording.outputs["storageAddress"].startswith(server)


def test_t22_a_training_is_neither_awaited_nor_forgotten(stack: Recording) -> None:
    """Or `pulumi up` hangs until the end of the training, or begins it anew while it runs, or a refresh does."""
    job = stack.one("Job", "training")
    annotations = job.inputs["metadata"]["annotations"]
    assert annotations["pulumi.com/skipAwait"] == "true"
    assert "pulumi.com/replaceUnready" not in annotations
    assert "ttlSecondsAfterFinished" not in job.inputs["spec"]
    assert job.delete_before_replace


def test_t22_the_jobs_name_changes_with_the_training_and_only_then() -> None:
    """Or a Job that has run is changed in place, which Kubernetes refuses."""

    def name(**changes: dict[str, Any]) -> str:
        return changed("gcp-c3", **changes).one("Job", "training").inputs["metadata"]["name"]

    assert name() == name(nodes={"max": 5}) == name(workers={"count": 2})
    assert len({name(), name(training={"steps": 600}), name(training={"precision": "fp32"})}) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": {"consumption": "spot"}},
        {"nodes": {"threadsPerCore": 1}},
        {"nodes": {"compactPlacement": True}},
        {"workers": {"memoryGib": 20}},
        {"workers": {"allocator": "glibc"}},
        {"job": {"maxHours": 1}},
        {"dataset": {"name": "other"}},
        {"secrets": {"huggingFaceToken": CANARY}},
        {"secrets": {"wandbApiKey": CANARY}},
        {"rendezvous": {"image": "quay.io/coreos/etcd:v3.6.6"}},
    ],
    ids=str,
)
def test_t22_pods_that_change_make_a_job_of_another_name(change: dict[str, dict[str, Any]]) -> None:
    """Or the new Job meets the old one, which is still going away under the same name."""
    before_it, after_it = record_anywhere("gcp-c3"), changed("gcp-c3", **change)
    old, new = (recording.one("Job", "training").inputs for recording in (before_it, after_it))
    if old["spec"]["template"] != new["spec"]["template"]:
        assert old["metadata"]["name"] != new["metadata"]["name"]


def test_t23_a_preview_builds_nothing_and_what_runs_is_named_by_digest(stack: Recording) -> None:
    """Or every preview needs a Docker engine, and every `pulumi up` shows a difference."""
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


def test_the_images_are_built_beside_the_cluster(stack: Recording) -> None:
    for image in (item for item in stack.resources if item.type == "docker-build:index:Image"):
        assert cluster(stack).urn not in before(stack, image)


def test_nothing_accelerated_is_there_at_rest(stack: Recording) -> None:
    for item in stack.all("gcp:container/nodePool:NodePool"):
        special = item.inputs["nodeConfig"].get("guestAccelerators") or item.name == "workers"
        assert not special or item.inputs["autoscaling"]["totalMinNodeCount"] == 0
    # The temporary default pool of the cluster too is a small one.
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


def test_all_that_is_billed_can_be_found_by_its_labels(stack: Recording) -> None:
    provider = next(item for item in stack.resources if item.type == "pulumi:providers:gcp")
    labels = json.loads(provider.inputs["defaultLabels"])
    assert labels["app"] == "trainyard"
    assert labels["stack"] in STACKS


@pytest.mark.parametrize("name", STACKS)
def test_a_secret_is_a_secret_wherever_it_goes(name: str) -> None:
    """Whatever the program passes on in plain text would be in the state and on the screen."""
    recording = changed(name, secrets={"huggingFaceToken": CANARY, "wandbApiKey": CANARY})
    assert CANARY not in json.dumps(recording.outputs)
    for item in recording.resources:
        assert CANARY not in json.dumps(_without_secrets(item.inputs)), f"{item.kind} {item.name} has it in plain text"
    held = [item for item in recording.resources if CANARY in json.dumps(item.inputs)]
    assert {item.kind for item in held} == {"Secret"}


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("4dabf18193072939515e22adb298388d") == "1b47061264138c4ac30d75fd1eb44270":
            return "[secret]"
        return {key: _without_secrets(item) for key, item in value.items()}
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value
