"""A living stack under the real Pulumi engine: what is refused in one line, what comes back, and who had what before
(on AWS: test_aws_engine.py)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OFFER, write_kubeconfig
from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import JOB, CloudStack, assert_lines, replaced
from tests.standin.provider import CLUSTERS, Thing

pytestmark = pytest.mark.engine
DISK = "gcp:compute/disk:Disk data"
CONFIGURATION = "kubernetes:core/v1:ConfigMap"


@pytest.fixture(scope="module")
def gke(tmp_path_factory: pytest.TempPathFactory) -> CloudStack:
    stack = cloud_stack.make("gcp-c3", tmp_path_factory.mktemp("gke"))
    stack.up()
    return stack


def test_each_change_is_refused_in_a_line_by_preview_and_up_and_the_old_configuration_works_again(
    gke: CloudStack,
) -> None:
    changes: dict[str, dict[str, Any]] = {
        "gke": {"zone": "us-central1-b", "project": "other-project"},
        "storage": {"sizeGib": 100},
        "cluster": {"name": "another"},
    }
    expected = (
        "cluster.name: another on a stack that lives with trainyard-gcp-c3 replaces",
        "gke.project: other-project on a stack that lives with your-project;",
        "gke.zone: us-central1-b on a stack that lives with us-central1-a replaces the cluster and the data; set it "
        "back to us-central1-a, or set cluster.replace: true to lose what is there",
        "storage.sizeGib: 100 on a stack that lives with 250; a disk does not shrink, and a new one cannot have its "
        "name while it is there; set it back to 250, or change it after `pulumi destroy`",
    )
    assert_lines(gke.refused(**changes), expected)
    values, journal = dict(gke.values), list(gke.cloud.journal)
    gke.configure(**changes)
    gke.up(fails=True)
    assert_lines(gke.refusals(), expected)
    assert gke.cloud.journal == journal
    gke.values = values
    gke.configure()
    gke.up("--expect-no-changes")


def test_another_machine_moves_the_nodes_in_place_and_replaces_the_job(gke: CloudStack) -> None:
    """GKE moves a pool to another machine type node by node; the pods request more."""
    values = dict(gke.values)
    gke.configure(nodes={"machineType": "c3-standard-22"})
    plan = gke.preview()
    assert replaced(plan) == JOB
    assert "gcp:container/nodePool:NodePool workers" in plan["update"]
    gke.values = values
    gke.configure()


def objects(stack: CloudStack) -> set[str]:
    return {title for title in stack.cloud.titles() if title.startswith("kubernetes:")}


def made(stack: CloudStack, since: int) -> set[str]:
    """The Kubernetes objects that were made since the journal had this length."""
    found = {title for operation, title in stack.cloud.journal[since:] if operation == "create"}
    return {title for title in found if title.startswith("kubernetes:")}


def configurations(stack: CloudStack) -> set[str]:
    """The trainings' configurations that are in the cluster, by the Jobs' names."""
    return {thing.inputs["metadata"]["name"] for thing in stack.cloud.of_type(":ConfigMapPatch")}


def test_a_training_goes_to_another_configuration_and_back_to_one_that_is_still_there(gke: CloudStack) -> None:
    """A Job's configuration stays with its namespace, and Pulumi's plugin refuses to make an object that exists."""
    before, mark = configurations(gke), len(gke.cloud.journal)
    values = dict(gke.values)
    gke.configure(training={"steps": 30_000})
    gke.up()
    assert {title for _, title in gke.cloud.journal[mark:]} == JOB, "and nothing else is touched"
    (second,) = configurations(gke) - before
    gke.values = values
    gke.configure()
    gke.up()
    assert configurations(gke) == {*before, second}
    (job,) = [thing for thing in gke.cloud.of_type(":Job") if thing.name == "training"]
    assert job.inputs["metadata"]["name"] in before


def test_a_first_up_takes_a_configuration_that_is_in_the_cluster_already(tmp_path: Path) -> None:
    """A lost state, or another stack's training in a namespace of the same name."""
    stack = cloud_stack.make("local", tmp_path)
    stack.environment["KUBECONFIG"] = str(write_kubeconfig(tmp_path / "kubeconfig", "trainyard-local", OFFER))
    stack.cloud.things.append(Thing(CLUSTERS[0], "theirs", "theirs", {}, {}))
    job = stack.inputs_previewed("kubernetes:batch/v1:Job", "training")["metadata"]["name"]
    stack.cloud.things.append(Thing(CONFIGURATION, "theirs", f"trainyard/{job}", {}, {}))
    assert "kubernetes:core/v1:ConfigMapPatch training-config" in stack.preview()["create"]


def test_after_an_up_that_failed_before_the_training_the_outputs_tell_of_the_one_that_runs(gke: CloudStack) -> None:
    values, before = dict(gke.values), json.loads(gke.pulumi("stack", "output", "--json"))
    gke.configure(dataset={"validationFraction": 0.2})
    name = gke.inputs_previewed("kubernetes:batch/v1:Job", "dataset")["metadata"]["name"]
    assert "anew" not in gke.text, "the stack file asks for it"
    theirs = Thing("kubernetes:batch/v1:Job", "theirs", f"trainyard/{name}", {}, {})
    gke.cloud.things.append(theirs)
    gke.up(fails=True)
    assert "409 already exists: trainyard/dataset-" in gke.text
    assert json.loads(gke.pulumi("stack", "output", "--json")) == before
    gke.cloud.things.remove(theirs)
    gke.pulumi("preview")
    asked = r"the run starts anew in /data/runs/.*; to continue the one in .*, set job.name: gpt2-"
    assert re.search(asked, gke.text), "the file is that of the last `up`, and the folder is another"
    gke.values = values
    gke.configure()


def test_who_asks_for_it_gets_another_cluster_and_only_the_next_change_is_asked_again(gke: CloudStack) -> None:
    before, mark = objects(gke), len(gke.cloud.journal)
    gke.configure(gke={"zone": "us-central1-b"}, cluster={"replace": True})
    gke.up()
    (disk,), (cluster,) = gke.cloud.of_type(":Disk"), gke.cloud.of_type("cluster:Cluster")
    assert disk.inputs["zone"] == cluster.inputs["location"] == "us-central1-b"
    assert made(gke, mark) >= before, "all that lived lives there"
    assert gke.preview() == {}
    assert "cluster.replace" in gke.text
    gke.configure(cluster={"replace": False})
    expected = (
        "gke.zone: us-central1-a on a stack that lives with us-central1-b",
        "storage.disk: theirs on a stack that lives with nothing replaces the data;",
    )
    assert_lines(gke.refused(gke={"zone": "us-central1-a"}, storage={"disk": "theirs"}), expected)


def test_what_goes_with_a_namespace_or_a_cluster_is_made_anew_when_that_is_replaced(tmp_path: Path) -> None:
    """Pulumi 3.200 deletes and makes nothing for a child whose own inputs stay (3.274 does): so its inputs change."""
    stack = cloud_stack.make("local", tmp_path)
    stack.environment["KUBECONFIG"] = str(write_kubeconfig(tmp_path / "kubeconfig", "trainyard-local", OFFER))
    stack.cloud.things.append(Thing(CLUSTERS[0], "theirs", "theirs", {}, {}))
    stack.configure(
        image={"builder": "prebuilt", "ref": f"example.com/trainer@sha256:{'0' * 64}"}, cluster={"replace": True}
    )
    stack.up()
    before, mark = objects(stack), len(stack.cloud.journal)
    stack.configure(cluster={"namespace": "other"})
    stack.up()
    assert {title.replace("other", "trainyard") for title in made(stack, mark)} == before
    assert stack.preview() == {}


def test_a_first_up_that_failed_is_held_to_nothing_and_destroy_never_is(tmp_path: Any) -> None:
    stack = cloud_stack.make("gcp-c3", tmp_path)
    # Somebody else's cluster has the name.
    id_ = "projects/your-project/locations/us-central1-a/clusters/trainyard-gcp-c3"
    theirs = Thing("gcp:container/cluster:Cluster", "theirs", id_, {}, {})
    stack.cloud.things.append(theirs)
    stack.up(fails=True)
    assert "409 already exists" in stack.text
    assert DISK in stack.cloud.titles()
    stack.configure(gke={"zone": "us-central1-b"})
    stack.up()
    stack.configure(gke={"zone": "us-central1-a"}, storage={"sizeGib": 10})
    stack.destroy()
    assert stack.cloud.things == [theirs]
