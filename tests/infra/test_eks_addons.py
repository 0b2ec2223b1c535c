"""EKS's add-ons: their versions follow Kubernetes', and the network plug-in enforces policies from a pod's start."""

from __future__ import annotations

import json

import pulumi
import pytest

from infra.eks.addons import NAMES
from review import computed
from review.recording import Recording, record
from tests.infra.eks import refuse
from tests.infra.recorded import changed, recorded

STACK, EFS = "aws-g4dn", "aws-efs-csi-driver"
VERSION, CLUSTERS = "aws:eks/getAddonVersion:getAddonVersion", "aws:eks/getClusters:getClusters"
CLUSTER = "aws:eks/getCluster:getCluster"


def versions(found: Recording) -> dict[str, str | None]:
    return {item.name: item.inputs.get("addonVersion") for item in found.resources if item.kind == "Addon"}


def lives_with(patch: pytest.MonkeyPatch, version: str) -> None:
    """AWS has the stack's cluster, with a version of Kubernetes, and another's."""
    patch.setitem(computed.ANSWERS, CLUSTERS, lambda *_: {"id": "x", "names": ["theirs", f"trainyard-{STACK}"]})
    patch.setitem(computed.ANSWERS, CLUSTER, lambda given, _: {"id": "x", "name": given["name"], "version": version})


@pytest.mark.parametrize("wanted", ["1.35", "1.36"])
def test_every_add_on_is_the_one_that_eks_prefers_for_the_clusters_version(wanted: str) -> None:
    found = versions(record(STACK, changed(STACK, eks={"version": wanted})))
    assert set(found) == set(NAMES)
    assert found.pop(EFS) is None, "EKS chooses for a new cluster"
    assert set(found.values()) == {f"v{wanted}.1-eksbuild.1"}


@pytest.mark.parametrize(("before", "expected"), [("1.35", "v1.36.1-eksbuild.1"), ("1.36", None)])
def test_the_volumes_driver_moves_with_kubernetes_alone(
    monkeypatch: pytest.MonkeyPatch, before: str, expected: str | None
) -> None:
    """Its restart stops a node's mounts for a while. At a new version of Kubernetes every node is replaced anyway; at
    any other `up` a training may run."""
    lives_with(monkeypatch, before)
    assert versions(record(STACK, changed(STACK)))[EFS] == expected


@pytest.mark.parametrize("refused", [VERSION, CLUSTERS, CLUSTER])
def test_without_an_answer_add_ons_keep_their_versions_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    lives_with(monkeypatch, "1.35")

    monkeypatch.setitem(computed.ANSWERS, refused, refuse)
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
    values = json.loads(found.one("Addon", "vpc-cni").inputs["configurationValues"])
    assert values == {"enableNetworkPolicy": "true", "env": {"NETWORK_POLICY_ENFORCING_MODE": "strict"}}
    policy = found.one("NetworkPolicy", "system")
    assert policy.inputs["metadata"]["namespace"] == "kube-system"
    spec = policy.inputs["spec"]
    assert spec == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]}
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
