"""Finds out what a change of each key does to a living stack: changes it in a recorded stack and follows the change
through the graph (tests/standin/changes.py). `python -m tests.infra.live [SECTION]` prints infra/live.yaml's table."""

from __future__ import annotations

import copy
import sys
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock

import yaml

from infra.clouds import keys
from infra.config import ConfigError
from infra.living import value_of
from infra.parse import parse
from infra.stackfiles import stack_file_values
from review import snapshot
from review.recording import Alter, record_anywhere
from review.snapshot import content
from tests.standin.changes import DELETED, REPLACED, Change, follow

Values = dict[str, Any]
DIGEST = f"image@sha256:{'0' * 64}"
PREBUILT = {"image": {"builder": "prebuilt", "ref": DIGEST}, "storage": {"serverImage": DIGEST}}
FILESTORE = {"storage": {"kind": "filestore", "sizeGib": 2560}}
#: Kind of cluster, or of volume where that matters -> the stack whose keys are changed, and changes to make first.
STACKS: dict[str, tuple[str, Values]] = {
    "existing": ("local", {}),
    "storageClass": ("local", {"storage": {"kind": "storageClass"}}),
    "gke": ("gcp-a100", {}),
    "filestore": ("gcp-a100", FILESTORE),
    "eks": ("aws-g4dn", {}),
}
#: Entry of STACKS -> its kind of cluster.
KINDS = {kind: {"storageClass": "existing", "filestore": "gke"}.get(kind, kind) for kind in STACKS}
#: Keys whose effect may depend on the kind of cluster (ON_ALL) and of volume (ON_VOLUMES). Others: one stack only.
ON_ALL = ("cluster.", "gke.", "eks.", "nodes.", "workers.", "storage.", "image.")
ON_VOLUMES = (
    *("cluster.context", "cluster.namespace", "cluster.name", "gke.project", "gke.zone", "storage."),
    *("workers.nodeSelector", "workers.tolerations"),
)
#: Beginning of a key -> values to set first, where the file's values forbid a change of the key or hide its effect.
BEFORE: dict[str, Values] = {
    "check.": {"check": {"enabled": True}},
    # The only model that both tasks take, with windows that are long enough for a question.
    "training.task": {
        "workers": {"memoryGib": 8},
        "dataset": {"tokenizer": ""},
        "training": {"model": {"preset": "", "name": "gpt2"}, "sequenceLength": 384, "tokensPerStep": 6144},
    },
    "training.distillation.teacher": {"dataset": {"tokenizer": ""}},
    "training.model.name": {
        "workers": {"memoryGib": 8},
        "dataset": {"tokenizer": ""},
        "training": {"model": {"preset": ""}},
    },
    "training.engine.zeroStage": {"training": {"engine": {"name": "deepspeed"}}},
    "training.questionAnswering.": {
        "dataset": {"tokenizer": ""},
        "training": {
            "task": "question_answering",
            "model": {"preset": ""},
            "sequenceLength": 384,
            "tokensPerStep": 6144,
        },
    },
    "workers.spares": {"workers": {"count": 1}},
    "secrets.wandbApiKey": {
        "workers": {"environment": {"WANDB_MODE": "offline"}},
        "training": {"metrics": {"wandbProject": "a"}},
    },
    "eks.region": {"eks": {"zones": []}},
    "eks.zones": {"eks": {"zones": ["use2-az2", "use2-az1"]}},
    "nodes.machineType": {"nodes": {"localSsds": None, "alternatives": []}},
    "nodes.fallback": {"nodes": {"consumption": "spot"}},
    "eks.efaPlugin": {"nodes": {"machineType": "g4dn.8xlarge", "alternatives": [], "efa": True}},
    "nodes.efa": {"nodes": {"machineType": "g4dn.8xlarge", "alternatives": []}},
    "nodes.reservation": {"nodes": {"consumption": "reservation", "reservation": "a"}},
    "nodes.threadsPerCore": {"nodes": {"machineType": "c3-highmem-8", "localSsds": None}},
    "storage.kind": {"storage": {"sizeGib": 2560}},
    "storage.className": {"storage": {"className": "a"}},
    "storage.path": {"storage": {"kind": "hostPath", "path": "/a"}},
    "storage.serverImage": PREBUILT,
    "image.torch": {"image": {"torch": "cuda"}},
    "image.insecure": {"image": {"registry": "registry.example"}},
    "image.ref": PREBUILT,
}
#: Other values of a key, where its type gives none; the first that the stack accepts is used.
OTHER: dict[str, tuple[Any, ...]] = {
    # Another kind and another file: this module does not find out their effect.
    "cluster.kind": (),
    "cluster.kubeconfig": (),
    "cluster.dns": (["10.96.0.10"],),
    "dataset.privateServers": (["10.0.0.10"],),
    "gke.zone": ("us-central1-b",),
    "gke.noUpgradesSince": ("2026-10-01T00:00:00Z",),
    "gke.systemMachineType": ("e2-standard-2", "e2-standard-8"),
    "eks.region": ("us-east-1",),
    "eks.zones": (["use2-az1", "use2-az2", "use2-az3"],),
    "eks.nodeRelease": ("1.36.9-20260101",),
    "eks.logs": (["audit"],),
    "eks.viewers": (["arn:aws:iam::123456789012:role/ops"],),
    "eks.apiAllowedCidrs": (["1.2.3.4/32"],),
    "eks.admins": (["arn:aws:iam::123456789012:role/ops"],),
    "eks.systemMachineType": ("m6i.xlarge",),
    "eks.vpcCidr": ("10.1.0.0/16",),
    "nodes.machineType": ("a2-highgpu-4g", "g4dn.2xlarge"),
    "nodes.alternatives": (["g4dn.4xlarge"],),
    "nodes.zones": (["us-central1-b"], ["us-central1-c"]),
    "nodes.localSsds": (8, 0),
    "workers.environment": ({"A": "b"},),
    "workers.nodeSelector": ({"a": "b"},),
    "workers.tolerations": (["a=b:NoSchedule"],),
    "storage.kind": ("filestore", "storageClass", "hostPath"),
    "storage.disk": ("fs-0123456789abcdef0",),
    "storage.serverImage": (f"other@sha256:{'0' * 64}",),
    "secrets.imagePull": ("you:token",),
    "image.ref": (f"other@sha256:{'0' * 64}",),
    "eks.efaPlugin": (f"other@sha256:{'0' * 64}",),
    "storage.accessMode": ("ReadWriteMany",),
    "training.model.preset": ("tiny",),
    "training.model.name": ("gpt2",),
}


def laid_over(values: Values, change: Values) -> Values:
    found = copy.deepcopy(values)
    for key, value in change.items():
        inner = found.get(key)
        found[key] = laid_over(inner if isinstance(inner, dict) else {}, value) if isinstance(value, dict) else value
    return found


def stack_values(kind: str, key: str) -> Values:
    """The values of a kind's stack before the change of a key."""
    stack, change = STACKS[kind]
    values = laid_over(stack_file_values(stack), change)
    for start, change in BEFORE.items():
        if key.startswith(start):
            values = laid_over(values, change)
    return values


def changed_values(kind: str, key: str, field: Any) -> Values | None:
    """The values with another value under a key; None: a stack of this kind has no such key."""
    stack, values = STACKS[kind][0], stack_values(kind, key)
    try:
        before = value_of(parse(values, stack), key)
    except ConfigError:
        return None
    for value in others(key, field, before):
        change: Any = value
        for part in reversed(key.split(".")):
            change = {part: change}
        candidate = laid_over(values, change)
        try:
            if value_of(parse(candidate, stack), key) != before:
                return candidate
        except ConfigError:
            continue
    return None


def others(key: str, field: Any, before: Any) -> Iterator[Any]:
    """Values that a key might take, the likeliest first."""
    if key in OTHER:
        yield from OTHER[key]
        return
    for part in (field.annotation, *typing.get_args(field.annotation)):
        if typing.get_origin(part) is typing.Literal:
            yield from typing.get_args(part)
    match before:
        case bool():
            yield not before
        case int() | float():
            yield from (before * 2, before + 1, max(1, before // 2))
        case str():
            yield f"{before}2"
        case list():
            yield [*before, "a"]
    yield from (True, 3, "other", ["a"], {"compile": True})


def seen(stack: str, values: Values, alter: Alter | None = None) -> dict[str, Any]:
    """What a stack declares, with the hashes in its names: another hash is another Job."""
    with mock.patch.object(snapshot, "_HASHES", snapshot._HASHES[-1:]):  # mask only the kubeconfig's folder
        return content(record_anywhere(stack, values, alter))


@cache
def base(kind: str, text: str) -> dict[str, Any]:
    return seen(STACKS[kind][0], yaml.safe_load(text))


def derived(kind: str, key: str, field: Any) -> str:
    """What a change of a key does; "": a stack of this kind has no such key."""
    after = changed_values(kind, key, field)
    if after is None:
        return ""
    stack = STACKS[kind][0]
    before = base(kind, yaml.safe_dump(stack_values(kind, key)))
    there, changes = follow(before, lambda alter: seen(stack, after, alter))
    assert_each_object_keeps_its_owner(before["resources"], there["resources"])
    made = any(title.startswith(VOLUME) for title in before["resources"])
    return effect(changes, claimed=not made)


#: Parts of a stack, the most precious first -> beginnings of "TYPE NAME".
PARTS = {
    "cluster": ("gcp:container/cluster:Cluster ", "aws:eks/cluster:Cluster "),
    "data": ("gcp:compute/disk:Disk data", "gcp:filestore/instance:Instance ", "aws:efs/fileSystem:FileSystem "),
    "network": ("gcp:compute/network:Network ", "aws:ec2/vpc:Vpc "),
    "system": ("gcp:container/nodePool:NodePool system", "aws:eks/nodeGroup:NodeGroup system"),
    "workers": ("gcp:container/nodePool:NodePool workers", "aws:eks/nodeGroup:NodeGroup workers"),
    "objects": ("kubernetes:core/v1:Namespace trainyard",),
    "volume": ("kubernetes:core/v1:PersistentVolume trainyard-",),
    "dataset Job": ("kubernetes:batch/v1:Job dataset",),
    "training Job": ("kubernetes:batch/v1:Job training",),
}
VOLUME, CLAIM = "kubernetes:core/v1:PersistentVolume trainyard-", "kubernetes:core/v1:PersistentVolumeClaim data"


def effect(changes: list[Change], claimed: bool) -> str:
    """The changes in the words of infra/live.yaml. `claimed`: a StorageClass makes the volume, and removes it with the
    claim."""
    gone = [change.resource for change in changes if change.operation in (REPLACED, DELETED)]
    rolled = [change.resource for change in changes if change.rolls]
    starts = {**PARTS, "data": (*PARTS["data"], CLAIM)} if claimed else PARTS
    replaced, rolls = (
        [part for part in starts if any(title.startswith(starts[part]) for title in titles)]
        for titles in (gone, rolled)
    )
    if "cluster" in replaced:
        replaced = [part for part in replaced if part in ("cluster", "data")]
    if "objects" in replaced:
        replaced = [part for part in replaced if part in ("data", "objects")]
    rolls = [part for part in rolls if part not in replaced and "cluster" not in replaced]
    said = [f"{verb} {', '.join(parts)}" for verb, parts in (("replaces", replaced), ("rolls", rolls)) if parts]
    return "; ".join(said) or ("in place" if changes else "nothing")


#: The kinds whose deletion Pulumi does not wait for with pulumi.com/skipAwait; they stay until their pods are gone
#: (pulumi-kubernetes 4.34.2, provider/pkg/metadata/overrides.go, allowsSkipAwaitWithDelete).
NOT_AWAITED = {
    *("Namespace", "Pod", "ReplicationController", "DaemonSet", "Deployment", "StatefulSet", "Job"),
}


def owners(resources: dict[str, Any]) -> dict[str, str]:
    """Kubernetes object -> the resource that declares it. Raises AssertionError where two declare one."""
    found: dict[str, str] = {}
    for title, entry in resources.items():
        inputs = entry.get("inputs", {})
        described = inputs.get("metadata") or {}
        # A patch owns some fields of another's object; without a name, Pulumi makes one up.
        if title.startswith("kubernetes:") and not title.split()[0].endswith("Patch") and "name" in described:
            group = inputs["apiVersion"].rpartition("/")[0]
            name = f"{group}/{inputs['kind']} {described.get('namespace', '')}/{described['name']}"
            # A URN has its parent's type, and not the name.
            owner = f"{title} of {str(entry.get('parent')).partition(' ')[0]}"
            assert name not in found, f"{owner} and {found[name]} are one object: {name}"
            found[name] = owner
            notes = described.get("annotations", {})
            if inputs["kind"] in NOT_AWAITED and notes.get("pulumi.com/skipAwait") == "true":
                gone = notes.get("pulumi.com/deletionPropagationPolicy") == "background"
                assert gone, f"{owner}: nobody waits for its end, so a successor may meet it"
    return found


def assert_each_object_keeps_its_owner(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Otherwise the new owner meets the old one's object, and the old one then deletes the new one's."""
    old, new = owners(before), owners(after)
    moved = {name: (old[name], new[name]) for name in old.keys() & new.keys() if old[name] != new[name]}
    assert not moved, f"objects with another owner: {moved}"


def effects(key: str, field: Any) -> dict[str, str]:
    """What a change of a key does, by kind of cluster or volume."""
    kinds = [kind for kind in STACKS if key.startswith(ON_VOLUMES) or kind in ("existing", "gke", "eks")]
    kinds = kinds if key.startswith(ON_ALL) else ["existing"]
    return {kind: said for kind in kinds if (said := derived(kind, key, field))}


def table(start: str = "") -> dict[str, Any]:
    found = {key: effects(key, field) for key, field in keys().items() if key.startswith(start)}
    return {key: next(iter(said.values()), "?") if len({*said.values()}) < 2 else said for key, said in found.items()}


if __name__ == "__main__":
    print(yaml.safe_dump(table(*sys.argv[1:]), sort_keys=False, width=120))
