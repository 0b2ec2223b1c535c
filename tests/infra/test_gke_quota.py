"""A project's quotas against a server that answers as Google's APIs do: what is free, what is needed, how to ask."""

from __future__ import annotations

import pytest

from tests.fixtures_google import CLUSTER, PROJECT, REGION, ZONE, Cloud, config, found, only


def test_too_little_quota_names_amount_and_command(cloud: Cloud) -> None:
    cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"][0].update(limit=16, usage=8)
    finding = only(found("problem"))
    assert finding.key == "quota NVIDIA_A100_GPUS"
    assert finding.text == "8 of 16 free in us-central1, 16 are needed"
    assert "--quota-id NVIDIA-A100-GPUS-per-project-region --preferred-value 24" in finding.fix
    assert "--dimensions=region=us-central1" in finding.fix


def test_the_quota_of_all_regions_counts_too(cloud: Cloud) -> None:
    cloud.answers[f"/compute/projects/{PROJECT}"]["quotas"][0].update(limit=8)
    finding = only(found("problem"))
    assert finding.key == "quota GPUS_ALL_REGIONS"
    assert "--quota-id GPUS-ALL-REGIONS-per-project --preferred-value 16" in finding.fix


@pytest.mark.parametrize("hours", [24, 168])
def test_a_node_that_is_had_for_a_week_at_most_takes_either_quota(cloud: Cloud, hours: int) -> None:
    """(cloud.google.com/compute/docs/instances/limit-vm-runtime)"""
    regional = cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"]
    regional[0].update(limit=0)
    stack = config(nodes={"maxRunHours": hours})
    assert only(found("unchecked", stack)).key == "quota PREEMPTIBLE_NVIDIA_A100_GPUS"
    regional.append({"metric": "PREEMPTIBLE_NVIDIA_A100_GPUS", "limit": 16, "usage": 0})
    assert found("problem", stack) == []
    assert only(found("problem", config(nodes={"maxRunHours": 200}))).key == "quota NVIDIA_A100_GPUS"


@pytest.mark.parametrize("mode", ["flex_start", "queued"])
def test_these_modes_take_the_preemptible_quota(cloud: Cloud, mode: str) -> None:
    assert only(found("unchecked", config(nodes={"consumption": mode}))).key == "quota PREEMPTIBLE_NVIDIA_A100_GPUS"


def test_spot_takes_the_preemptible_quotas_that_a_project_has_and_else_the_standard_ones(cloud: Cloud) -> None:
    """(docs.cloud.google.com/compute/docs/instances/spot#quotas, 2026-03-19)"""
    regional = cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"]
    stack = config(nodes={"consumption": "spot"})
    preemptible = [{"metric": f"PREEMPTIBLE_{name}", "limit": 0, "usage": 0} for name in ("NVIDIA_A100_GPUS", "CPUS")]
    regional += preemptible
    assert found("problem", stack) + found("unchecked", stack) == []
    for quota, limit in zip(preemptible, (8, 96), strict=True):
        quota["limit"] = limit
    assert [(item.key, item.text) for item in found("problem", stack)] == [
        ("quota PREEMPTIBLE_NVIDIA_A100_GPUS", "8 of 8 free in us-central1, 16 are needed"),
        ("quota PREEMPTIBLE_CPUS", "96 of 96 free in us-central1, 192 are needed"),
    ]
    assert found("problem") == [], "on demand takes the others"
    cloud.answers[f"/compute/projects/{PROJECT}"]["quotas"][0].update(limit=0)
    assert "quota GPUS_ALL_REGIONS" in [item.key for item in found("problem", stack)]


def test_two_pools_that_share_a_quota_need_it_together(cloud: Cloud) -> None:
    """N1 and the system pool's E2 both count against CPUS."""
    regional = cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"]
    regional.append({"metric": "NVIDIA_T4_GPUS", "limit": 2, "usage": 0})
    next(item for item in regional if item["metric"] == "CPUS")["limit"] = 27
    stack = config(nodes={"machineType": "n1-standard-8"}, training={"precision": "fp16"})
    texts = {item.key: item.text for item in found("problem", stack)}
    assert texts["quota CPUS"] == "27 of 27 free in us-central1, 28 are needed"


def test_a_reservation_needs_no_quota_of_its_own(cloud: Cloud) -> None:
    cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"][0].update(limit=0)
    assert found("problem", config(nodes={"consumption": "reservation", "reservation": "mine"})) == []


def test_filestores_own_quota_cannot_be_seen_and_that_is_said(cloud: Cloud) -> None:
    cloud.answers[f"/serviceusage/projects/{PROJECT}/services:batchGet"]["services"].append(
        {"name": "projects/1/services/file.googleapis.com", "state": "ENABLED"}
    )
    stack = config(storage={"kind": "filestore", "sizeGib": 1024})
    assert only(found("unchecked", stack)).text.endswith("1024 GiB ZONAL are needed")
    assert found("problem", stack) + found("warning", stack) == []


def test_processors_have_a_quota_too(cloud: Cloud) -> None:
    stack = config(nodes={"machineType": "c3-highmem-8", "max": 3}, workers={"count": 3})
    cloud.answers[f"/compute/projects/{PROJECT}/zones/{ZONE}/machineTypes/c3-highmem-8"] = {}
    cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"].append(
        {"metric": "C3_CPUS", "limit": 8, "usage": 0}
    )
    assert only(found("problem", stack)).text == "8 of 8 free in us-central1, 24 are needed"


def test_a_stack_that_is_up_counts_as_used_by_itself_so_nothing_is_compared(cloud: Cloud) -> None:
    cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"][0].update(limit=16, usage=16)
    assert only(found("problem")).key == "quota NVIDIA_A100_GPUS"
    cloud.answers[CLUSTER] = {"resourceLabels": {"stack": "other"}}
    assert only(found("problem")).key == "quota NVIDIA_A100_GPUS", "somebody else's"
    cloud.answers[CLUSTER] = {"resourceLabels": {"app": "trainyard", "stack": "gcp-a100"}}
    assert found("problem") == []
    assert only(found("unchecked")).text.startswith("stack gcp-a100 is up")
