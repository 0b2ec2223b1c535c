"""Which changes of a living stack are refused or warned of, and in which words."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from infra import changes
from infra.clouds import CLOUDS, keys
from infra.config import ConfigError, StackConfig
from infra.effect import Replaces, marks
from infra.parse import parse
from review.recording import record
from tests.infra.recorded import changed

Sections = dict[str, dict[str, Any]]


def config(stack: str, sections: Sections) -> StackConfig:
    return parse(changed(stack, **sections), stack)


def built(stack: str, volume: str, sections: Sections) -> dict[str, Any]:
    """The values that a living stack would have recorded."""
    there = config(stack, sections)
    values = {key: there.value(key) for key in changes.recorded(there.cluster.kind)}
    return {**values, changes.VOLUME: volume}


def filestore(gib: int, tier: str = "ZONAL") -> Sections:
    return {"storage": {"kind": "filestore", "tier": tier, "sizeGib": gib}}


C3, G4, LOCAL = "gcp-c3", "aws-g4dn", "local"
CLASS: Sections = {"storage": {"kind": "storageClass"}}
REPLACE: Sections = {"cluster": {"replace": True}}
PROTECTED: Sections = {"cluster": {"deletionProtection": True}}
SHRINKS_NOT = "; a disk does not shrink, and a new one cannot have its name while it is there; set it back to 250, or"
#: Stack, kind of its volume, what it was built with beside its file, what it is changed to -> what is refused.
REFUSED: list[tuple[str, str, Sections, Sections, str]] = [
    (C3, "nfs", {}, {"gke": {"zone": "us-central1-b"}}, " replaces the cluster and the data; set it back to us-cent"),
    (C3, "given", {}, {"gke": {"zone": "us-central1-b"}}, " replaces the cluster; set it back to us-central1-a, or"),
    (C3, "nfs", {"storage": {"retain": True}}, {"gke": {"zone": "us-central1-b"}}, " replaces the cluster; set it"),
    (C3, "nfs", {}, {"gke": {"project": "other-project"}, **REPLACE}, "; what is in one project cannot be deleted by"),
    *(
        (
            *(stack, volume, PROTECTED, {"cluster": {"replace": True, "name": "other"}}),
            ", which cluster.deletionProtection protects; set it back to trainyard-",
        )
        for stack, volume in ((C3, "nfs"), (C3, "given"), (G4, "efs"))
    ),
    (C3, "nfs", {}, {"cluster": {"name": "other"}}, " replaces the cluster and the data; set it back to"),
    (C3, "nfs", {}, {"cluster": {"namespace": "b"}}, " replaces all that it has in the cluster; set it back to"),
    (C3, "nfs", {}, filestore(1024), " replaces the data; set it back to nfs, or set cluster.replace: true to lose"),
    (C3, "nfs", {}, {"storage": {"disk": "theirs"}}, "theirs on a stack that lives with nothing replaces the data;"),
    (C3, "nfs", {}, {"storage": {"diskType": "pd-ssd"}, **REPLACE}, "; a disk keeps its type, and a new one cannot"),
    (C3, "nfs", {}, {"storage": {"sizeGib": 100}, **REPLACE}, SHRINKS_NOT),
    (C3, "filestore", filestore(2560, "BASIC_SSD"), filestore(2560), "; an instance keeps its tier, and a new one"),
    (C3, "filestore", filestore(2048, "BASIC_HDD"), filestore(1024, "BASIC_HDD"), "; a basic Filestore instance only"),
    *(
        (C3, "filestore", filestore(old), filestore(new), "; an instance keeps the range of sizes that it was made in")
        for old, new in ((1024, 10_240), (10_240, 1024))
    ),
    (G4, "efs", {}, {"cluster": {"name": "b"}}, " replaces the cluster; set it back to trainyard-aws-g4dn, or set"),
    (G4, "efs", {}, {"cluster": {"namespace": "b"}}, " replaces all that it has in the cluster; set it back"),
    (G4, "efs", {}, {"storage": {"disk": "fs-12345678"}}, " replaces the data; remove it, or set cluster.replace"),
    (G4, "efs", {}, {"eks": {"region": "us-east-1", "zones": []}, **REPLACE}, "; what is in one region cannot be"),
    (G4, "efs", {}, {"eks": {"vpcCidr": "10.1.0.0/16"}, **REPLACE}, "; EKS keeps a cluster in the network that it"),
    (G4, "efs", {}, {"eks": {"secretsEncryption": False}, **REPLACE}, "; EKS takes no encryption of Secrets back"),
    (G4, "efs", {}, {"eks": {"publicNodes": True}}, "; running nodes have no public addresses"),
    (
        *(G4, "efs", {"eks": {"nodeRelease": "1.36.0-20261101"}}, {"eks": {"nodeRelease": "1.36.0-20260901"}}),
        "; EKS takes no nodes back to an older image; set it back to 1.36.0-20261101, or change it after `pulumi",
    ),
    (LOCAL, "hostPath", {}, {"cluster": {"context": "b"}}, " replaces all that it has in the cluster; set it back"),
    (LOCAL, "storageClass", {}, {"cluster": {"context": "b"}}, " replaces the data and all that it has in the"),
    (LOCAL, "storageClass", {}, {"cluster": {"namespace": "b"}}, " replaces the data and all that it has in the"),
    (LOCAL, "storageClass", CLASS, {"storage": {**CLASS["storage"], "className": "nfs"}}, " replaces the data; remove"),
    (LOCAL, "storageClass", {}, {"storage": {"accessMode": "ReadWriteMany"}}, " replaces the data; remove it, or set"),
    (LOCAL, "storageClass", {}, {"storage": {"sizeGib": 5}}, "; a claim does not shrink"),
    (LOCAL, "hostPath", {}, {"storage": {"sizeGib": 20}, **REPLACE}, "; the claim of a folder keeps its size, which"),
]  # fmt: skip


@pytest.mark.parametrize(("stack", "volume", "before", "change", "expected"), REFUSED, ids=str)
def test_a_change_that_costs_the_stack_something_is_one_line(
    stack: str, volume: str, before: Sections, change: Sections, expected: str
) -> None:
    (line,) = changes.problems(config(stack, change), built(stack, volume, before))
    assert expected in line


def test_another_kind_of_cluster_is_one_line_and_not_one_a_key() -> None:
    (line,) = changes.problems(config(C3, {}), built(G4, "efs", {}))
    assert line.startswith("cluster.kind: gke on a stack that lives with eks replaces the cluster and the data; set it")
    assert not list(changes.cautions(config(C3, {}), built(G4, "efs", {})))


#: As REFUSED, of changes that cost nothing, or are asked for.
ALLOWED: list[tuple[str, str, Sections, Sections]] = [
    (C3, "nfs", {}, {}),
    (C3, "nfs", {}, {"storage": {"sizeGib": 500}}),
    (C3, "nfs", {}, {"nodes": {"machineType": "c3-standard-22"}}),
    (C3, "nfs", {}, {"gke": {"zone": "us-central1-b"}, **REPLACE}),
    (C3, "nfs", PROTECTED, {**filestore(200), **REPLACE}),
    *((C3, "filestore", filestore(old), filestore(new)) for old, new in ((1024, 9984), (102_400, 10_240))),
    (C3, "filestore", filestore(1024, "BASIC_HDD"), filestore(2048, "BASIC_HDD")),
    # Another volume has a size, a tier and a type of its own.
    (C3, "nfs", {}, {**filestore(200), **REPLACE}),
    (C3, "filestore", filestore(3000, "BASIC_SSD"), {"storage": {"kind": "nfs", "sizeGib": 50}, **REPLACE}),
    (C3, "nfs", {}, {"storage": {"disk": "theirs", "sizeGib": 50, "diskType": "pd-ssd"}, **REPLACE}),
    # The disk is retained: the stack continues on it.
    (C3, "nfs", {"storage": {"retain": True}}, {"storage": {"retain": False, "disk": "trainyard-gcp-c3-data"}}),
    (G4, "efs", {}, {"eks": {"zones": ["use2-az2"]}}),
    (G4, "efs", {}, {"storage": {"sizeGib": 1}}),
    (G4, "efs", {"eks": {"publicNodes": True}}, {}),
    (G4, "efs", {"eks": {"nodeRelease": "1.36.0-20260901"}}, {"eks": {"nodeRelease": "1.36.0-20261101"}}),
    (G4, "efs", {}, {"eks": {"nodeRelease": "1.36.0-20261101"}}),  # `latest` is neither older nor newer
    (G4, "efs", {"eks": {"nodeRelease": "1.36.0-20261101"}}, {}),
    (G4, "efs", {"eks": {"version": "1.36"}}, {"eks": {"version": "1.35"}}),  # EKS says whether it can
    (LOCAL, "storageClass", {}, {"storage": {"sizeGib": 20}}),
]


@pytest.mark.parametrize(("stack", "volume", "before", "change"), ALLOWED, ids=str)
def test_what_costs_nothing_or_is_asked_for_is_not_refused(
    stack: str, volume: str, before: Sections, change: Sections
) -> None:
    assert list(changes.problems(config(stack, change), built(stack, volume, before))) == []


@pytest.mark.parametrize(
    ("stack", "volume", "before", "change", "expected"),
    [
        (G4, "efs", {"eks": {"version": "1.36"}}, {"eks": {"version": "1.35"}}, "eks.version: EKS takes a cluster"),
        (G4, "efs", {"eks": {"version": "1.35"}}, {"eks": {"version": "1.36"}}, ""),
        (G4, "efs", {}, {"nodes": {"max": 101}}, "nodes.max: without `pulumi up --refresh`"),
        (G4, "efs", {}, {"nodes": {"max": 100}}, ""),  # only the autoscaler's limit changes, and no group
        (G4, "efs", {"nodes": {"max": 200}}, {"nodes": {"max": 4}}, "nodes.max: without `pulumi up --refresh`"),
        (G4, "efs", {}, {"eks": {"systemNodes": 4}}, "eks.systemNodes: without `pulumi up --refresh`"),
        (G4, "efs", {}, {}, ""),
        (C3, "nfs", {}, {"nodes": {"max": 101}}, ""),  # the state has no size of GKE's pools
    ],
    ids=str,
)  # fmt: skip
def test_a_change_with_an_unexpected_effect_is_warned_of(
    stack: str, volume: str, before: Sections, change: Sections, expected: str
) -> None:
    found = list(changes.cautions(config(stack, change), built(stack, volume, before)))
    key, _, because = expected.partition(": ")
    assert len(found) == bool(expected)
    assert all(line.startswith(f"{key}: ") and because in line for line in found)


@pytest.mark.parametrize(
    ("stack", "volume", "before", "built_with"),
    [
        (LOCAL, "hostPath", {}, {"cluster.name": "trainyard-local", "cluster.deletionProtection": True}),
        (LOCAL, "hostPath", {}, {"storage.diskType": "pd-ssd", "storage.tier": "BASIC_SSD"}),
        (C3, "nfs", {}, {"storage.tier": "BASIC_SSD", "cluster.context": "theirs"}),
        (C3, "filestore", filestore(1024), {"storage.diskType": "pd-ssd"}),
    ],
    ids=str,
)
def test_a_key_that_had_no_effect_and_is_refused_now_can_be_removed_from_a_living_stack(
    stack: str, volume: str, before: Sections, built_with: dict[str, Any]
) -> None:
    assert list(changes.problems(config(stack, before), {**built(stack, volume, before), **built_with})) == []


def test_a_stack_that_does_not_live_is_held_to_nothing() -> None:
    assert list(changes.problems(config(C3, {}), {})) == []
    assert not list(changes.cautions(config(G4, {"nodes": {"max": 101}}), {})), "a first up has no old size"


def test_a_state_that_cannot_be_read_is_no_state_that_may_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise RuntimeError("no bucket")

    warned = list[str]()
    monkeypatch.setattr(changes, "read", unreachable)
    monkeypatch.setattr(pulumi, "warn", warned.append)
    with pytest.raises(ConfigError, match=r"cannot be read \(no bucket\).*; `pulumi stack export --stack gcp-c3`"):
        changes.hold(config(C3, {}), C3)
    assert (changes.hold(config(C3, REPLACE), C3), len(warned)) == ({}, 1)


def test_marks_name_parts_and_kinds_that_there_are() -> None:
    """A wrong word would refuse nothing."""
    for kind in CLOUDS:
        for key, field in keys(kind).items():
            for mark in (each for each in marks(field) if isinstance(each, Replaces)):
                parts = {part for said in (mark.parts, *mark.on.values()) if said for part in said.split(", ")}
                assert parts <= {*changes.PRECIOUS, "workers"}, key
                assert {*mark.on} <= {*CLOUDS, "storageClass"}, key


def test_what_is_recorded_is_known_once_its_cluster_and_its_volume_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An `up` that fails before has built nothing."""
    known = set[str]()

    def note(self: changes.Built, outputs: dict[str, pulumi.Output[str]]) -> None:
        outputs["values"].apply(lambda _: known.add(self._name))

    monkeypatch.setattr(changes.Built, "register_outputs", note)
    record(C3, known=False)
    assert known == set()
    record(C3)
    assert known == {"cluster", "storage"}
