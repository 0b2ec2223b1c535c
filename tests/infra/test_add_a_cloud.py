"""Follows docs/add-a-cloud.md: a folder and a record make a cloud, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra import changes
from infra.clouds import CLOUDS, Cloud, keys
from infra.config import ConfigError, StackConfig
from infra.parse import parse
from review import computed
from review.policy import broken
from review.recording import record
from tests.infra.aks.keys import AksConfig, AksNodes, AksStorage
from tests.infra.aks.rules import RULES, bill, machines
from tests.infra.recorded import problems

A100 = "Standard_NC24ads_A100_v4"
VALUES: dict[str, Any] = {
    "cluster": {"kind": "aks"},
    "aks": {"location": "westeurope"},
    "nodes": {"machineType": A100, "max": 2},
    "storage": {"sizeGib": 100},
}


@pytest.fixture(autouse=True)
def aks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def cluster(config: StackConfig, stack: str) -> Any:
        from tests.infra.aks.stack import aks_cluster

        return aks_cluster(config, stack)

    record = Cloud(
        folder=Path(__file__).parent / "aks",
        section=AksConfig,
        rules=RULES,
        machines=machines,
        nodes=AksNodes,
        storage=AksStorage,
        cluster=cluster,
        bill=bill,
        doctor=lambda config, stack: iter(()),
        place=lambda config: f"AKS in {config.section(AksConfig).location}",
    )
    monkeypatch.setitem(CLOUDS, "aks", record)
    computed.table.cache_clear()
    yield
    computed.table.cache_clear()


def test_its_cluster_is_under_the_same_workloads() -> None:
    stack = record("aks-exercise", VALUES)
    azure = stack.all("azure-native:")
    assert [item.name for item in azure] == ["group", "registry", "cluster", "workers"]
    image = stack.one("Image")
    assert image.inputs["tags"][0].startswith("trainyard-aks-exercise.azurecr.io/")
    (job,) = [item for item in stack.resources if item.kind == "Job" and item.name.startswith("training")]
    assert job.inputs["spec"]["template"]["spec"]["nodeSelector"] == {"trainyard/pool": "workers"}
    assert stack.outputs["costPerHour"]["atFullSize"] == 7.45


def test_every_mistake_is_told_at_once() -> None:
    for change, wrong in (
        ({"nodes": {**VALUES["nodes"], "efa": True}, "gke": {"project": "p-12345"}}, ["gke", "nodes.efa"]),
        (
            {"aks": {"location": "WestEurope"}, "nodes": {"machineType": "Standard_NC24"}},
            ["aks.location", "nodes.machineType"],
        ),
    ):
        assert [line.split(":")[0] for line in problems({**VALUES, **change}, "aks-exercise")] == wrong
    with pytest.raises(ConfigError, match=r"'azure' is not known; allowed: existing, gke, eks, aks$"):
        parse({"cluster": {"kind": "azure"}}, "test")
    with pytest.raises(ConfigError, match=r"storage.kind: 'efs' is not known; allowed: 'azureFiles'"):
        parse({**VALUES, "storage": {"kind": "efs"}}, "test")


def test_its_keys_are_documented_and_a_living_cluster_does_not_move() -> None:
    assert keys()["aks.location"].description
    built = {key: parse(VALUES, "test").value(key) for key in changes.recorded("aks")}
    moved = parse({**VALUES, "aks": {"location": "northeurope"}}, "test")
    (problem,) = changes.problems(moved, built)
    assert problem.startswith("aks.location: northeurope on a stack that lives with westeurope; a resource group stays")


def test_what_it_does_not_say_is_refused_on_a_living_stack_and_by_the_policy() -> None:
    """An omission is loud: nobody replaces a cluster, or opens a network, because nothing was said of the cloud."""
    built = {"cluster.kind": "aks", "cluster.name": "trainyard-old", "aks.location": "westeurope"}
    found = list(changes.problems(parse(VALUES, "aks-exercise"), built))
    assert [line for line in found if line.startswith("cluster.name: ") and "replaces the cluster and the data" in line]
    refused = {str(each.resource.type) for each in broken(record("aks-exercise", VALUES)) if each.rule == "known-cloud"}
    assert refused
    assert all(type_.startswith("azure-native:") for type_ in refused)
