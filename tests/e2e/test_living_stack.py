"""A living stack under the real Pulumi engine: a change that cannot succeed, or that would cost its cluster or its data
unasked, is refused in one line by preview and by up, and nothing is touched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import CloudStack
from tests.standin.aws.account import Account, aws
from tests.standin.cloud import Thing

pytestmark = pytest.mark.engine
DISK, CLUSTER = "gcp:compute/disk:Disk data", "gcp:container/cluster:Cluster cluster"


@pytest.fixture(scope="module")
def gke(tmp_path_factory: pytest.TempPathFactory) -> CloudStack:
    stack = cloud_stack.make("gcp-c3", tmp_path_factory.mktemp("gke"))
    stack.up()
    return stack


@pytest.fixture(scope="module")
def eks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudStack]:
    with aws() as endpoint:
        stack = cloud_stack.make(
            "aws-g4dn", tmp_path_factory.mktemp("eks"), Account(endpoint, "500000000077", "us-east-2")
        )
        stack.up()
        yield stack


def refused(stack: CloudStack, **change: dict[str, Any]) -> str:
    """What preview and up say to a change, after which the configuration is as before."""
    values, journal = dict(stack.values), stack.cloud.journal()
    stack.configure(**change)
    stack.pulumi("preview", fails=True)
    lines = [line.strip() for line in stack.text.splitlines() if "on a stack that lives with" in line]
    assert len(lines) == 1
    stack.up(fails=True)
    assert lines[0] in stack.text
    assert stack.cloud.journal() == journal, "nothing was touched"
    stack.values = values
    stack.configure()
    return lines[0]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"gke": {"zone": "us-central1-b"}},
            "gke.zone: us-central1-b on a stack that lives with us-central1-a replaces the cluster and the data; go "
            "back to us-central1-a, or set cluster.replace: true to lose what is there",
        ),
        (
            {"storage": {"sizeGib": 100}},
            "storage.sizeGib: 100 on a stack that lives with 250; a disk does not shrink, and a new one cannot have "
            "its name while it is there; go back to 250, or `pulumi destroy` with it and then `pulumi up`",
        ),
        (
            {"cluster": {"name": "another"}},
            "cluster.name: another on a stack that lives with trainyard-gcp-c3 replaces",
        ),
        ({"gke": {"project": "other-project"}}, "gke.project: other-project on a stack that lives with your-project;"),
        ({"storage": {"disk": "theirs"}}, "storage.disk: theirs on a stack that lives with nothing replaces the data;"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_on_google_cloud_it_is_refused_in_a_line(gke: CloudStack, change: dict[str, Any], expected: str) -> None:
    assert refused(gke, **change).startswith(expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"vpcCidr": "10.1.0.0/16"},
            "eks.vpcCidr: 10.1.0.0/16 on a stack that lives with 10.0.0.0/16; EKS keeps a cluster in the network that "
            "it was made in; go back to 10.0.0.0/16, or `pulumi destroy` with it and then `pulumi up`",
        ),
        ({"secretsEncryption": False}, "eks.secretsEncryption: false on a stack that lives with true; EKS takes no"),
        ({"publicNodes": True}, "eks.publicNodes: true on a stack that lives with false; running nodes have no public"),
        ({"version": "1.35"}, "eks.version: 1.35 on a stack that lives with 1.36; EKS takes no cluster back"),
    ],
    ids=str,
)
def test_on_aws_it_is_refused_in_a_line(eks: CloudStack, change: dict[str, Any], expected: str) -> None:
    assert refused(eks, eks=change).startswith(expected)


def test_what_can_change_changes(gke: CloudStack, eks: CloudStack) -> None:
    gke.configure(storage={"sizeGib": 300})
    gke.up()
    assert gke.preview() == {}
    eks.configure(eks={"zones": ["use2-az2", "use2-az1"]})
    eks.up()
    assert eks.preview() == {}


def test_another_run_folder_is_said_with_the_key_that_keeps_the_former(gke: CloudStack) -> None:
    values = dict(gke.values)
    gke.pulumi("preview")
    assert "a new run begins" not in gke.text
    gke.configure(dataset={"validationFraction": 0.1})
    gke.pulumi("preview")
    assert re.search(r"a new run begins in /data/runs/.*; the former one stays in .*, and job.name: gpt2-", gke.text)
    assert "a new dataset begins in /data/datasets/" in gke.text
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
    assert "lives with us-central1-b" in refused(gke, gke={"zone": "us-central1-a"})


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
