"""Every rule about a cluster on Google Cloud, with one configuration that breaks it and what is said then."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from infra.config import ConfigError
from infra.parse import parse
from review.recording import record
from tests.infra.recorded import changed


def problems(stack: str, **sections: dict[str, Any] | None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(changed(stack, **sections), stack)
    return [*caught.value.problems]


@pytest.mark.parametrize("stack", ["gcp-a100", "gcp-c3"])
def test_the_stack_files_are_valid(stack: str) -> None:
    assert parse(changed(stack), stack).cluster.name == f"trainyard-{stack}"


@pytest.mark.parametrize(
    ("stack", "sections", "expected"),
    [
        # Place and names.
        (
            "gcp-a100",
            {"gke": {"project": "My Project"}},
            "gke.project: 'My Project' is not a project id; `gcloud projects list` shows yours",
        ),
        ("gcp-a100", {"gke": {"zone": "us-central1"}}, "gke.zone: 'us-central1' is not a zone; give one such as"),
        (
            "gcp-a100",
            {"gke": {"zone": "us-east4-a"}},
            "gke.zone: a2-highgpu-8g is not offered in us-east4-a (as of 2026-11-21); allowed: asia-northeast1-a",
        ),
        (
            "gcp-a100",
            {"gke": {"zone": "us-central1-d"}},
            "gke.zone: a2-highgpu-8g is not offered in us-central1-d (as of 2026-11-21); allowed: us-central1-a, "
            "us-central1-b, us-central1-c, us-central1-f",
        ),
        (
            "gcp-a100",
            {"cluster": {"name": "a-name-that-is-far-too-long"}},
            "cluster.name: 'a-name-that-is-far-too-long' has 27 characters; allowed: 24",
        ),
        ("gcp-a100", {"cluster": {"name": "8gpus"}}, "cluster.name: '8gpus' makes the nodes' service account"),
        ("gcp-a100", {"cluster": {"context": "kind"}}, "cluster.context: only used with cluster.kind existing"),
        ("gcp-a100", {"cluster": {"kubeconfig": "k"}}, "cluster.kubeconfig: only used with cluster.kind existing"),
        (
            "gcp-a100",
            {"gke": {"noUpgradesSince": "yesterday"}},
            "gke.noUpgradesSince: 'yesterday' is no time with its zone; give one such as 2026-11-01T00:00:00Z",
        ),
        (
            "gcp-a100",
            {"gke": {"systemMachineType": "n4-standard-4"}},
            "gke.systemMachineType: 'n4-standard-4' is not known; allowed: e2-standard-2, e2-standard-4",
        ),
        (
            "gcp-a100",
            {"nodes": {"machineType": "a3-highgpu-8g"}},
            "workers.count: 2 workers on a3-highgpu-8g, whose nodes would exchange gradients over one interface",
        ),
        ("gcp-a100", {"gke": None}, "gke: missing; a cluster of kind gke needs gke.project, gke.zone"),
        ("gcp-a100", {"nodes": None}, "nodes: missing; a cluster of kind gke needs nodes.machineType"),
        # Machines.
        (
            "gcp-a100",
            {"nodes": {"machineType": "a2-highgpu-3g"}},
            "nodes.machineType: 'a2-highgpu-3g' is not known as a worker; did you mean a2-highgpu-",
        ),
        (
            "gcp-c3",
            {"nodes": {"machineType": "c4-highmem-8"}},
            "nodes.machineType: 'c4-highmem-8' is not known as a worker; with no accelerator: c3-highmem-8, ",
        ),
        (
            "gcp-c3",
            {"nodes": {"diskType": "pd-standard"}},
            "nodes.diskType: pd-standard cannot be attached to c3-highmem-8; allowed: pd-balanced, pd-ssd, hyperdisk",
        ),
        (
            "gcp-a100",
            {"nodes": {"localSsds": 4}},
            "nodes.localSsds: a2-highgpu-8g does not take 4 local SSDs; allowed: 0, 8",
        ),
        (
            "gcp-a100",
            {"nodes": {"threadsPerCore": 1}},
            "nodes.threadsPerCore: a2-highgpu-8g has a fixed number of threads per core; remove it",
        ),
        ("gcp-c3", {"nodes": {"gpuDriver": "daemonset"}}, "nodes.gpuDriver: c3-highmem-8 has no accelerator"),
        (
            "gcp-c3",
            {"nodes": {"gpuDriverVersion": "LATEST"}},
            "nodes.gpuDriverVersion: c3-highmem-8 has no accelerator",
        ),
        (
            "gcp-a100",
            {"nodes": {"gpuDriver": "daemonset", "gpuDriverVersion": "DEFAULT"}},
            "nodes.gpuDriverVersion: only used with nodes.gpuDriver managed; remove it",
        ),
        # Pods and nodes.
        (
            "gcp-c3",
            {"nodes": {"threadsPerCore": 1}, "workers": {"cpu": 7}},
            "workers.cpu: 7 on c3-highmem-8 with 1 thread a core, which has 4 CPUs, 3.92 of them for pods, less what "
            "the cluster's own pods take; allowed: at most 3",
        ),
        (
            "gcp-c3",
            {"workers": {"memoryGib": 64}},
            "workers.memoryGib: 64 on c3-highmem-8, which has 56.5 GiB for pods, less what the cluster's own pods "
            "take; allowed: at most 55",
        ),
        ("gcp-c3", {"workers": {"cpu": 6.5}}, "workers.cpu: 6.5 is no whole number; pods get whole cores"),
        (
            "gcp-a100",
            {"workers": {"gpus": 4}},
            "workers.gpus: 4 on a2-highgpu-8g, which has nvidia-tesla-a100 x8; allowed: 8",
        ),
        (
            "gcp-a100",
            {"workers": {"processes": 4}},
            "workers.processes: 4 for 8 GPUs; allowed: 8, one per GPU",
        ),
        ("gcp-a100", {"workers": {"count": 3}}, "nodes.max: 2 nodes for workers.count 3; allowed: 3 or more"),
        (
            "gcp-a100",
            {"workers": {"spares": 1}},
            "nodes.max: 2 nodes for workers.count 2 and workers.spares 1; allowed: 3 or more",
        ),
        # How nodes are had.
        (
            "gcp-a100",
            {"nodes": {"compactPlacement": True, "consumption": "queued"}, "check": {"enabled": False}},
            "nodes.compactPlacement: cannot be combined with nodes.consumption queued; allowed with: on_demand, spot, "
            "reservation",
        ),
        (
            "gcp-a100",
            {"nodes": {"compactPlacement": True, "consumption": "flex_start"}},
            "nodes.compactPlacement: cannot be combined with nodes.consumption flex_start",
        ),
        (
            "gcp-a100",
            {
                "nodes": {"machineType": "n1-standard-8", "compactPlacement": True, "localSsds": 0},
                "training": {"precision": "fp16"},
            },
            "nodes.compactPlacement: not offered for n1-standard-8",
        ),
        (
            "gcp-a100",
            {"nodes": {"consumption": "queued"}},
            "check.enabled: with nodes.consumption queued, nodes are provisioned only for the training; remove it",
        ),
        ("gcp-c3", {"dataset": {"memoryGib": 200}}, "dataset.memoryGib: 200 fits no e2-standard-4; allowed: at most"),
        ("gcp-c3", {"dataset": {"cpu": 32}}, "dataset.cpu: 32 fits no e2-standard-4; allowed: at most"),
        ("gcp-a100", {"nodes": {"consumption": "reservation"}}, "nodes.reservation: missing; consumption reservation"),
        (
            "gcp-a100",
            {"nodes": {"consumption": "spot", "reservation": "mine"}},
            "nodes.reservation: cannot be combined with nodes.consumption spot",
        ),
        (
            "gcp-a100",
            {"nodes": {"consumption": "flex_start", "maxRunHours": 200}},
            "nodes.maxRunHours: 200 with consumption flex_start, which gives nodes for 7 days at most; allowed: at "
            "most 168",
        ),
        (
            "gcp-c3",
            {"nodes": {"consumption": "queued"}},
            "nodes.consumption: queued is offered for accelerators only, not for c3-highmem-8",
        ),
        # Arithmetic.
        (
            "gcp-a100",
            {"nodes": {"machineType": "n1-standard-8", "localSsds": 0}},
            "training.precision: bf16 is not supported by nvidia-tesla-t4; use fp16, fp32 or auto",
        ),
        (
            "gcp-c3",
            {"training": {"precision": "fp16"}},
            "training.precision: fp16 is not supported by c3-highmem-8; use bf16, fp32 or auto",
        ),
        (
            "gcp-c3",
            {"training": {"engine": {"zeroStage": 2}}},
            "training.engine.zeroStage: only used with engine.name deepspeed; set",
        ),
        # Storage and images.
        (
            "gcp-a100",
            {"storage": {"kind": "hostPath"}},
            "storage.kind: 'hostPath' is not known; allowed: 'nfs', 'filestore'",
        ),
        (
            "gcp-a100",
            {"storage": {"kind": "filestore", "sizeGib": 12_000}},
            "storage.sizeGib: 12000 with filestore tier ZONAL; allowed: 100 to 10239 or 10240 to 102400 in steps",
        ),
        (
            "gcp-a100",
            {"storage": {"kind": "filestore", "sizeGib": 1024, "retain": True}},
            "storage.retain: a Filestore instance lives in the stack's network and goes with it",
        ),
        (
            "gcp-a100",
            {"storage": {"retain": True, "disk": "mine"}},
            "storage.retain: a disk that storage.disk names is never deleted; remove retain",
        ),
        (
            "gcp-a100",
            {"storage": {"tier": "ZONAL"}},
            "storage.tier: only used with storage.kind filestore; set",
        ),
        (
            "gcp-a100",
            {"storage": {"kind": "filestore", "sizeGib": 1024, "diskType": "pd-ssd"}},
            "storage.diskType: only used with storage.kind nfs; set",
        ),
        (
            "gcp-a100",
            {"storage": {"kind": "filestore", "sizeGib": 1024, "disk": "mine"}},
            "storage.disk: only used with storage.kind nfs",
        ),
        (
            "gcp-a100",
            {"storage": {"accessMode": "ReadWriteOnce"}},
            "storage.accessMode: unknown key; allowed: kind, ",
        ),
        (
            "gcp-a100",
            {"image": {"registry": "ghcr.io/me"}},
            "image.registry: the stack makes an Artifact Registry repository",
        ),
        (
            "gcp-a100",
            {"image": {"builder": "prebuilt", "ref": "x@sha256:" + "0" * 64}},
            "storage.serverImage: missing; builder prebuilt needs the image as name@sha256:",
        ),
    ],
)
def test_each_rule_says_what_is_wrong_and_what_is_allowed(
    stack: str, sections: dict[str, dict[str, Any] | None], expected: str
) -> None:
    found = problems(stack, **sections)
    assert [problem for problem in found if problem.startswith(expected)], found


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"gke": {"project": "my-project", "zone": "us-central1-a"}}, "gke: only used with clusters that the stack"),
        ({"nodes": {"machineType": "a2-highgpu-8g"}}, "nodes: only used with clusters that the stack makes"),
        ({"storage": {"kind": "nfs"}}, "storage.kind: 'nfs' is not known; allowed: 'hostPath', 'storageClass'"),
        ({"storage": {"retain": True}}, "storage.retain: unknown key; allowed: kind, "),
        (
            {"cluster": {"context": None}},
            "cluster.context: missing; set it with `pulumi config set --stack local --path",
        ),
    ],
)
def test_an_existing_cluster_refuses_what_only_a_new_one_has(sections: dict[str, Any], expected: str) -> None:
    found = problems("local", **sections)
    assert [problem for problem in found if problem.startswith(expected)], found


def test_the_rules_stop_the_program_before_anything_is_made() -> None:
    with pytest.raises(pulumi.RunError, match=r"invalid configuration of stack gcp-a100 \(1 problem\)"):
        record("gcp-a100", changed("gcp-a100", nodes={"localSsds": 3}))


def test_all_problems_of_a_cloud_stack_come_at_once() -> None:
    found = problems("gcp-c3", nodes={"diskType": "pd-standard", "max": 1}, training={"precision": "fp16"})
    assert [problem.split(":")[0] for problem in found] == ["nodes.diskType", "nodes.max", "training.precision"]


def test_a_secret_of_the_wrong_kind_is_not_printed() -> None:
    (problem,) = problems("gcp-a100", secrets={"huggingFaceToken": {"hf_secret": 1}})
    assert "hf_secret" not in problem


@pytest.mark.parametrize("consumption", ["on_demand", "spot", "reservation"])
def test_compact_placement_goes_with_the_others(consumption: str) -> None:
    reservation = {"reservation": "mine"} if consumption == "reservation" else {}
    nodes = {"compactPlacement": True, "consumption": consumption, **reservation}
    assert parse(changed("gcp-a100", nodes=nodes), "gcp-a100")


@pytest.mark.parametrize("machine", ["a2-highgpu-1g", "a2-ultragpu-8g", "a3-highgpu-4g", "g2-standard-8"])
def test_another_machine_is_one_key(machine: str) -> None:
    """Pods follow the machine: accelerators, processes, CPU and memory."""
    values = changed("gcp-a100", nodes={"machineType": machine, "localSsds": None, "consumption": "spot"})
    config = parse(values, "gcp-a100")
    assert config.workers.gpus == config.workers.processes >= 1
    assert config.workers.cpu >= 7


@pytest.mark.parametrize(
    ("volume", "given", "refused"),
    [
        ("nfs", [10, 11, 65_536], [9, 65_537]),
        ("BASIC_HDD", [1024, 1025, 65_433], [1023, 65_434]),
        ("BASIC_SSD", [2560, 2561], [2559]),
        ("ZONAL", [100, 101, 500, 10_239, 10_240, 12_800, 102_400], [99, 10_241, 12_000, 102_399, 104_960]),
    ],
)
def test_a_volume_has_a_size_that_google_gives(volume: str, given: list[int], refused: list[int]) -> None:
    """As pulumi_gcp says of its own argument, filestore.InstanceFileSharesArgs.capacity_gb."""
    keys = {"kind": "nfs"} if volume == "nfs" else {"kind": "filestore", "tier": volume}

    for gib in given:
        parse(changed("gcp-c3", storage={**keys, "sizeGib": gib}), "gcp-c3")
    for gib in refused:
        (line,) = problems("gcp-c3", storage={**keys, "sizeGib": gib})
        assert line.startswith(f"storage.sizeGib: {gib} with ")
