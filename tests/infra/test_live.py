"""What a change does to a living stack, and which changes are refused."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from infra import living
from infra.clouds import keys
from infra.config import StackConfig
from infra.eks.nodes import GROUP_LIMIT
from infra.parse import parse
from review.recording import record
from tests.infra import live
from tests.infra.recorded import changed

#: Keys whose effect no change of a recorded stack shows: another kind of cluster, another kubeconfig.
BY_HAND = {"cluster.kind", "cluster.kubeconfig"}
#: All keys of `training` reach the workers as arguments (tests/workloads/test_identity.py), so these stand for all.
OF_TRAINING = {"training.steps", "training.microBatch", "training.run.seed", "training.engine.zeroStage"}
SECTIONS = sorted({key.partition(".")[0] for key, _ in keys().items()})


@pytest.mark.parametrize("section", SECTIONS)
def test_the_table_says_what_a_change_of_each_key_does(section: str) -> None:
    said = living.table()["keys"]
    found: dict[str, Any] = {}
    written: dict[str, Any] = {}
    for key, field in keys().items():
        few = section == "training" and key not in {*OF_TRAINING, *said}
        if key.startswith(f"{section}.") and key not in BY_HAND and not few:
            found[key] = live.effects(key, field)
            assert found[key], f"{key} can be changed on no stack: give a value in OTHER or a stack in BEFORE"
            written[key] = {kind: living.effect(key, live.KINDS[kind], kind) for kind in found[key]}
    assert written == found
    assert {key for key in said if key.startswith(f"{section}.")} - BY_HAND == found.keys() - OF_TRAINING


@pytest.mark.parametrize(("one", "other"), [("gke", "filestore"), ("existing", "storageClass")])
def test_each_object_keeps_its_owner_when_the_volume_becomes_another(one: str, other: str) -> None:
    """Both directions: one resource declares an object before and after."""
    before, after = (live.seen(live.STACKS[kind][0], live.stack_values(kind, "")) for kind in (one, other))
    live.assert_each_object_keeps_its_owner(before["resources"], after["resources"])


FILESTORE = {"kind": "filestore", "tier": "ZONAL"}


def built(stack: str, volume: str, **sections: dict[str, Any] | None) -> dict[str, Any]:
    """The values that a living stack would have recorded."""
    config = parse(changed(stack, **sections), stack)
    return {**{key: living.value_of(config, key) for key in living.table()["keys"]}, living.VOLUME: volume}


def config(stack: str, **sections: dict[str, Any] | None) -> StackConfig:
    return parse(changed(stack, **sections), stack)


@pytest.mark.parametrize("row", living.table()["impossible"], ids=lambda row: f"{row['key']} {row['when']}")
def test_every_row_of_what_cannot_succeed_is_refused_and_cannot_be_asked_for(row: dict[str, Any]) -> None:
    """With values that any stack could have, whatever cluster.replace says."""
    values = {"smaller": (300, 200), "older": ("1.36", "1.35"), "on": (False, True), "off": (True, False)}
    values["out of its band"] = (10_000, 10_240)
    old, new = values.get(row["when"], ("a", "b"))
    there = {name: given[0] for name, given in row.get("where", {}).items()}
    assert living._impossible(row["key"], old, new, there) == row["because"]
    if row["when"] not in ("changed", "out of its band"):
        assert not living._impossible(row["key"], new, old, there), "the other way it can"
    if there:
        assert not living._impossible(row["key"], old, new, {}), "and elsewhere"
    assert living._is_guarded(row["key"]), "it is recorded"


def test_another_most_of_nodes_is_told_that_the_state_has_an_old_size_on_aws() -> None:
    """With a new maximum the provider sends the size too, and `ignoreChanges` keeps the group's first one."""
    assert {row.get("above", 0) for row in living.table()["careful"]} == {0, GROUP_LIMIT}
    back = {"eks": {"version": "1.35"}}
    (line,) = living.cautions(config("aws-g4dn", **back), built("aws-g4dn", "efs", eks={"version": "1.36"}))
    assert "EKS takes a cluster back by one version, within 7 days" in line
    assert not list(living.cautions(config("aws-g4dn", eks={"version": "1.36"}), built("aws-g4dn", "efs", **back)))
    for change, key in (({"nodes": {"max": 101}}, "nodes.max"), ({"eks": {"systemNodes": 4}}, "eks.systemNodes")):
        (line,) = living.cautions(config("aws-g4dn", **change), built("aws-g4dn", "efs"))
        assert line.startswith(f"{key}: ")
        assert "pulumi up --refresh" in line
        assert living._is_guarded(key), "it is recorded"
    assert not list(living.cautions(config("aws-g4dn"), built("aws-g4dn", "efs")))
    # Up to 100 only the autoscaler's limit changes, and no group.
    assert not list(living.cautions(config("aws-g4dn", nodes={"max": 100}), built("aws-g4dn", "efs")))
    assert not list(living.cautions(config("aws-g4dn", nodes={"max": 101}), {})), "a first up has no old size"
    # The state has no size of GKE's pools.
    assert not list(living.cautions(config("gcp-c3", nodes={"max": 101}), built("gcp-c3", "nfs")))


def test_a_release_of_the_nodes_is_older_than_another_but_not_than_the_latest() -> None:
    releases = ("1.36.0-20261101", "1.36.0-20260901")
    assert living._impossible("eks.nodeRelease", *releases, {})
    for old, new in (releases[::-1], ("latest", releases[1]), (releases[0], "latest")):
        assert not living._impossible("eks.nodeRelease", old, new, {})


@pytest.mark.parametrize(
    ("stack", "volume", "change", "expected"),
    [
        (
            "gcp-c3",
            "nfs",
            {"gke": {"zone": "us-central1-b"}},
            "replaces the cluster and the data; set it back to us-central1-a",
        ),
        (
            "gcp-c3",
            "given",
            {"gke": {"zone": "us-central1-b"}},
            "replaces the cluster; set it back to us-central1-a, or set",
        ),
        (
            "gcp-c3",
            "nfs",
            {"cluster": {"namespace": "b"}},
            "replaces all that it has in the cluster; set it back to trainyard",
        ),
        (
            "gcp-c3",
            "nfs",
            {"storage": {"diskType": "pd-ssd"}},
            "; a disk keeps its type, and a new one cannot have its name",
        ),
        (
            "aws-g4dn",
            "efs",
            {"cluster": {"name": "b"}},
            "replaces the cluster; set it back to trainyard-aws-g4dn, or set",
        ),
        (
            "aws-g4dn",
            "efs",
            {"storage": {"disk": "fs-12345678"}},
            "replaces the data; remove it, or set cluster.replace",
        ),
        (
            "local",
            "hostPath",
            {"cluster": {"context": "b"}},
            "replaces all that it has in the cluster; set it back to trainyard",
        ),
        (
            "local",
            "storageClass",
            {"cluster": {"context": "b"}},
            "replaces the data and all that it has in the cluster;",
        ),
        *(
            (
                "gcp-c3",
                "filestore",
                {"storage": {**FILESTORE, "sizeGib": gib}},
                "; an instance keeps the range of sizes",
            )
            for gib in (10_240, 12_800, 102_400)
        ),
        ("local", "hostPath", {"storage": {"sizeGib": 20}}, "; the claim of a folder keeps its size"),
        ("local", "storageClass", {"storage": {"sizeGib": 5}}, "; a claim does not shrink"),
    ],
    ids=str,
)
def test_a_change_that_costs_the_stack_something_is_one_line(
    stack: str, volume: str, change: dict[str, Any], expected: str
) -> None:
    before = {"storage": {**FILESTORE, "sizeGib": 1024}} if volume == "filestore" else {}
    (line,) = living.problems(config(stack, **change), built(stack, volume, **before))
    assert expected in line


def test_another_kind_of_cluster_is_one_line_and_not_one_a_key() -> None:
    (line,) = living.problems(config("gcp-c3"), built("aws-g4dn", "efs"))
    assert line.startswith(
        "cluster.kind: gke on a stack that lives with eks replaces the cluster and the data; set it back"
    )


@pytest.mark.parametrize(
    ("stack", "volume", "before", "change"),
    [
        ("gcp-c3", "nfs", {}, {}),
        ("gcp-c3", "nfs", {}, {"storage": {"sizeGib": 500}}),
        ("gcp-c3", "nfs", {}, {"nodes": {"machineType": "c3-standard-22"}}),
        ("gcp-c3", "nfs", {}, {"gke": {"zone": "us-central1-b"}, "cluster": {"replace": True}}),
        *(
            (
                "gcp-c3",
                "filestore",
                {"storage": {**FILESTORE, "sizeGib": old}},
                {"storage": {**FILESTORE, "sizeGib": new}},
            )
            for old, new in ((1024, 10_239), (1024, 100), (10_240, 102_400), (102_400, 10_240))
        ),
        # Of a newer cluster, within 7 days: EKS says whether it can.
        ("aws-g4dn", "efs", {"eks": {"version": "1.36"}}, {"eks": {"version": "1.35"}}),
        # The disk is retained: the stack continues on it.
        (
            "gcp-c3",
            "nfs",
            {"storage": {"retain": True}},
            {"storage": {"retain": False, "disk": "trainyard-gcp-c3-data"}},
        ),
        ("aws-g4dn", "efs", {}, {"eks": {"zones": ["use2-az2"]}}),
        ("aws-g4dn", "efs", {}, {"storage": {"sizeGib": 1}}),
        ("local", "storageClass", {}, {"storage": {"sizeGib": 20}}),
    ],
    ids=str,
)
def test_what_costs_nothing_or_is_asked_for_is_not_refused(
    stack: str, volume: str, before: dict[str, Any], change: dict[str, Any]
) -> None:
    assert list(living.problems(config(stack, **change), built(stack, volume, **before))) == []


@pytest.mark.parametrize(
    ("stack", "volume", "sections", "built_with"),
    [
        ("local", "hostPath", {}, {"cluster.name": "trainyard-local", "cluster.deletionProtection": True}),
        ("local", "hostPath", {}, {"storage.diskType": "pd-ssd", "storage.tier": "BASIC_SSD"}),
        ("gcp-c3", "nfs", {}, {"storage.tier": "BASIC_SSD"}),
        ("gcp-c3", "filestore", {"storage": {"kind": "filestore", "sizeGib": 1024}}, {"storage.diskType": "pd-ssd"}),
    ],
    ids=str,
)
def test_a_key_that_had_no_effect_and_is_refused_now_can_be_removed_from_a_living_stack(
    stack: str, volume: str, sections: dict[str, Any], built_with: dict[str, Any]
) -> None:
    there = {**built(stack, volume, **sections), **built_with}
    assert list(living.problems(config(stack, **sections), there)) == []


def test_a_stack_that_does_not_live_is_held_to_nothing() -> None:
    assert list(living.problems(config("gcp-c3"), {})) == []


def test_what_is_recorded_is_known_once_its_cluster_and_its_volume_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An `up` that fails before has built nothing."""
    known = set[str]()

    def note(self: living.Built, outputs: dict[str, pulumi.Output[str]]) -> None:
        outputs["values"].apply(lambda _: known.add(self._name))

    monkeypatch.setattr(living.Built, "register_outputs", note)
    record("gcp-c3", known=False)
    assert known == set()
    record("gcp-c3")
    assert known == {"cluster", "storage"}
