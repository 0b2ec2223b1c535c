"""EKS's add-ons: their versions follow Kubernetes', and the network plug-in enforces policies from a pod's start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
import pytest

from infra.clouds import CLOUDS
from infra.eks.addons import NAMES
from review.recording import Recording, record
from tests.infra.eks import NoCredentials, refuse
from tests.infra.recorded import changed, recorded

STACK, EFS = "aws-g4dn", "aws-efs-csi-driver"
VERSION, CLUSTERS = "aws:eks/getAddonVersion:getAddonVersion", "aws:eks/getClusters:getClusters"
ADDON = "aws:eks/getAddon:getAddon"


def versions(found: Recording) -> dict[str, str | None]:
    return {item.name: item.inputs.get("addonVersion") for item in found.resources if item.kind == "Addon"}


class NotThere(NoCredentials):
    def details(self) -> str:
        return "reading EKS Add-On (x:aws-efs-csi-driver): couldn't find resource"


def lives_with(patch: pytest.MonkeyPatch, version: str | None, there: bool = True) -> None:
    """AWS has the stack's cluster, whose driver was chosen for a version of Kubernetes, and another's cluster."""

    def driver(given: Mapping[str, Any], _: str) -> dict[str, Any]:
        if not there:
            raise NotThere
        return {"id": "x", **given, "tags": {"kubernetes-version": version} if version else {}}

    patch.setitem(CLOUDS["eks"].answers, CLUSTERS, lambda *_: {"id": "x", "names": ["theirs", f"trainyard-{STACK}"]})
    patch.setitem(CLOUDS["eks"].answers, ADDON, driver)


def test_every_add_on_is_the_one_that_eks_prefers_for_the_clusters_version() -> None:
    found = versions(record(STACK, changed(STACK, eks={"version": "1.35"})))
    assert set(found) == set(NAMES)
    assert found.pop(EFS) is None, "EKS chooses for a new cluster"
    assert set(found.values()) == {"v1.35.1-eksbuild.1"}


@pytest.mark.parametrize(
    ("before", "expected"), [("1.35", "v1.36.1-eksbuild.1"), (None, "v1.36.1-eksbuild.1"), ("1.36", None)]
)
def test_the_volumes_driver_moves_with_kubernetes_alone(
    monkeypatch: pytest.MonkeyPatch, before: str | None, expected: str | None
) -> None:
    """Its restart stops a node's mounts for a while. At a new version of Kubernetes every node is replaced anyway; at
    any other `up` a training may run.

    The cluster's own version says nothing: EKS may have raised it by itself, or an `up` that broke before the driver.
    """
    lives_with(monkeypatch, before)
    found = record(STACK, changed(STACK))
    assert versions(found)[EFS] == expected
    driver = found.one("Addon", EFS)
    assert driver.inputs["tags"] == {"kubernetes-version": "1.36"}
    assert driver.ignore_changes == (() if expected else ("tags",))


def test_a_first_up_that_broke_before_the_driver_leaves_its_version_to_eks(monkeypatch: pytest.MonkeyPatch) -> None:
    lives_with(monkeypatch, None, there=False)
    found = versions(record(STACK, changed(STACK)))
    assert found.pop(EFS) is None
    assert set(found.values()) == {"v1.36.1-eksbuild.1"}


@pytest.mark.parametrize("refused", [VERSION, CLUSTERS, ADDON])
def test_without_an_answer_add_ons_keep_their_versions_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    warned: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", warned.append)
    lives_with(monkeypatch, "1.35")

    monkeypatch.setitem(CLOUDS["eks"].answers, refused, refuse)
    assert set(versions(record(STACK, changed(STACK))).values()) == {None}
    assert [line for line in warned if "for the add-ons' versions for 1.36; they keep theirs" in line]


def test_a_drift_check_asks_for_no_newer_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_KEEP_NODE_RELEASES", "true")
    assert set(versions(record(STACK, changed(STACK))).values()) == {None}


def test_each_namespace_with_pods_has_a_policy_for_all_of_them() -> None:
    """In strict mode a pod that no policy selects reaches nothing. What comes before it: test_order.py."""
    found = recorded(STACK)
    pods = [item for item in found.resources if item.type.startswith("kubernetes:") and "template" in str(item.inputs)]
    spaces = {item.inputs["metadata"]["namespace"] for item in pods if "namespace" in item.inputs.get("metadata", {})}
    covered = {
        item.inputs["metadata"]["namespace"]
        for item in found.all("kubernetes:networking.k8s.io/v1:NetworkPolicy")
        if item.inputs["spec"]["podSelector"] == {}
    }
    assert spaces <= covered
