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

#: What goes on from what an earlier file left, or has to be alone on the node, in the order in which it begins: first
#: who breaks the node, beside two that need none, then the trainings. All others fill in behind.
GROUPS = (
    ("test_node_healing", "test_elastic_pods", "test_network_policies"),
    ("test_aws_engine",),
    ("test_gcp_engine",),
    ("test_data_in_model_out", "test_evaluate", "test_finetune"),
    ("test_prove",),
    ("test_local_stack",),
)
PLACES = {file: place for place, group in enumerate(GROUPS) for file in group}


def place(nodeid: str) -> int:
    return PLACES.get(Path(nodeid.split("::")[0]).stem, len(GROUPS))


class ByResource(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file, found = super()._split_scope(nodeid), place(nodeid)
        return file if found == len(GROUPS) else f"group {found}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByResource:
    return ByResource(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a group, who breaks the node is first: the others wait until it is whole again."""
    items.sort(key=lambda item: (place(item.nodeid), "node_alone" not in getattr(item, "fixturenames", ())))
