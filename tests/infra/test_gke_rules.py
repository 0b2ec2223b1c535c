"""Machines, volumes and several problems of a cluster on Google Cloud."""

from __future__ import annotations

import pytest

from infra.parse import parse
from tests.infra.recorded import changed, problems


def test_all_problems_of_a_cloud_stack_come_at_once() -> None:
    wrong = changed("gcp-c3", nodes={"diskType": "pd-standard", "max": 1}, training={"precision": "fp16"})
    assert [problem.split(":")[0] for problem in problems(wrong, "gcp-c3")] == [
        "nodes.diskType",
        "nodes.max",
        "training.precision",
    ]


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
    for gib in (*given, *refused):
        found = problems(changed("gcp-c3", storage={**keys, "sizeGib": gib}), "gcp-c3")
        assert [line.partition(" with ")[0] for line in found] == [f"storage.sizeGib: {gib}"] * (gib in refused)
