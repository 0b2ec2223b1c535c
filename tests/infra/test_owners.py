"""A change moves no Kubernetes object from one resource to another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from review.recording import Recorded, record_anywhere
from tests.infra.recorded import changed, recorded

#: The kinds whose deletion Pulumi does not wait for with pulumi.com/skipAwait; they stay until their pods are gone
#: (pulumi-kubernetes 4.34.2, provider/pkg/metadata/overrides.go, allowsSkipAwaitWithDelete).
NOT_AWAITED = {
    *("Namespace", "Pod", "ReplicationController", "DaemonSet", "Deployment", "StatefulSet", "Job"),
}


def owners(resources: Iterable[Recorded]) -> dict[str, str]:
    """Kubernetes object -> the resource that declares it. Raises AssertionError where two declare one."""
    found: dict[str, str] = {}
    for item in resources:
        described = item.inputs.get("metadata") or {}
        # A patch owns some fields of another's object; without a name, Pulumi makes one up.
        if item.type.startswith("kubernetes:") and not item.type.endswith("Patch") and "name" in described:
            group = item.inputs["apiVersion"].rpartition("/")[0]
            name = f"{group}/{item.inputs['kind']} {described.get('namespace', '')}/{described['name']}"
            # A URN has the types of the parents, and not their names.
            owner = "::".join(item.urn.split("::")[2:])
            assert name not in found, f"{owner} and {found[name]} are one object: {name}"
            found[name] = owner
            notes = described.get("annotations", {})
            if item.inputs["kind"] in NOT_AWAITED and notes.get("pulumi.com/skipAwait") == "true":
                gone = notes.get("pulumi.com/deletionPropagationPolicy") == "background"
                assert gone, f"{owner}: nobody waits for its end, so a successor may meet it"
    return found


def assert_each_object_keeps_its_owner(before: Iterable[Recorded], after: Iterable[Recorded]) -> None:
    """Otherwise the new owner meets the old one's object, and the old one then deletes the new one's."""
    old, new = owners(before), owners(after)
    moved = {name: (old[name], new[name]) for name in old.keys() & new.keys() if old[name] != new[name]}
    assert not moved, f"objects with another owner: {moved}"


@pytest.mark.parametrize(
    ("stack", "change"),
    [
        ("gcp-a100", {"storage": {"kind": "filestore", "sizeGib": 2560}}),
        ("gcp-a100", {"nodes": {"consumption": "spot"}}),
        ("local", {"storage": {"kind": "storageClass"}}),
        ("local", {"workers": {"count": 1, "min": 1, "spares": 1}, "dataset": {"documents": "lines"}}),
        ("local", {"rendezvous": {"tls": True}, "job": {"runtime": "trainjob"}, "training": {"steps": 700}}),
        ("aws-g4dn", {"eks": {"gpuMetrics": True}, "tensorboard": {"enabled": False}}),
    ],
    ids=str,
)
def test_each_object_keeps_its_owner(stack: str, change: dict[str, dict[str, Any]]) -> None:
    """Both directions: one resource declares an object before and after."""
    after = record_anywhere(stack, changed(stack, **change))
    assert_each_object_keeps_its_owner(recorded(stack).resources, after.resources)
