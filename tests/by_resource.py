"""A plugin of pytest for `make e2e`: what two processes may play at the same time.

A process plays a file to its end, since a file's tests follow one stack; and one of them plays all files that need the
node for themselves. (xdist 3.8's own groups are lost with pytest 9.2, which took away the `_nodeid` that they write.)
Time limits are of tests alone (timeout_func_only): a fixture may wait for the node's first build, or for another
process to leave the node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

#: Files that break the node, that train on it with pods of which each has to find room, or that share one stack.
NODE = {
    *("test_node_healing", "test_network_policies", "test_local_stack", "test_elastic_pods"),
    *("test_data_in_model_out", "test_evaluate", "test_finetune"),
}


class ByResource(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "node" if Path(file).stem in NODE else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByResource:
    return ByResource(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who breaks the node goes first, and beside it what needs no node: the others wait until it is whole again."""
    items.sort(
        key=lambda item: ("node_alone" not in getattr(item, "fixturenames", ()), not item.get_closest_marker("engine"))
    )
