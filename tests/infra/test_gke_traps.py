"""What users of GKE, Pulumi and Kubernetes have been caught by, each shown to be out of the way.

By number; those that are missing are AWS's (T3, T15, T21).
"""

from __future__ import annotations

import json

import pytest

from infra.recording import Recording, record
from tests.infra.recorded import changed, earlier, recorded

STACKS = ["gcp-a100", "gcp-c3"]


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> Recording:
    return recorded(request.param)


def test_t1_objects_go_with_their_cluster_instead_of_one_by_one(stack: Recording) -> None:
    cluster = stack.one("Cluster")
    for item in stack.all("kubernetes:"):
        assert item.deleted_with == cluster.urn, f"{item.kind} {item.name} waits for an API server that is going away"
    for item in stack.resources:
        if item.kind == "NodePool":
            assert item.deleted_with == cluster.urn


def test_t1_no_object_owns_what_a_cluster_leaves_behind(stack: Recording) -> None:
    """A dynamic volume's disk or a load balancer's forwarding rule would survive a cluster that takes its objects
    along."""
    for item in stack.all("kubernetes:core/v1:Service"):
        assert item.inputs["spec"].get("type", "ClusterIP") == "ClusterIP"
    for item in stack.all("kubernetes:core/v1:PersistentVolumeClaim"):
        assert item.inputs["spec"]["storageClassName"] == "", f"{item.name} would make a disk that nobody owns"
        assert item.inputs["spec"]["volumeName"]
    assert not [item for item in stack.all("kubernetes:") if item.kind in ("Ingress", "StorageClass")]


def test_t2_objects_come_after_the_nodes_and_go_before_them(stack: Recording) -> None:
    pools = {item.urn for item in stack.resources if item.kind == "NodePool"}
    for item in stack.all("kubernetes:"):
        assert pools <= earlier(stack, item)


def test_t4_nothing_that_blocks_the_network_is_ever_made(stack: Recording) -> None:
    assert stack.one("Cluster").inputs["addonsConfig"]["httpLoadBalancing"] == {"disabled": True}
    network = stack.one("Network")
    assert network.urn in earlier(stack, stack.one("Cluster"))
    for kind in ("Network", "Subnetwork", "Router", "RouterNat"):
        assert stack.one(kind).timeouts["delete"] == "30m"


def test_t5_deletion_protection_is_said_either_way() -> None:
    assert recorded("gcp-a100").one("Cluster").inputs["deletionProtection"] is False
    kept = record("gcp-a100", changed("gcp-a100", cluster={"deletionProtection": True}))
    assert kept.one("Cluster").inputs["deletionProtection"] is True


def test_t6_what_nodes_need_to_end_well_outlives_them(stack: Recording) -> None:
    before = earlier(stack, stack.one("Cluster"))
    assert stack.one("Account", "nodes").urn in before
    assert stack.one("IAMMember", "nodes-role").urn in before


def test_t7_volumes_are_ours_and_outlive_their_claims(stack: Recording) -> None:
    volumes = {item.inputs["metadata"]["name"]: item for item in stack.all("kubernetes:core/v1:PersistentVolume")}
    claims = stack.all("kubernetes:core/v1:PersistentVolumeClaim")
    volume_claims = [item for item in claims if item.kind == "PersistentVolumeClaim"]
    assert len(volume_claims) == 2
    for claim in volume_claims:
        volume = volumes[claim.inputs["spec"]["volumeName"]]
        assert volume.inputs["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
        assert volume.urn in earlier(stack, claim)


def test_t8_no_preview_replaces_everything(stack: Recording) -> None:
    provider = stack.one("kubernetes", "cluster")
    name = stack.outputs["cluster"]
    assert provider.inputs["clusterIdentifier"] == f"your-project/us-central1-a/{name}"


def test_t9_no_token_is_kept(stack: Recording) -> None:
    kubeconfig = json.loads(stack.one("kubernetes", "cluster").inputs["kubeconfig"])
    (user,) = kubeconfig["users"]
    assert user["user"].keys() == {"exec"}
    assert user["user"]["exec"]["command"] == "gke-gcloud-auth-plugin"
    (cluster,) = kubeconfig["clusters"]
    assert cluster["cluster"]["server"].endswith(".gke.goog"), "the DNS endpoint, which needs no allow-list"
    for item in stack.resources:
        assert "password" not in json.dumps(item.inputs).lower()


def test_t10_nothing_goes_to_whatever_the_environment_points_at(stack: Recording) -> None:
    provider = stack.one("kubernetes", "cluster")
    for item in stack.all("kubernetes:"):
        assert provider.urn in item.provider, f"{item.kind} {item.name}"
    cloud = stack.one("gcp", "gcp")
    for item in stack.all("gcp:"):
        assert cloud.urn in item.provider, f"{item.kind} {item.name}"


@pytest.mark.parametrize("name", [*STACKS, "local"])
def test_t10_default_providers_are_off_in_every_stack_file(name: str) -> None:
    import yaml

    from infra.recording import ROOT

    config = yaml.safe_load((ROOT / f"Pulumi.{name}.yaml").read_text())["config"]
    assert {"kubernetes", "gcp", "aws"} <= set(config["pulumi:disable-default-providers"])


def test_t11_what_the_autoscaler_changes_is_no_difference(stack: Recording) -> None:
    for item in stack.resources:
        if item.kind == "NodePool":
            assert "nodeCount" not in item.inputs
            assert "initialNodeCount" in item.ignore_changes


def test_t12_operations_wait_for_each_other(stack: Recording) -> None:
    system, workers, cluster = stack.one("NodePool", "system"), stack.one("NodePool", "workers"), stack.one("Cluster")
    assert cluster.urn in earlier(stack, system)
    assert system.urn in earlier(stack, workers)
    for item in (system, workers, cluster):
        assert dict(item.timeouts) == {"create": "60m", "update": "60m", "delete": "60m"}
    assert cluster.inputs["releaseChannel"]["channel"] == "REGULAR"
    assert cluster.inputs["maintenancePolicy"]["maintenanceExclusions"]


def test_t13_names_in_the_project_tell_stacks_apart(stack: Recording) -> None:
    name = stack.outputs["cluster"]
    for kind in ("Network", "Subnetwork", "Router", "RouterNat", "Disk", "Cluster"):
        assert stack.one(kind).inputs["name"].startswith(name)
    assert stack.one("Account", "nodes").inputs["accountId"].startswith(name)
    assert len(stack.one("Account", "nodes").inputs["accountId"]) <= 30


def test_t14_making_the_pool_needs_neither_capacity_nor_quota(stack: Recording) -> None:
    pool = stack.one("NodePool", "workers").inputs
    assert pool["initialNodeCount"] == pool["autoscaling"]["totalMinNodeCount"] == 0
    assert pool["nodeLocations"] == [pool["location"]], "one zone: quota is asked for once"
    system = stack.one("NodePool", "system").inputs
    assert system["nodeConfig"]["machineType"] == "e2-standard-4", "GKE's own choice is missing in some zones"
    assert stack.one("Cluster").inputs["nodeConfig"]["machineType"] == "e2-standard-4"


def test_t16_the_taint_of_accelerators_is_there_for_certain() -> None:
    stack = recorded("gcp-a100")
    system, workers = stack.one("NodePool", "system"), stack.one("NodePool", "workers")
    assert system.urn in earlier(stack, workers)
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}
    assert workers.inputs["nodeConfig"]["taints"] == [taint]


def test_t17_nobody_installs_a_second_driver_or_device_plugin() -> None:
    assert not [item for item in recorded("gcp-a100").resources if item.kind == "DaemonSet"]


def test_t18_accelerators_are_asked_for_as_a_device_which_scales_from_zero() -> None:
    stack = recorded("gcp-a100")
    spec = stack.one("Job", "training").inputs["spec"]["template"]["spec"]
    assert "resourceClaims" not in spec
    assert spec["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "8"


def test_t19_disk_and_cpu_fit_the_machine() -> None:
    """The rules that keep others away: tests/infra/test_gke_rules.py."""
    stack = record("gcp-c3", changed("gcp-c3", nodes={"threadsPerCore": 1}))
    requests = stack.one("Job", "training").inputs["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert int(requests["cpu"].removesuffix("m")) <= 3920, "a pod that asks for more is pending for ever"


def test_t20_the_volumes_address_is_the_services(stack: Recording) -> None:
    server = stack.one("Service", "nfs-server")
    volume = stack.one("PersistentVolume", "trainyard-trainyard")
    address = volume.inputs["spec"]["nfs"]["server"]
    assert address.count(".") == 3
    assert address.replace(".", "").isdigit(), "a node does not ask the cluster's DNS"
    assert server.urn in earlier(stack, volume)
    assert volume.delete_before_replace


def test_t22_pulumi_does_not_wait_for_a_training_and_replaces_it_cleanly(stack: Recording) -> None:
    job = stack.one("Job", "training")
    annotations = job.inputs["metadata"]["annotations"]
    assert annotations["pulumi.com/skipAwait"] == annotations["pulumi.com/replaceUnready"] == "true"
    assert job.delete_before_replace
    assert "ttlSecondsAfterFinished" not in job.inputs["spec"]


def test_t22_a_longer_training_is_a_new_job() -> None:
    longer = record("gcp-c3", changed("gcp-c3", training={"steps": 1000}))
    assert longer.outputs["jobName"] != recorded("gcp-c3").outputs["jobName"]


def test_t23_images_are_built_once_and_not_at_preview(stack: Recording) -> None:
    images = [item for item in stack.resources if item.kind == "Image"]
    assert {item.name for item in images} == {"trainer", "nfs-server"}
    for item in images:
        assert item.inputs["buildOnPreview"] is False
        assert item.inputs["platforms"] == ["linux/amd64"]
        assert item.inputs["cacheFrom"]
        assert "registries" not in item.inputs, "a registry's password would change at each run"


def test_a_disk_that_nodes_have_attached_goes_after_them(stack: Recording) -> None:
    assert stack.one("Disk").urn in earlier(stack, stack.one("Cluster"))


def test_a_disk_is_never_deleted_to_make_room_for_its_successor(stack: Recording) -> None:
    """Its name is fixed, so the successor cannot be made first: the update fails, and the data is still there."""
    disk = stack.one("Disk")
    assert disk.create_before_delete
    assert not disk.delete_before_replace


def test_a_disk_is_kept_when_that_is_asked_for_and_can_be_used_again() -> None:
    assert not recorded("gcp-a100").one("Disk").retain_on_delete
    kept = record("gcp-a100", changed("gcp-a100", storage={"retain": True}))
    assert kept.one("Disk").retain_on_delete
    again = record("gcp-a100", changed("gcp-a100", storage={"disk": "trainyard-gcp-a100-data"}))
    assert not [item for item in again.resources if item.kind == "Disk"]
    volume = again.one("PersistentVolume", "nfs-server").inputs["spec"]["csi"]
    assert volume["volumeHandle"] == "projects/your-project/zones/us-central1-a/disks/trainyard-gcp-a100-data"
    made = recorded("gcp-a100").one("PersistentVolume", "nfs-server").inputs["spec"]["csi"]
    assert made["volumeHandle"].endswith("/zones/us-central1-a/disks/trainyard-gcp-a100-data")


def test_a_growing_disk_replaces_no_claim_and_restarts_the_server() -> None:
    grown = record("gcp-a100", changed("gcp-a100", storage={"sizeGib": 2000}))
    for name in ("nfs-server", "data"):
        before = recorded("gcp-a100").one("PersistentVolumeClaim", name).inputs["spec"]
        assert grown.one("PersistentVolumeClaim", name).inputs["spec"] == before
    template = grown.one("Deployment", "nfs-server").inputs["spec"]["template"]
    assert template["metadata"]["annotations"]["trainyard/disk-gib"] == "2000"


def test_apis_stay_enabled(stack: Recording) -> None:
    services = stack.all("gcp:projects/service")
    assert {"container.googleapis.com", "compute.googleapis.com"} <= {item.inputs["service"] for item in services}
    for item in services:
        assert item.inputs["disableOnDestroy"] is False
