"""A living stack under the real Pulumi engine: preview and up refuse, in one line, a change that cannot succeed or that
would cost the cluster or the data unasked, and touch nothing (on AWS: test_aws_engine.py)."""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import CloudStack, assert_lines
from tests.standin.cloud import Thing

pytestmark = pytest.mark.engine
DISK = "gcp:compute/disk:Disk data"


@pytest.fixture(scope="module")
def gke(tmp_path_factory: pytest.TempPathFactory) -> CloudStack:
    stack = cloud_stack.make("gcp-c3", tmp_path_factory.mktemp("gke"))
    stack.up()
    return stack


def test_on_google_cloud_each_change_is_refused_in_a_line(gke: CloudStack) -> None:
    lines = gke.refused(
        gke={"zone": "us-central1-b", "project": "other-project"},
        storage={"sizeGib": 100},
        cluster={"name": "another"},
    )
    expected = (
        "cluster.name: another on a stack that lives with trainyard-gcp-c3 replaces",
        "gke.project: other-project on a stack that lives with your-project;",
        "gke.zone: us-central1-b on a stack that lives with us-central1-a replaces the cluster and the data; set it "
        "back to us-central1-a, or set cluster.replace: true to lose what is there",
        "storage.sizeGib: 100 on a stack that lives with 250; a disk does not shrink, and a new one cannot have its "
        "name while it is there; set it back to 250, or change it after `pulumi destroy`",
    )
    assert_lines(lines, expected)


def test_somebody_elses_disk_is_refused_in_a_line(gke: CloudStack) -> None:
    (line,) = gke.refused(storage={"disk": "theirs"})
    assert line.startswith("storage.disk: theirs on a stack that lives with nothing replaces the data;")


def test_what_can_change_changes(gke: CloudStack) -> None:
    gke.configure(storage={"sizeGib": 300})
    gke.up()
    assert gke.preview() == {}


def test_another_run_folder_that_the_stack_file_asks_for_is_no_news(gke: CloudStack) -> None:
    values = dict(gke.values)
    gke.configure(dataset={"validationFraction": 0.1})
    gke.pulumi("preview")
    assert "anew" not in gke.text
    gke.values = values
    gke.configure()


def test_after_an_up_that_failed_before_the_training_the_outputs_tell_of_the_one_that_runs(gke: CloudStack) -> None:
    values, before = dict(gke.values), json.loads(gke.pulumi("stack", "output", "--json"))
    gke.configure(dataset={"validationFraction": 0.2})
    steps = json.loads(gke.pulumi("preview", "--json"))["steps"]
    made = [step["newState"] for step in steps if step["urn"].endswith(":Job::dataset") and "newState" in step]
    id_ = f"trainyard/{made[0]['inputs']['metadata']['name']}"
    theirs = Thing("kubernetes:batch/v1:Job", "theirs", id_, {}, {})
    content = json.loads(gke.cloud.path.read_text())
    gke.cloud.path.write_text(json.dumps({**content, "living": {**content["living"], "theirs#": vars(theirs)}}))
    gke.up(fails=True)
    assert "409 already exists: trainyard/dataset-" in gke.text
    assert json.loads(gke.pulumi("stack", "output", "--json")) == before
    gke.pulumi("preview")
    asked = r"the run starts anew in /data/runs/.*; to continue the one in .*, set job.name: gpt2-"
    assert re.search(asked, gke.text), "the file is that of the last `up`, and the folder is another"
    content = json.loads(gke.cloud.path.read_text())
    del content["living"]["theirs#"]
    gke.cloud.path.write_text(json.dumps(content))
    gke.values = values
    gke.configure()


def test_who_asks_for_it_gets_another_cluster_and_only_the_next_change_is_asked_again(gke: CloudStack) -> None:
    gke.configure(gke={"zone": "us-central1-b"}, cluster={"replace": True})
    gke.up()
    (disk,) = [thing for thing in gke.cloud.things().values() if thing.type == "gcp:compute/disk:Disk"]
    (cluster,) = [thing for thing in gke.cloud.things().values() if thing.type == "gcp:container/cluster:Cluster"]
    assert disk.inputs["zone"] == cluster.inputs["location"] == "us-central1-b"
    assert any(thing.name == "training" for thing in gke.cloud.things().values()), "and trains there"
    assert gke.preview() == {}
    assert "cluster.replace" in gke.text
    gke.configure(cluster={"replace": False})
    assert "lives with us-central1-b" in gke.refused(gke={"zone": "us-central1-a"})[0]


def test_a_first_up_that_failed_is_held_to_nothing_and_destroy_never_is(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stack = cloud_stack.make("gcp-c3", tmp_path_factory.mktemp("fresh"))
    # Somebody else's cluster has the name.
    id_ = "projects/your-project/locations/us-central1-a/clusters/trainyard-gcp-c3"
    theirs = Thing("gcp:container/cluster:Cluster", "theirs", id_, {}, {})
    stack.cloud.path.write_text(json.dumps({"living": {f"theirs#{id_}": vars(theirs)}, "journal": []}))
    stack.up(fails=True)
    assert "409 already exists" in stack.text
    assert DISK in {f"{thing.type} {thing.name}" for thing in stack.cloud.things().values()}
    stack.configure(gke={"zone": "us-central1-b"})
    stack.up()
    assert stack.preview() == {}
    stack.configure(gke={"zone": "us-central1-a"}, storage={"sizeGib": 10})
    stack.destroy()
    assert {thing.name for thing in stack.cloud.things().values() if "Service" not in thing.type} == {"theirs"}
