"""The doctors hold the accelerators' driver to the image's torch before nodes are paid for."""

from __future__ import annotations

from typing import Any

import pytest

from infra.doctor import driver
from infra.doctor.finding import Finding
from infra.eks.doctor import machines
from infra.parse import parse
from tests.fixtures_google import DRIVERS, IMAGES, PROJECT, ZONE, Cloud, config, drivers, found, only

REF = f"registry.example/trainer@sha256:{'0' * 64}"
PREBUILT: dict[str, Any] = {"image": {"builder": "prebuilt", "ref": REF}, "storage": {"serverImage": REF}}


def told(level: Any, **changes: dict[str, Any]) -> list[Finding]:
    return [item for item in found(level, config(**changes)) if item.subject == driver.SUBJECT]


def test_the_image_s_cuda_is_that_of_its_lock() -> None:
    cuda = driver.image_cuda(config())
    assert cuda
    assert f"\ncuda-toolkit=={cuda}." in driver.LOCK.read_text()
    assert driver.image_cuda(config(**PREBUILT)) is None


def test_gke_s_driver_is_found_by_channel_image_and_accelerator(cloud: Cloud) -> None:
    latest = only(told("ok"))
    assert latest.text.startswith(
        "GKE 1.35.0-gke.1171000 installs (LATEST) 590.48.01; torch in the image, for CUDA 13."
    )
    assert "(DEFAULT) 580.126.20" in only(told("ok", nodes={"gpuDriverVersion": "DEFAULT"})).text
    assert "(DEFAULT) 580.126.20" in only(told("ok", nodes={"gpuDriver": "daemonset"})).text
    assert told("ok", **PREBUILT) == []


def test_an_old_driver_of_gke_is_a_problem_with_the_key_that_changes_it(cloud: Cloud) -> None:
    cloud.answers[DRIVERS] = drivers(NVIDIA_TESLA_A100=("550.90.07", "570.133.20"))
    channel = only(told("problem"))
    assert "(LATEST) 570.133.20; torch in the image" in channel.text
    assert "needs 580 or newer" in channel.text
    assert channel.fix == "pulumi config set --path gke.releaseChannel RAPID"
    assert "nodes.gpuDriverVersion LATEST" in only(told("problem", nodes={"gpuDriverVersion": "DEFAULT"})).fix
    assert "nodes.gpuDriver managed" in only(told("problem", nodes={"gpuDriver": "daemonset"})).fix


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        (IMAGES, {"entries": []}, "no 1.35.0-gke.1171000"),
        (IMAGES, {"other": 1}, "has another form"),
        (IMAGES, (503, ""), "HTTP 503"),
        (DRIVERS, (404, ""), "HTTP 404"),
        (DRIVERS, drivers(NVIDIA_L4=("580.1", "580.1")), "no LATEST driver for nvidia-tesla-a100"),
        (f"/container/projects/{PROJECT}/locations/{ZONE}/serverConfig", (403, {"error": {"message": "no"}}), "no;"),
    ],
)
def test_what_google_does_not_say_is_left_to_the_node_check(cloud: Cloud, path: str, answer: Any, reason: str) -> None:
    cloud.answers[path] = answer
    finding = only(told("unchecked"))
    assert reason in finding.text
    assert "check.enabled" in finding.text
    default = only(told("warning", nodes={"gpuDriverVersion": "DEFAULT"}))
    assert "nodes.gpuDriverVersion LATEST" in default.fix


@pytest.mark.parametrize(
    ("release", "level"), [("latest", "ok"), ("1.36.0-20260714", "ok"), ("1.36.0-20260707", "warning")]
)
def test_eks_s_driver_follows_from_the_date_of_the_nodes_image(release: str, level: str) -> None:
    values: dict[str, Any] = {
        "cluster": {"kind": "eks"},
        "eks": {"region": "us-east-1", "apiAllowedCidrs": ["203.0.113.0/25"], "nodeRelease": release},
        "nodes": {"machineType": "g4dn.xlarge", "max": 4},
        "storage": {"kind": "efs"},
        "training": {"precision": "fp16"},
    }
    finding = only(list(machines.driver(parse(values, "aws-g4dn"))))
    assert finding.level == level
    assert "580.159.03" in finding.text
    assert level == "ok" or finding.fix.endswith("eks.nodeRelease latest")
