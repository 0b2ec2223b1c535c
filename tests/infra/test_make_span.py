"""The longest chain of `up` and `destroy` in the recorded graph, and the resources off it, which may be slow."""

from __future__ import annotations

import pytest

from bench.graph import creation, destruction, parts
from review.recording import Recorded, Recording


def item(name: str, type_: str, after: tuple[str, ...] = (), deleted_with: str = "") -> Recorded:
    return Recorded(
        type=type_,
        name=name,
        urn=name,
        parent="",
        inputs={},
        dependencies=frozenset(after),
        deleted_with=deleted_with,
        delete_before_replace=False,
        ignore_changes=(),
        protect=False,
        provider="",
    )


def by_hand() -> Recording:
    """network 0.3 -> cluster 5 -> pool 1, and a disk 0.1 beside them that the cluster waits for."""
    return Recording(
        [
            item("network", "gcp:compute/network:Network"),
            item("disk", "gcp:compute/disk:Disk"),
            item("cluster", "gcp:container/cluster:Cluster", ("network", "disk")),
            item("pool", "gcp:container/nodePool:NodePool", ("cluster",), deleted_with="cluster"),
        ],
        {},
    )


def test_the_longest_chain_of_a_graph_drawn_by_hand() -> None:
    chain = creation(by_hand())
    assert chain.minutes == pytest.approx(0.3 + 5 + 1)
    assert [part.name for part in chain.resources] == ["network", "cluster", "pool"]
    assert chain.slack == {"network": 0, "cluster": 0, "pool": 0, "disk": pytest.approx(0.2)}


def test_destroy_goes_backwards_and_what_goes_along_takes_no_time() -> None:
    chain = destruction(by_hand())
    assert chain.minutes == pytest.approx(4 + 0.5)
    assert [part.name for part in chain.resources if part.name != "pool"] == ["cluster", "network"]


def test_the_table_has_a_row_for_each_stack_with_its_longest_chains() -> None:
    (row,) = [row for row in parts(["gcp-smoke"])[2] if row.startswith("| gcp-smoke | ")]
    assert row.count("Cluster cluster") == 2
