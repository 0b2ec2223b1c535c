"""EKS's add-ons: their versions follow Kubernetes', and the network plug-in enforces policies from a pod's start."""

from __future__ import annotations

import pulumi
import pytest

from infra.clouds import CLOUDS
from infra.eks.addons import NAMES
from review.recording import Recording, record
from tests.infra.eks import refuse
from tests.infra.recorded import changed, recorded

STACK, EFS = "aws-g4dn", "aws-efs-csi-driver"
VERSION = "aws:eks/getAddonVersion:getAddonVersion"


def versions(found: Recording) -> dict[str, str | None]:
    return {item.name: item.inputs.get("addonVersion") for item in found.resources if item.kind == "Addon"}


@pytest.mark.parametrize("wanted", ["1.35", "1.36"])
def test_every_add_on_is_the_one_that_eks_prefers_for_the_clusters_version(wanted: str) -> None:
    found = versions(record(STACK, changed(STACK, eks={"version": wanted})))
    assert set(found) == set(NAMES)
    assert set(found.values()) == {f"v{wanted}.1-eksbuild.1"}


def test_without_an_answer_add_ons_keep_their_versions_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    monkeypatch.setitem(CLOUDS["eks"].answers, VERSION, refuse)
    assert set(versions(record(STACK, changed(STACK))).values()) == {None}
    assert [line for line in warned if "for the add-ons' versions for 1.36; they keep theirs" in line]


def test_a_drift_check_asks_for_no_newer_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_KEEP_NODE_RELEASES", "true")
    assert set(versions(record(STACK, changed(STACK))).values()) == {None}


@pytest.mark.parametrize("stack", [STACK, "aws-smoke"])
def test_policies_hold_from_a_pods_first_packet_and_system_pods_start_under_them(stack: str) -> None:
    """In strict mode a pod that no policy selects reaches nothing: without one, CoreDNS and the EFS driver, for whose
    pods EKS waits, would never be ready."""
    found = recorded(stack)
    policy = found.one("NetworkPolicy", "system")
    for name in ("coredns", EFS):
        assert policy.urn in found.earlier(found.one("Addon", name))
    groups = [item.urn for item in found.resources if item.kind == "NodeGroup"]
    assert not set(groups) & set(found.earlier(policy)), "it needs no node, and CoreDNS waits for it"
    # Each namespace with pods of ours has a policy for all of them.
    pods = [item for item in found.resources if item.type.startswith("kubernetes:") and "template" in str(item.inputs)]
    spaces = {item.inputs["metadata"]["namespace"] for item in pods if "namespace" in item.inputs.get("metadata", {})}
    covered = {
        item.inputs["metadata"]["namespace"]
        for item in found.all("kubernetes:networking.k8s.io/v1:NetworkPolicy")
        if item.inputs["spec"]["podSelector"] == {}
    }
    assert spaces <= covered
