"""What the doctor finds out about a cluster that is there already. kubectl's answers are those of 1.32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.doctor import existing
from infra.finding import Finding
from infra.parse import parse
from tests.conftest import OFFER, write_kubeconfig


def node(architecture: str, gpus: int = 0, name: str = "node", **labels: str) -> dict[str, Any]:
    info = {"operatingSystem": "linux", "architecture": architecture}
    metadata = {"name": name, "labels": {f"nvidia.com/cuda.{key}": value for key, value in labels.items()}}
    return {
        "metadata": metadata,
        "status": {"nodeInfo": info, "allocatable": {"cpu": "8", "nvidia.com/gpu": str(gpus)}},
    }


def storage_class(name: str, default: bool = False, made: str = "2026-01-01T00:00:00Z", **more: str) -> dict[str, Any]:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {"metadata": {"name": name, "annotations": annotations, "creationTimestamp": made}, **more}


class Kubectl:
    """A program `kubectl` on PATH that answers as it is told: with a text, or None for a refusal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: dict[str, Any] = {
            "config get-contexts": "kind-kind",
            "get --raw /version": {"major": "1", "minor": "33", "gitVersion": "v1.33.4-eks-1"},
            "auth can-i create namespaces": "yes",
            "auth can-i create priorityclasses.scheduling.k8s.io": "yes",
            "auth can-i create persistentvolumes": None,
            "get nodes": {"items": [node("amd64", 4), node("arm64", 8)]},
            "get storageclasses": {"items": [storage_class("slow"), storage_class("standard", default=True)]},
        }

    def checks(self, **sections: dict[str, Any]) -> list[Finding]:
        cases = ""
        for number, (question, answer) in enumerate(self.answers.items()):
            file = self.folder / f"{number}.json"
            file.write_text(answer if isinstance(answer, str) else json.dumps(answer))
            cases += f'*"{question}"*) {f"cat {file}" if answer is not None else "exit 1"};;\n'
        program = self.folder / "kubectl"
        program.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}*) exit 1;;\nesac\n')
        program.chmod(0o755)
        return list(existing.cluster(parse({"cluster": {"context": "kind-kind"}, **sections}, "s"), "s"))

    def refused(self, level: str, **sections: dict[str, Any]) -> Finding:
        (finding,) = (item for item in self.checks(**sections) if item.level != "ok")
        assert finding.level == level
        return finding


@pytest.fixture
def kubectl(kind: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Kubectl(tmp_path)


def test_a_cluster_that_has_all_is_told_with_its_version_nodes_and_class(kubectl: Kubectl) -> None:
    assert [(item.level, item.key) for item in kubectl.checks()] == [
        ("ok", "cluster"),
        ("ok", "rights"),
        ("ok", "nodes"),
        ("ok", "storage"),
    ]
    version, _, nodes, storage = (item.text for item in kubectl.checks())
    assert version == "kind-kind answers, Kubernetes v1.33.4-eks-1"
    assert nodes == "1 linux/amd64, 1 linux/arm64"
    assert storage == "StorageClass standard; `pulumi destroy` erases the data"


@pytest.mark.parametrize(("version", "level"), [("v1.30.9", "problem"), ("v1.31.0+k3s1", None), ("", "unchecked")])
def test_a_cluster_that_is_too_old_is_told_before_its_job_is_refused(
    kubectl: Kubectl, version: str, level: str | None
) -> None:
    kubectl.answers["get --raw /version"] = {"gitVersion": version}
    first = kubectl.checks()[0]
    assert (first.key, first.level) == ("cluster", level or "ok")
    assert level != "problem" or first.text == "kind-kind has Kubernetes v1.30.9; needs 1.31 or newer"


def test_a_right_that_is_missing_is_named(kubectl: Kubectl) -> None:
    kubectl.answers["auth can-i create priorityclasses.scheduling.k8s.io"] = None
    finding = kubectl.refused("problem")
    assert finding.text.startswith("you may not create priorityclasses.scheduling.k8s.io in kind-kind;")


def test_a_folder_of_the_node_needs_the_right_to_volumes_and_no_class(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl.answers["get storageclasses"] = {"items": []}
    folder = {"kind": "hostPath", "path": "/mnt/disk"}
    assert "persistentvolumes" in kubectl.refused("problem", storage=folder).text
    kubectl.answers["auth can-i create persistentvolumes"] = "yes"
    assert {item.level for item in kubectl.checks(storage=folder)} == {"ok"}
    write_kubeconfig(tmp_path / "kind", "kind-kind", OFFER)
    assert {item.level for item in kubectl.checks()} == {"ok"}, "the node offers a folder"


def test_nodes_that_cannot_run_the_image_are_told(kubectl: Kubectl) -> None:
    kubectl.answers["get nodes"] = {"items": [node("arm64"), node("arm64")]}
    assert kubectl.refused("problem").text == "the image is built for linux/amd64; there are: 2 linux/arm64"
    kubectl.answers["get nodes"] = {"items": []}
    assert "an autoscaler" in kubectl.refused("warning").text
    kubectl.answers["get nodes"] = None
    assert kubectl.refused("unchecked").key == "nodes"


def test_accelerators_that_no_node_offers_are_told(kubectl: Kubectl) -> None:
    assert {item.level for item in kubectl.checks(workers={"gpus": 4, "processes": 4})} == {"ok"}
    finding = kubectl.refused("warning", workers={"gpus": 8, "processes": 8})
    assert "workers.gpus is 8, and no node offers more than 4" in finding.text, "arm64 has 8, of no use"


def test_the_class_of_the_shared_volume_has_to_be_there(kubectl: Kubectl) -> None:
    named = {"kind": "storageClass", "className": "fast"}
    assert kubectl.refused("problem", storage=named).text == "no StorageClass fast; there are: slow, standard"
    kubectl.answers["get storageclasses"] = {"items": [storage_class("slow"), storage_class("fast")]}
    assert {item.level for item in kubectl.checks(storage=named)} == {"ok"}
    assert kubectl.refused("problem").text == "no StorageClass is the default; there are: slow, fast"
    newer = storage_class("kept", default=True, made="2026-02-01T00:00:00Z", reclaimPolicy="Retain")
    kubectl.answers["get storageclasses"] = {"items": [newer, storage_class("old", default=True)]}
    assert kubectl.checks()[-1].text == "StorageClass kept; `pulumi destroy` keeps the data"


@pytest.mark.parametrize(
    ("names", "version", "sections", "warned"),
    [
        (["kube-proxy"], "v1.33.4", {}, True),
        (["aws-node", "kube-proxy"], "v1.33.4-eks-1", {}, True),
        (["calico-node"], "v1.33.4", {}, False),
        ([], "v1.33.4+k3s1", {}, False),
        (["kube-proxy"], "v1.33.4", {"rendezvous": {"tls": True}}, False),
        (None, "v1.33.4", {}, False),
    ],
)
def test_a_rendezvous_that_every_pod_reaches_is_warned_of(
    kubectl: Kubectl, names: list[str] | None, version: str, sections: dict[str, Any], warned: bool
) -> None:
    kubectl.answers["get --raw /version"] = {"gitVersion": version}
    kubectl.answers["get daemonsets"] = None if names is None else "\n".join(f"daemonset.apps/{name}" for name in names)
    found = [item for item in kubectl.checks(**sections) if item.key == "rendezvous"]
    assert [item.level for item in found] == ["warning"] * warned
