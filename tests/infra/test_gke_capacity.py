"""Where the wanted machines are unavailable: nodes.fallback says what comes instead, nodes.zones from where."""

from __future__ import annotations

from typing import Any

import pytest

from infra.gke.keys import kinds, pool_name
from infra.parse import parse
from review.recording import Recorded, Recording, record
from tests.infra import billed
from tests.infra.recorded import changed, recorded

LABEL, CLASS = "cloud.google.com/compute-class", "trainyard-workers"


def stack(name: str = "gcp-a100", **nodes: Any) -> Recording:
    return record(name, changed(name, nodes={"consumption": "spot", **nodes}))


def pools(recording: Recording) -> dict[str, Recorded]:
    made = {item.name: item for item in recording.all("gcp:container/nodePool") if item.name != "system"}
    return dict(sorted(made.items()))


def test_spot_then_flex_start_then_on_demand() -> None:
    made = stack(fallback="on_demand")
    (order,) = made.all("kubernetes:cloud.google.com/v1:ComputeClass")
    assert order.inputs["metadata"]["name"] == CLASS
    assert order.inputs["spec"] == {
        "priorities": [
            {"nodepools": ["workers"]},
            {"nodepools": ["workers-flex-start"]},
            {"nodepools": ["workers-on-demand"]},
        ],
        "whenUnsatisfiable": "DoNotScaleUp",
    }
    config = {name: item.inputs["nodeConfig"] for name, item in pools(made).items()}
    assert [config[name].get("spot") for name in config] == [True, False, False]
    assert [config[name].get("flexStart") for name in config] == [None, True, None]
    assert pools(made)["workers-flex-start"].inputs["management"]["autoRepair"] is False
    # A flex-start node lasts a week at most; the stack asks for a day anyway.
    assert {item["maxRunDuration"] for item in config.values()} == {"86400s"}


@pytest.mark.parametrize(
    ("name", "consumption", "fallback", "made"),
    [
        ("gcp-a100", "spot", "flex_start", ["workers", "workers-flex-start"]),
        ("gcp-a100", "flex_start", "on_demand", ["workers", "workers-on-demand"]),
        # Flex-start is for accelerators only.
        ("gcp-c3", "spot", "on_demand", ["workers", "workers-on-demand"]),
    ],
)
def test_a_pool_for_each_way(name: str, consumption: str, fallback: str, made: list[str]) -> None:
    config = parse(changed(name, nodes={"consumption": consumption, "fallback": fallback}), name)
    assert [pool_name(config, kind) for kind in kinds(config)] == made


def test_an_elastic_training_runs_on_all_of_them_at_once() -> None:
    """Pods fit the nodes of every pool, and are created after their ComputeClass."""
    made = stack(fallback="on_demand")
    (order,) = made.all("kubernetes:cloud.google.com/v1:ComputeClass")
    for name in ("training", "gpu-check"):
        (job,) = (item for item in made.resources if item.kind == "Job" and item.name.startswith(name))
        assert job.inputs["spec"]["template"]["spec"]["nodeSelector"] == {LABEL: CLASS}
        assert order.urn in made.earlier(job)
    assert {item.urn for item in pools(made).values()} <= made.earlier(order)
    assert order.deleted_with == made.one("Cluster").urn


def test_nodes_may_come_from_other_zones_while_the_data_stays() -> None:
    made = stack(zones=["us-central1-b", "us-central1-c"], fallback="on_demand")
    for item in pools(made).values():
        assert item.inputs["nodeLocations"] == ["us-central1-b", "us-central1-c"]
        assert item.inputs["autoscaling"]["locationPolicy"] == "ANY"
    assert made.one("NodePool", "system").inputs["nodeLocations"] == ["us-central1-a"]
    assert made.one("Disk").inputs["zone"] == made.one("Cluster").inputs["location"] == "us-central1-a"
    (mounted,) = [item for item in made.all("kubernetes:core/v1:PersistentVolume") if "nfs" in item.inputs["spec"]]
    assert "nodeAffinity" not in mounted.inputs["spec"], "or no pod of another zone could have the volume"
    assert pools(recorded("gcp-a100"))["workers"].inputs["nodeLocations"] == ["us-central1-a"]


def test_the_bill_says_what_the_fallback_would_cost() -> None:
    values = changed("gcp-a100", nodes={"consumption": "spot", "fallback": "on_demand", "zones": ["us-central1-b"]})
    bill = billed.estimate(parse(values, "gcp-a100"))
    assert "nodes.fallback: where nothing cheaper is, all workers come on demand, for 58.77 USD an hour." in bill.notes
    assert not [note for note in bill.notes if "Between zones" in note]
    values["nodes"]["zones"].append("us-central1-c")
    bill = billed.estimate(parse(values, "gcp-a100"))
    assert [note for note in bill.notes if "Between zones each GiB costs 0.01 USD" in note]
