"""What a stack costs: figures worked out by hand, and on the bill exactly what the program declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import main
from cli.cost import show
from infra import cost, stackfiles
from infra.config import StackConfig
from infra.cost import Estimate
from infra.gke import cost as gke
from infra.parse import parse
from infra.stackfiles import stack_file_values
from tests import fixtures_google
from tests.infra import billed
from tests.infra.billed import line
from tests.infra.recorded import recorded

STACKS = ["gcp-a100", "gcp-c3", "gcp-smoke"]


def config(**changes: dict[str, Any]) -> StackConfig:
    return fixtures_google.config(**{**changes, "nodes": {"localSsds": 8, **changes.get("nodes", {})}})


def bill(**changes: dict[str, Any]) -> Estimate:
    return billed.estimate(config(**changes))


def test_two_nodes_of_eight_a100s_by_hand() -> None:
    """us-central1: an A100 with its share of the host 3.673385 an hour, so 58.77 for 16; e2-standard-4 0.13402284."""
    estimate = bill()
    assert line(estimate, "a2-highgpu-8g").at_full == pytest.approx(58.774160)
    assert line(estimate, "a2-highgpu-8g").at_rest == 0
    assert line(estimate, "e2-standard-4").at_rest == pytest.approx(0.13402284)
    assert line(estimate, "e2-standard-4").at_full == pytest.approx(0.40206852)
    assert line(estimate, "data disk").at_rest == pytest.approx(100 / 730)  # 1000 GiB pd-balanced at 0.10 a month
    assert line(estimate, "local SSDs").at_full == pytest.approx(2 * 8 * 375 * 0.08 / 730)
    # 0.10 control plane + 0.1340 node + 0.0137 its disk + 0.0064 NAT + 0.1370 data + 0.0014 images
    assert estimate.at_rest == pytest.approx(0.3925, abs=1e-4)
    # 0.10 + 0.4021 + 0.0411 + 58.7742 + 0.0548 boot disks + 0.6575 local SSDs + 0.0120 NAT + 0.1370 + 0.0014
    assert estimate.at_full == pytest.approx(60.1800, abs=1e-4)


@pytest.mark.parametrize(
    ("machine", "nodes", "each"),
    [
        ("c3-highmem-8", {"threadsPerCore": 1}, 0.529232),  # hyperthreads off cost the same
        ("c3-highmem-8", {"consumption": "spot"}, 0.164848),
        ("g2-standard-4", {}, 0.706832255),
        ("g2-standard-4", {"consumption": "spot"}, 0.423956),
        ("g2-standard-48", {}, 4.001665148),  # with four L4
    ],
)
def test_a_node_costs_what_google_lists_in_us_central1(machine: str, nodes: dict[str, Any], each: float) -> None:
    estimate = bill(nodes={"machineType": machine, "localSsds": 0, **nodes})
    assert line(estimate, machine).at_full == pytest.approx(2 * each)


def test_families_that_are_worked_out_from_others() -> None:
    """c3-standard-8 is 0.403216 and c3-highmem-8 0.529232, 64 GiB against 32; c3-highcpu-8 has 16."""
    gib = (0.529232 - 0.403216) / 32
    highcpu = gke.vcpu("us-central1", "c3-highcpu", spot=False)
    assert highcpu
    assert highcpu * 8 == pytest.approx(0.403216 - 16 * gib)
    highmem = gke.vcpu("us-central1", "e2-highmem", spot=False)
    assert highmem
    assert highmem * 4 == pytest.approx(4 * 0.02181159 + 32 * 0.00292353)  # e2-highmem-4


def test_spot_is_cheaper_everywhere() -> None:
    for region in gke.REGIONS:
        for family in ("e2-standard", "c3-standard", "c3-highmem", "c3-highcpu", "a2-highgpu"):
            rate, spot = (gke.vcpu(region, family, spot=spot) for spot in (False, True))
            assert rate is spot is None or (rate and spot and 0 < spot < rate), (region, family)


def test_filestore_instead_of_a_disk() -> None:
    estimate = bill(storage={"kind": "filestore", "sizeGib": 1024})
    assert line(estimate, "Filestore").at_rest == pytest.approx(1024 * 0.25 / 730)
    assert not [entry for entry in estimate.lines if "data disk" in entry.what]
    assert any("Filestore is counted" in note for note in estimate.notes)


def test_a_prebuilt_image_needs_no_room_in_a_registry() -> None:
    image = {"builder": "prebuilt", "ref": "ghcr.io/you/trainer@sha256:" + "a" * 64}
    assert not [
        entry for entry in bill(image=image, storage={"serverImage": image["ref"]}).lines if "images" in entry.what
    ]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"consumption": "spot"}, "Spot prices change"),
        ({"consumption": "queued"}, "up to 53 % cheaper"),
        ({"consumption": "reservation", "reservation": "mine"}, "billed around the clock"),
    ],
)
def test_what_the_figures_do_not_say_is_said(nodes: dict[str, Any], said: str) -> None:
    assert any(said in note for note in bill(nodes=nodes).notes)


def test_a_price_that_nobody_knows_is_not_counted_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stack = config(gke={"zone": "us-east5-a"}, nodes={"machineType": "a2-ultragpu-8g", "localSsds": 8})
    estimate = billed.estimate(stack)
    assert estimate.at_full is None
    assert cost.output(stack) == {
        "atRest": "unknown",
        "atFullSize": "unknown",
        "unit": "USD per hour",
        "prices": f"list prices of {gke.DATE} in us-east5, {gke.SOURCE}, {cost.LEFT_OUT}",
        "unknown": f"no list price for {'; '.join(estimate.unknown)}",
    }
    show("test", estimate, None)
    assert "No list price is known for" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("stack", STACKS)
def test_every_pool_is_on_the_bill(stack: str) -> None:
    pools = [item for item in recorded(stack).resources if item.kind == "NodePool"]
    assert len(pools) == 2
    estimate = billed.estimate(parse(stack_file_values(stack), stack))
    for pool in pools:
        scaling, node = pool.inputs["autoscaling"], pool.inputs["nodeConfig"]
        count = f"{scaling['totalMinNodeCount']:g} to {scaling['totalMaxNodeCount']:g} x "
        assert [entry for entry in estimate.lines if entry.what.startswith(f"{count}{node['machineType']}, ")]
        disk = f"boot disks, {node['diskSizeGb']:g} GiB {node['diskType']}"
        assert [entry for entry in estimate.lines if entry.what.startswith(count) and entry.what.endswith(disk)]
        if ssds := (node.get("ephemeralStorageLocalSsdConfig") or {}).get("localSsdCount"):
            line(estimate, f"{ssds:g} local SSDs")


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--stack", "gcp-a100", "--hours", "10"]) == 0
    shown = capsys.readouterr().out
    assert "2 x a2-highgpu-8g, workers, on demand" in shown
    assert "10 hours at full size" in shown
    assert gke.DATE in shown
    assert main(["cost", "--stack", "local"]) == 0
    assert "uses an existing cluster" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stack", "nodes"),
    [
        ("gcp-a100", {"consumption": "spot", "fallback": "on_demand"}),
        ("gcp-a100", {"consumption": "reservation", "reservation": "mine"}),
        ("aws-g4dn", {"consumption": "spot", "fallback": "on_demand"}),
    ],
    ids=str,
)
def test_a_stack_is_compared_however_it_obtains_its_nodes(
    stack: str, nodes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = stack_file_values(stack)
    monkeypatch.setattr(stackfiles, "ROOT", tmp_path)
    rows: list[list[str]] = []
    for change in (nodes, {"consumption": "on_demand"}):
        values = {**shipped, "nodes": {**shipped["nodes"], **change}}
        config = {f"trainyard:{key}": value for key, value in values.items()}
        (tmp_path / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump({"config": config}))
        rows.append([line for line in cost.comparison().splitlines() if line.startswith(f"| {stack} ")])
    assert rows[0] == rows[1]
    assert [row.split(" | ")[1].rpartition(", ")[2] for row in rows[0]] == ["on demand", "spot"]
