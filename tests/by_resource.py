"""A plugin of pytest for `make e2e`: what several processes may play at the same time.

A process plays a file to its end, since a file's tests follow one stack, and some files after each other. (xdist 3.8's
own groups are lost with pytest 9.2, which took away the `_nodeid` that they write.)
Time limits are of tests alone (timeout_func_only): a fixture may wait for the node's first build, or for another
process to leave the node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

#: Files that one process plays one after the other.
GROUPS = {
    # They break the node, or two such trainings find no room on it.
    "node": {"test_node_healing", "test_network_policies", "test_local_stack", "test_elastic_pods"},
    # They share one stack (tests/e2e/conftest.py).
    "small stack": {"test_data_in_model_out", "test_evaluate", "test_finetune"},
}
#: What takes minutes, nearly all of them on its own, begins before what does not.
LONG = {"test_prove", *GROUPS["small stack"]}


class ByResource(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((name for name, files in GROUPS.items() if Path(file).stem in files), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByResource:
    return ByResource(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who breaks the node goes first, beside files that need none."""
    alone, on_node = ({item.path for item in items if name in _fixtures(item)} for name in ("node_alone", "claim"))
    items.sort(key=lambda item: (item.path not in alone, item.path in on_node, item.path.stem not in LONG))


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
