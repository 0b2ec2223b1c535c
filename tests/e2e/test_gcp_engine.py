"""What the real Pulumi engine updates, replaces and deletes in the GCP stacks, and in which order. The cloud is a file
that refuses what Google Cloud refuses (tests/standin)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import JOB, CloudStack, assert_a_token_is_hidden, assert_lines, of_cloud, replaced
from tests.standin.cloud import Thing

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


@pytest.fixture(scope="module")
def c3_up(tmp_path_factory: pytest.TempPathFactory) -> CloudStack:
    """gcp-c3, created."""
    stack = cloud_stack.make("gcp-c3", tmp_path_factory.mktemp("c3"))
    stack.up()
    return stack


@pytest.fixture
def a100(a100_up: CloudStack) -> Iterator[CloudStack]:
    """Restore the configuration after the test."""
    yield from a100_up.restored()


@pytest.fixture
def c3(c3_up: CloudStack) -> Iterator[CloudStack]:
    yield from c3_up.restored()


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> CloudStack:
    """gcp-c3, not created: for tests that destroy."""
    return cloud_stack.make("gcp-c3", tmp_path_factory.mktemp("fresh"))


def test_the_first_preview_shows_all_that_up_makes(a100: CloudStack) -> None:
    """No declaration waits for a value of the cloud, so a pull request shows everything."""
    # Skip resources that are only read, such as the node check's result: nothing creates them.
    resources = [item for item in json.loads(a100.state())["deployment"]["resources"] if not item.get("external")]
    made = {f"{item['type']} {item['urn'].rsplit('::', 1)[-1]}" for item in resources}
    assert a100.planned == {"create": {name for name in made if not cloud_stack.DEFAULT.search(name)}}


def test_a_second_up_changes_nothing(a100: CloudStack) -> None:
    assert a100.preview() == {}


def change_id(value: object) -> str | None:
    """Name a test by what changes: a set's order differs between processes, which must agree on names."""
    return str(value) if isinstance(value, dict) else None


@pytest.mark.parametrize(
    ("change", "replaces", "updates"),
    [
        ({"nodes": {"max": 8}}, set(), {POOL}),
        ({"nodes": {"machineType": "a2-highgpu-4g", "localSsds": 4}}, {POOL, *JOB}, set()),
        ({"nodes": {"consumption": "spot"}}, {POOL}, set()),
        ({"training": {"steps": 30_000}}, JOB, set()),
        # The workers go on training.
        ({"workers": {"count": 1}, "storage": {"sizeGib": 2000}}, set(), {DISK}),
    ],
    ids=change_id,
)
def test_a_change_updates_and_replaces_no_more_than_it_must(
    a100: CloudStack, change: dict[str, dict[str, object]], replaces: set[str], updates: set[str]
) -> None:
    a100.configure(**change)
    plan = a100.preview()
    assert replaced(plan) == replaces
    assert of_cloud(plan.get("update", set())) == updates
    assert of_cloud(plan.get("delete", set())) == set()
    if "workers" in change:
        assert "kubernetes:batch/v1:JobPatch training-size" in plan["update"]
    if "training" in change:
        assert set().union(*plan.values()) == JOB


def test_a_disk_that_would_be_replaced_is_refused_and_the_old_configuration_works_again(a100: CloudStack) -> None:
    starts = ("storage.diskType: pd-standard on a stack", "storage.sizeGib: 500 on a stack")
    assert_lines(a100.refused(storage={"sizeGib": 500, "diskType": "pd-standard"}), starts)
    a100.up("--expect-no-changes")


def test_a_token_is_in_no_state_or_output_and_goes_with_its_key(a100: CloudStack) -> None:
    assert_a_token_is_hidden(a100, "gke-gcloud-auth-plugin")
    a100.configure()
    a100.up()
    assert a100.preview() == {}
    # The Secret that is left is the stack's own.
    secrets = {thing for thing in a100.existing() if thing.startswith("kubernetes:core/v1:Secret")}
    assert secrets == {"kubernetes:core/v1:Secret compile-key"}


@pytest.mark.parametrize(
    ("nodes", "replaces", "updates"),
    [
        # GKE moves a pool to another machine type node by node; the pods request more, so the Job is replaced.
        ({"machineType": "c3-standard-22"}, JOB, {POOL}),
        # Hyper-threads off.
        ({"threadsPerCore": 1}, {POOL, *JOB}, set()),
    ],
    ids=change_id,
)
def test_other_c3_machines(c3: CloudStack, nodes: dict[str, object], replaces: set[str], updates: set[str]) -> None:
    c3.configure(nodes=nodes)
    plan = c3.preview()
    assert replaced(plan) == replaces
    assert of_cloud(plan.get("update", set())) == updates


def test_destroy_leaves_nothing_that_costs(c3_up: CloudStack) -> None:
    """The cluster takes pools and objects with it; what it used goes after it. The stand-in refuses any other order."""
    before = len(c3_up.cloud.journal())
    c3_up.destroy()
    assert c3_up.existing() == set()
    journal = c3_up.cloud.journal()[before:]
    order = [name for operation, name in journal if operation == "delete"]
    assert order.index(CLUSTER) < order.index(DISK)
    assert order.index(CLUSTER) < order.index("gcp:compute/network:Network network")
    one_by_one = [name for name in order if name.startswith("kubernetes:") or "NodePool" in name]
    assert one_by_one == [], "these go with their cluster, in one operation"
    kept = {name for operation, name in journal if operation == "keep"}
    assert kept
    assert {name.split()[0] for name in kept} == {"gcp:projects/service:Service"}
    assert "resources" not in json.loads(c3_up.state())["deployment"]


def test_a_retained_disk_stays_and_comes_back(fresh: CloudStack) -> None:
    fresh.configure(storage={"retain": True})
    fresh.up()
    fresh.destroy()
    assert fresh.existing() == {DISK}
    (disk,) = [thing for thing in fresh.cloud.things().values() if thing.type == "gcp:compute/disk:Disk"]
    fresh.configure(storage={"retain": False, "disk": disk.outputs["name"]})
    fresh.up()
    volumes = [thing for thing in fresh.cloud.things().values() if thing.type.endswith(":PersistentVolume")]
    assert [volume for volume in volumes if disk.id in str(volume.inputs)]
    fresh.destroy()
    assert fresh.existing() == {DISK}


def test_the_stack_to_prove_with_comes_and_goes(tmp_path_factory: pytest.TempPathFactory) -> None:
    smoke = cloud_stack.make("gcp-smoke", tmp_path_factory.mktemp("smoke"))
    smoke.up()
    assert smoke.preview() == {}
    smoke.destroy()
    assert smoke.existing() == set()


def test_a_program_that_enables_too_little_is_refused(fresh: CloudStack) -> None:
    """Both stacks did so until the stand-in knew what image streaming needs."""
    program = (fresh.folder / "__main__.py").read_text()
    (fresh.folder / "__main__.py").unlink()
    forget = "from infra.gke import services\nservices.ALWAYS = tuple(n for n in services.ALWAYS if n != {!r})\n"
    (fresh.folder / "__main__.py").write_text(forget.format("image_streaming") + program)
    fresh.up(fails=True)
    assert "403 containerfilesystem.googleapis.com has not been used in this project before" in fresh.text


def test_a_destroy_that_is_refused_or_stopped_on_its_way_can_be_run_again(fresh: CloudStack) -> None:
    """If only the cloud refused, the pools would be gone from the state but not from the cloud: no `up` would work.

    The stack has fallback pools and a grant on own buckets.
    """
    nodes = {"consumption": "spot", "fallback": "on_demand", "zones": ["us-central1-b", "us-central1-c"]}
    fresh.configure(cluster={"deletionProtection": True}, nodes=nodes, dataset={"input": ["gs://my-texts/books"]})
    fresh.up()
    made = fresh.existing()
    assert {f"{POOL}-on-demand", POOL, "kubernetes:cloud.google.com/v1:ComputeClass workers"} <= made
    (grant,) = [thing for thing in fresh.cloud.things().values() if thing.type.endswith(":BucketIAMMember")]
    assert "/subject/ns/trainyard/sa/dataset" in grant.inputs["member"]
    before = fresh.cloud.journal()
    assert "cluster.deletionProtection: stack gcp-c3 was brought up with true" in fresh.down_refused()
    assert fresh.cloud.journal() == before
    assert fresh.preview() == {}
    fresh.configure(cluster={"deletionProtection": False})
    fresh.up()
    urn = next(line for line in fresh.pulumi("stack", "--show-urns").split() if line.endswith("Disk::data"))
    fresh.pulumi("state", "protect", urn, "--yes")
    assert "its state protects gcp:compute/disk:Disk data" in fresh.down_refused()
    fresh.pulumi("state", "unprotect", urn, "--yes")
    network = next(thing for thing in fresh.cloud.things().values() if thing.type == "gcp:compute/network:Network")
    rule = Thing("gcp:compute/firewall:Firewall", "theirs", "theirs", {"network": network.id}, {})
    fresh.cloud.create("urn", rule)
    fresh.destroy(fails=True)
    assert "used by gcp:compute/firewall:Firewall theirs" in fresh.text
    fresh.cloud.delete("urn", "theirs")
    fresh.destroy()
    assert fresh.existing() == set()


def test_filestore_and_a_prebuilt_image_come_and_go_too(fresh: CloudStack) -> None:
    fresh.configure(
        storage={"kind": "filestore", "sizeGib": 1024},
        image={"builder": "prebuilt", "ref": "ghcr.io/you/trainer@sha256:" + "a" * 64},
    )
    fresh.up()
    assert "gcp:filestore/instance:Instance data" in fresh.existing()
    assert not [thing for thing in fresh.existing() if "Disk" in thing or "docker-build" in thing]
    fresh.configure(storage={"sizeGib": 2048})
    plan = fresh.preview()
    assert replaced(plan) == set()
    assert "gcp:filestore/instance:Instance data" in plan["update"]
    fresh.destroy()
    assert fresh.existing() == set()
