"""A project's quotas against a server that answers as Google's APIs do: what is free, what is needed, how to ask."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures_google import CLUSTER, INSTANCES, PROJECT, REGION, ZONE, Cloud, config, found, only, quotas


def test_too_little_quota_names_amount_and_command(cloud: Cloud) -> None:
    cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"][0].update(limit=16, usage=8)
    finding = only(found("problem"))
    assert finding.subject == "quota NVIDIA_A100_GPUS"
    assert finding.text == "8 of 16 free in us-central1, 16 are needed"
    assert "--quota-id NVIDIA-A100-GPUS-per-project-region --preferred-value 24" in finding.fix
    assert "--dimensions=region=us-central1" in finding.fix


def test_the_quota_of_all_regions_counts_too(cloud: Cloud) -> None:
    cloud.answers[f"/compute/projects/{PROJECT}"]["quotas"][0].update(limit=8)
    finding = only(found("problem"))
    assert finding.subject == "quota GPUS_ALL_REGIONS"
    assert "--quota-id GPUS-ALL-REGIONS-per-project --preferred-value 16" in finding.fix


@pytest.mark.parametrize("hours", [24, 168])
def test_a_node_that_is_had_for_a_week_at_most_takes_either_quota(cloud: Cloud, hours: int) -> None:
    """(cloud.google.com/compute/docs/instances/limit-vm-runtime)"""
    regional = cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"]
    regional[0].update(limit=0)
    stack = config(nodes={"maxRunHours": hours})
    assert only(found("unchecked", stack)).subject == "quota PREEMPTIBLE_NVIDIA_A100_GPUS"
    regional.append({"metric": "PREEMPTIBLE_NVIDIA_A100_GPUS", "limit": 16, "usage": 0})
    assert found("problem", stack) == []
    assert only(found("problem", config(nodes={"maxRunHours": 200}))).subject == "quota NVIDIA_A100_GPUS"


@pytest.mark.parametrize("mode", ["flex_start", "queued"])
def test_these_modes_take_the_preemptible_quota(cloud: Cloud, mode: str) -> None:
    assert only(found("unchecked", config(nodes={"consumption": mode}))).subject == "quota PREEMPTIBLE_NVIDIA_A100_GPUS"


def test_spot_takes_the_preemptible_quotas_that_a_project_has_and_else_the_standard_ones(cloud: Cloud) -> None:
    """(docs.cloud.google.com/compute/docs/instances/spot#quotas, 2026-03-19)"""
    regional = cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"]
    stack = config(nodes={"consumption": "spot"})
    preemptible = [{"metric": f"PREEMPTIBLE_{name}", "limit": 0, "usage": 0} for name in ("NVIDIA_A100_GPUS", "CPUS")]
    regional += preemptible
    assert found("problem", stack) + found("unchecked", stack) == []
    for quota, limit in zip(preemptible, (8, 96), strict=True):
        quota["limit"] = limit
    assert [(item.subject, item.text) for item in found("problem", stack)] == [
        ("quota PREEMPTIBLE_NVIDIA_A100_GPUS", "8 of 8 free in us-central1, 16 are needed"),
        ("quota PREEMPTIBLE_CPUS", "96 of 96 free in us-central1, 192 are needed"),
    ]
    assert found("problem") == [], "on demand takes the others"
    cloud.answers[f"/compute/projects/{PROJECT}"]["quotas"][0].update(limit=0)
    assert "quota GPUS_ALL_REGIONS" in [item.subject for item in found("problem", stack)]


def instance(machine_type: str, cluster: str, model: str = "STANDARD", status: str = "RUNNING") -> dict[str, Any]:
    return {
        "machineType": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}/machineTypes/{machine_type}",
        "labels": {"goog-k8s-cluster-name": cluster},
        "scheduling": {"provisioningModel": model},
        "status": status,
    }


def test_what_runs_counts_and_the_stack_s_own_does_not(cloud: Cloud) -> None:
    """Two of eight nodes are up, a Spot machine was stopped, and somebody has a node in the project as well."""
    mine = "trainyard-gcp-a100"
    nodes = [*(instance("a2-highgpu-8g", mine) for _ in range(2)), instance("e2-standard-4", mine)]
    nodes += [instance("a2-highgpu-8g", mine, status="TERMINATED"), instance("a2-highgpu-8g", "other")]
    nodes += [instance("n4-standard-2", mine)]
    cloud.answers[INSTANCES] = {"items": {f"zones/{ZONE}": {"instances": nodes}, "zones/b": {"warning": {}}}}
    cloud.answers[CLUSTER] = {"resourceLabels": {"app": "trainyard", "stack": "gcp-a100"}}
    # Of the disks: 2 x 200 and 100 of the nodes, 1000 of the volume; 8 x 200, 3 x 100 and 1000 are needed.
    limits = {"NVIDIA_A100_GPUS": (72, 24), "A2_CPUS": (864, 288), "CPUS": (12, 4), "SSD_TOTAL_GB": (2900, 1500)}
    limits["IN_USE_ADDRESSES"] = (1, 1)
    cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"] = quotas(**limits)
    cloud.answers[f"/compute/projects/{PROJECT}"] = quotas(GPUS_ALL_REGIONS=(72, 24), NETWORKS=(1, 1), ROUTERS=(1, 1))
    stack = config(nodes={"max": 8}, workers={"count": 8})
    assert found("problem", stack) + found("unchecked", stack) == []
    reserved = {"max": 8, "consumption": "reservation", "reservation": "mine"}
    assert found("problem", config(nodes=reserved, workers={"count": 8})) == [], "of the system nodes' too"
    limits["NVIDIA_A100_GPUS"] = (64, 24)
    cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"] = quotas(**limits)
    finding = only(found("problem", stack))
    assert finding.text == "56 of 64 free in us-central1, 64 are needed"
    assert "--preferred-value 72" in finding.fix
    cloud.answers[CLUSTER] = {"resourceLabels": {"stack": "other"}}
    assert "40 of 64 free in us-central1, 64 are needed" in [item.text for item in found("problem", stack)]


def test_a_cluster_that_may_not_be_read_costs_only_what_its_own_nodes_take(cloud: Cloud) -> None:
    cloud.answers[CLUSTER] = (403, {"error": {"message": "Required container.clusters.get"}})
    cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"][0].update(limit=16, usage=8)
    assert only(found("problem")).text == "8 of 16 free in us-central1, 16 are needed"
    assert "quota of what this stack runs already" in [item.subject for item in found("unchecked")]


def test_two_pools_that_share_a_quota_need_it_together(cloud: Cloud) -> None:
    """N1 and the system pool's E2 both count against CPUS."""
    regional = cloud.answers[f"/compute/projects/{PROJECT}/regions/{REGION}"]["quotas"]
    regional.append({"metric": "NVIDIA_T4_GPUS", "limit": 2, "usage": 0})
    next(item for item in regional if item["metric"] == "CPUS")["limit"] = 27
    stack = config(nodes={"machineType": "n1-standard-8"}, training={"precision": "fp16"})
    texts = {item.subject: item.text for item in found("problem", stack)}
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
