"""The stand-in cloud: what it refuses, what it replaces, and what a preview knows."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from review import computed
from tests.standin.cloud import Cloud, Thing
from tests.standin.naming import PluginError, Urn
from tests.standin.server import Resources
from tests.standin.values import UNKNOWN, Secret

CLUSTER = "gcp:container/cluster:Cluster"
NETWORK, SUBNET = "gcp:compute/network:Network", "gcp:compute/subnetwork:Subnetwork"
POOL, DISK, VOLUME = "gcp:container/nodePool:NodePool", "gcp:compute/disk:Disk", "kubernetes:core/v1:PersistentVolume"

ACCOUNT = "nodes@project.iam.gserviceaccount.com"


def urn(type_: str, name: str) -> str:
    return f"urn:pulumi:s::p::{type_}::{name}"


class World:
    """A cloud with the APIs enabled."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        for api in ("cloudresourcemanager", "serviceusage", "compute", "container", "file", "iam"):
            service = {"service": f"{api}.googleapis.com", "disableOnDestroy": False}
            self.make("gcp:projects/service:Service", api, **service)
        role = {"role": "roles/container.defaultNodeServiceAccount", "member": f"serviceAccount:{ACCOUNT}"}
        self.make("gcp:projects/iAMMember:IAMMember", "nodes", **role)

    def make(self, type_: str, logical_name: str, **inputs: Any) -> Thing:
        given = inputs if {"metadata", "service", "role"} & inputs.keys() else {"name": logical_name, **inputs}
        if type_ == POOL:
            given["nodeConfig"] = {"serviceAccount": ACCOUNT}
        id_, outputs = computed.outputs(type_, logical_name, given, "project")
        thing = Thing(type_, logical_name, id_, given, outputs)
        self.cloud.create(urn(type_, logical_name), thing)
        return thing

    def delete(self, thing: Thing) -> None:
        self.cloud.delete(urn(thing.type, thing.name), thing.id)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(Cloud(tmp_path / "cloud.json"))


def test_what_is_in_use_is_not_deleted(world: World) -> None:
    network = world.make(NETWORK, "net")
    subnet = world.make(SUBNET, "subnet", network=network.outputs["selfLink"], region="r")
    with pytest.raises(PluginError, match=r"Network net: 400 resourceInUse.*used by gcp:compute/subnetwork:Subnetwork"):
        world.delete(network)
    world.delete(subnet)
    world.delete(network)
    assert world.cloud.journal()[-2:] == [("delete", f"{SUBNET} subnet"), ("delete", f"{NETWORK} net")]


def test_pools_and_objects_go_with_their_cluster_and_cannot_be_reached_after_it(world: World) -> None:
    cluster = world.make(CLUSTER, "c", location="z")
    world.make(POOL, "system", cluster="c", location="z", autoscaling={"totalMinNodeCount": 1})
    disk = world.make(DISK, "data", zone="z", size=10)
    csi = {"driver": "pd.csi.storage.gke.io", "volumeHandle": disk.id}
    volume = world.make(VOLUME, "volume", metadata={"name": "volume"}, spec={"csi": csi})
    with pytest.raises(PluginError, match=r"Disk data: 400 .*used by kubernetes:core/v1:PersistentVolume"):
        world.delete(disk)
    world.delete(cluster)
    assert {entry for entry in world.cloud.journal() if entry[0] == "gone"} == {
        ("gone", f"{POOL} system"),
        ("gone", f"{VOLUME} volume"),
    }
    world.delete(disk)
    assert not [thing for thing in world.cloud.things().values() if "gcp:projects/" not in thing.type]
    world.cloud.create(urn(CLUSTER, "c"), cluster)
    world.cloud.create(urn(VOLUME, "volume"), volume)


@pytest.mark.parametrize(
    ("type_", "inputs", "refusal"),
    [
        (VOLUME, {"metadata": {"name": "v"}}, "there is no cluster"),
        ("docker-build:index:Image", {"tags": ["r-docker.pkg.dev/p/images/x:1"]}, "404 repository not found"),
        (NETWORK, {"name": "taken"}, "409 already exists"),
    ],
)
def test_what_cannot_be_made_yet_is_refused(world: World, type_: str, inputs: dict[str, Any], refusal: str) -> None:
    world.make(NETWORK, "taken")
    with pytest.raises(PluginError, match=refusal):
        world.make(type_, "x", **inputs)


def test_nothing_works_before_its_api_is_enabled(tmp_path: Path) -> None:
    empty = Cloud(tmp_path / "empty.json")
    with pytest.raises(PluginError, match=r"403 compute\.googleapis\.com has not been used"):
        empty.create(urn(NETWORK, "net"), Thing(NETWORK, "net", "id", {}, {}))


def test_a_deployment_needs_nodes_that_are_always_there(world: World) -> None:
    world.make(CLUSTER, "c", location="z")
    world.make(POOL, "workers", cluster="c", location="z", autoscaling={"totalMinNodeCount": 0})
    with pytest.raises(PluginError, match="no node to run on"):
        world.make("kubernetes:apps/v1:Deployment", "d", metadata={"name": "d"})


def test_deletion_protection_protects(world: World) -> None:
    cluster = world.make(CLUSTER, "c", location="z", deletionProtection=True)
    with pytest.raises(PluginError, match="deletion protection is on"):
        world.delete(cluster)


@pytest.fixture
def gcp(tmp_path: Path) -> Resources:
    return Resources("gcp", Cloud(tmp_path / "cloud.json"), "project")


@pytest.mark.parametrize(("name", "old_first"), [({"name": "c"}, True), ({}, False)])
def test_a_name_of_ones_own_makes_the_old_one_go_first(gcp: Resources, name: dict[str, str], old_first: bool) -> None:
    which = Urn(urn(CLUSTER, "x"))
    before = gcp.check(which, {}, {**name, "location": "a"}, b"seed")
    after = gcp.check(which, before, {**name, "location": "b"}, b"other")
    assert gcp.diff(which, before, after, ["initialNodeCount", "nodeConfig"])[1:] == (["location"], old_first)


@pytest.mark.parametrize(("kind", "replaces"), [("Job", ["spec.parallelism"]), ("JobPatch", [])])
def test_a_patch_changes_in_place_what_would_replace_the_object(tmp_path: Path, kind: str, replaces: list[str]) -> None:
    kubernetes = Resources("kubernetes", Cloud(tmp_path / "cloud.json"), "project")
    which = Urn(urn(f"kubernetes:batch/v1:{kind}", "x"))

    def job(parallelism: int) -> dict[str, Any]:
        given = {"metadata": {"name": "x", "namespace": "n"}, "spec": {"parallelism": parallelism}}
        return kubernetes.check(which, {}, {"apiVersion": "batch/v1", "kind": "Job", **given}, b"")

    assert kubernetes.diff(which, job(2), job(3), [])[1] == replaces


@pytest.mark.parametrize(("kind", "refused"), [("ConfigMap", True), ("ConfigMapPatch", False)])
def test_only_a_patch_takes_an_object_that_is_there(world: World, kind: str, refused: bool) -> None:
    """Since pulumi-kubernetes 4.29."""
    world.make(CLUSTER, "c", location="z")
    world.make(f"kubernetes:core/v1:{kind}", "left", metadata={"name": "m"})
    with pytest.raises(PluginError, match="409 already exists") if refused else nullcontext():
        world.make(f"kubernetes:core/v1:{kind}", "made", metadata={"name": "m"})


def test_a_type_that_nobody_looked_at_is_refused(gcp: Resources) -> None:
    with pytest.raises(
        PluginError, match=r"gcp:sql/database:Database is not known here: add it to tests/standin/replaces-KIND.yaml"
    ):
        gcp.check(Urn(urn("gcp:sql/database:Database", "x")), {}, {}, b"")


def test_a_preview_knows_nothing_of_what_the_cloud_adds(gcp: Resources) -> None:
    given = {
        "name": "c",
        "location": "z",
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"allowExternalTraffic": True}},
        "password": Secret("x"),
    }
    _, outputs = gcp.create(Urn(urn(CLUSTER, "c")), given, 0, preview=True)
    assert outputs["endpoint"] is UNKNOWN
    assert outputs["name"] == "c"
    dns = outputs["controlPlaneEndpointsConfig"]["dnsEndpointConfig"]
    assert dns == {"allowExternalTraffic": True, "endpoint": UNKNOWN}
    assert outputs["password"] == Secret("x")


def test_another_image_is_the_same_resource(tmp_path: Path) -> None:
    """Its id is the first tag; the tag follows the content."""
    cloud = Cloud(tmp_path / "cloud.json")
    repository = Thing("aws:ecr/repository:Repository", "r", "r", {}, {"repositoryUrl": "host/image"})
    cloud.create(urn(repository.type, "r"), repository)
    builder = Resources("docker-build", cloud, "project")
    which = Urn(urn("docker-build:index:Image", "x"))
    id_, before = builder.create(which, {"tags": ["host/image:a"]}, 0, preview=False)
    after = builder.update(which, before, {"tags": ["host/image:b"]}, [], 0, preview=False)
    assert after["ref"] != before["ref"]
    builder.delete(which, id_, after, 0)
    assert [thing.name for thing in cloud.things().values()] == ["r"]
