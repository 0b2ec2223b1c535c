"""What a pull request changes in the cloud, found out without the cloud, as the real engine decides it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import main
from review import plan
from review.plan import ADDED, CHANGED, DELETED, REPLACED, Change, compare, follow, report
from review.recording import record
from review.snapshot import content
from tests.infra.recorded import changed, recorded

POOL, DISK = "gcp:container/nodePool:NodePool workers", "gcp:compute/disk:Disk data"
VOLUME = "kubernetes:core/v1:PersistentVolume nfs-server"
#: The beginning of a node group in each zone.
GROUP = "aws:eks/nodeGroup:NodeGroup workers-"
JOB = "kubernetes:batch/v1:Job training"


def declared(stack: str, **sections: Any) -> dict[str, Any]:
    """A snapshot's content for a stack file with changes."""
    return content(record(stack, changed(stack, **sections)))


def followed(stack: str, **sections: Any) -> tuple[Mapping[str, Any], list[Change]]:
    """The content after a change of a stack file, and all changes."""
    values = changed(stack, **sections)
    return follow(reviewed(stack), lambda moves: content(record(stack, values, moves=moves)))


@lru_cache(maxsize=2)
def reviewed(stack: str) -> dict[str, Any]:
    return content(recorded(stack))


def planned(stack: str, **sections: Any) -> dict[str, set[str]]:
    """Operation -> resources, for a change of a stack file."""
    found: dict[str, set[str]] = {}
    for change in followed(stack, **sections)[1]:
        found.setdefault(change.operation, set()).add(change.resource)
    return found


def test_no_change_is_none() -> None:
    assert compare(reviewed("gcp-c3"), declared("gcp-c3")) == []


@pytest.mark.parametrize(
    ("stack", "change", "expected"),
    [
        # As tests/e2e/test_gcp_engine.py and test_aws_engine.py see the engine decide.
        ("gcp-a100", {"nodes": {"max": 8}}, {CHANGED: {POOL}}),
        # A pod on a Spot node has a shorter grace period.
        ("gcp-a100", {"nodes": {"consumption": "spot"}}, {REPLACED: {POOL, JOB}}),
        ("gcp-a100", {"storage": {"sizeGib": 500}}, {REPLACED: {DISK, VOLUME}}),
        ("gcp-a100", {"training": {"steps": 30_000}}, {REPLACED: {JOB}}),
        ("gcp-c3", {"nodes": {"threadsPerCore": 1}}, {REPLACED: {POOL, JOB}}),
        ("gcp-c3", {"nodes": {"machineType": "c3-standard-22"}}, {CHANGED: {POOL}, REPLACED: {JOB}}),
        ("aws-g4dn", {"nodes": {"max": 8}}, {}),  # only the autoscaler changes
        ("aws-g4dn", {"training": {"metrics": {"every": 7}}}, {REPLACED: {JOB}}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) and "nodes" in value else None,
)
def test_a_change_is_planned_as_the_engine_decides(
    stack: str, change: dict[str, Any], expected: dict[str, set[str]]
) -> None:
    found = planned(stack, **change)
    for operation, resources in expected.items():
        assert resources <= found[operation]
    # Nothing else is replaced, and nothing of the cloud is changed besides.
    assert found.get(REPLACED, set()) == expected.get(REPLACED, set())
    cloud = {name for name in found.get(CHANGED, set()) if name.startswith(("gcp:", "aws:"))}
    assert cloud == expected.get(CHANGED, set())


def test_a_growing_disk_stays_and_the_cost_is_told() -> None:
    old, (new, changes) = reviewed("gcp-c3"), followed("gcp-c3", storage={"sizeGib": 500})
    text = report("gcp-c3", "main", old, new, changes)
    assert f"| ~ | {DISK} | size: 250 → 500 |" in text
    before, after = (side["outputs"]["costPerHour"]["atRest"] for side in (old, new))
    assert after > before
    assert f"at rest {before:.2f} → {after:.2f} (+{after - before:.2f})" in text


def test_what_hangs_on_a_replaced_resource_is_replaced_with_it() -> None:
    """As pulumi-aws itself previews another range for the network: 29 replacements, the cluster an update."""
    found = planned("aws-g4dn", eks={"vpcCidr": "10.1.0.0/16"})
    groups = {title for title in found[REPLACED] if title.startswith("aws:eks/nodeGroup:NodeGroup ")}
    targets = {title for title in found[REPLACED] if title.startswith("aws:efs/mountTarget:MountTarget ")}
    zones = {title.rpartition(" ")[2].removeprefix("data-") for title in targets}
    assert groups == {"aws:eks/nodeGroup:NodeGroup system"} | {
        f"aws:eks/nodeGroup:NodeGroup workers-{zone}" for zone in zones
    }
    assert "aws:ec2/routeTable:RouteTable private" in found[REPLACED]
    assert "aws:eks/cluster:Cluster cluster" in found[CHANGED]
    # A provider with another cluster replaces every Kubernetes object.
    found = planned("gcp-c3", gke={"zone": "us-central1-b"})
    assert {POOL, DISK, JOB, "kubernetes:core/v1:Namespace trainyard"} <= found[REPLACED]


@pytest.mark.parametrize(
    ("stack", "change", "pool"),
    [("gcp-c3", {"diskGib": 300}, POOL), ("aws-g4dn", {"diskGib": 300}, GROUP), ("aws-g4dn", {"localSsds": 0}, GROUP)],
)
def test_a_change_that_rolls_the_workers_says_so(stack: str, change: dict[str, Any], pool: str) -> None:
    changes = followed(stack, nodes=change)[1]
    rolled = [item for item in changes if item.resource.startswith(pool)]
    assert rolled
    assert all(item.operation == CHANGED and "(rolls its nodes)" in " ".join(item.details) for item in rolled)


def test_what_is_new_or_gone_is_named() -> None:
    without = declared("gcp-c3", tensorboard={"enabled": False})
    titles = {"kubernetes:apps/v1:Deployment tensorboard", "kubernetes:core/v1:Service tensorboard"}
    assert {item.resource for item in compare(reviewed("gcp-c3"), without) if item.operation == DELETED} == titles
    assert {item.resource for item in compare(without, reviewed("gcp-c3")) if item.operation == ADDED} == titles


def resource(**entry: Any) -> dict[str, Any]:
    return {"resources": {JOB: {"inputs": {"apiVersion": "batch/v1", "kind": "Job"}, **entry}}}


def test_options_order_and_parents_are_compared_too() -> None:
    (found,) = compare(resource(), resource(options={"deletedWith": "x cluster"}, after=["x volume"]))
    assert found == Change(CHANGED, JOB, ("option deletedWith: nothing → x cluster", "after x volume"))
    (found,) = compare(resource(), resource(parent="trainyard:workloads:Training training"))
    assert found.operation == REPLACED
    (found,) = compare(
        resource(inputs={"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 2}}),
        resource(inputs={"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 3, "suspend": True}}),
    )
    assert found.operation == REPLACED
    options = {"ignoreChanges": ["spec.parallelism"]}
    (found,) = compare(
        resource(options=options, inputs={"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 2}}),
        resource(
            options=options,
            inputs={"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 3, "suspend": True}},
        ),
    )
    assert found == Change(CHANGED, JOB, ("spec.suspend: nothing → true",))


def test_a_container_is_compared_with_itself_wherever_it_stands() -> None:
    old = {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}
    new = {"containers": [{"name": "b", "image": "y"}, {"name": "a", "image": "z"}]}
    assert list(plan.differences(old, new)) == [(("containers", "a", "image"), "x", "z")]


def test_text_from_a_fork_is_text() -> None:
    """A page of ours shows what a stranger's change declares: none of it may act as markup."""
    old, new = resource(), resource(options={"note": "<img src=x> | [a](b) `c`"})
    line = next(
        line for line in report("s", "main", old, new, compare(old, new)).splitlines() if line.startswith("| ~")
    )
    assert "&lt;img src=x> \\| \\[a\\](b) \\`c\\`" in line


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository whose one commit has a reviewed snapshot of gcp-c3 with a smaller disk."""
    folder = tmp_path / "tests" / "snapshots"
    folder.mkdir(parents=True)
    text = yaml.safe_dump(reviewed("gcp-c3")).replace("size: 250", "size: 100")
    (folder / "gcp-c3.yaml").write_text(text)
    monkeypatch.setattr(plan, "ROOT", tmp_path)
    monkeypatch.setattr(plan, "FOLDER", folder)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "--message", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_the_command_compares_with_a_commit(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gcp-c3", "--against", "HEAD"]) == 0
    shown = capsys.readouterr().out
    assert "0 added, 1 changed, 0 replaced, 0 deleted" in shown
    assert "size: 100 → 250" in shown
    assert main(["plan", "gcp-a100"]) == 0
    assert ", 0 changed, 0 replaced, 0 deleted" in capsys.readouterr().out, "a stack that the commit has not is new"


def test_a_stack_that_is_removed_is_deleted_whole(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "stacks", list)
    assert main(["plan", "gcp-c3"]) == 0
    shown = capsys.readouterr().out
    assert "0 added, 0 changed, 0 replaced, " in shown
    assert f"| − | {DISK} | deleted |" in shown
    assert "→ nothing" in shown, "and costs nothing any more"


def test_what_is_not_there_is_refused_in_a_line(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gcp-c3", "--against", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("error: git knows no commit 'nowhere'; give a branch")
    assert main(["plan", "nothing"]) == 2
    assert "no stack 'nothing' here or in HEAD; there are:" in capsys.readouterr().err
