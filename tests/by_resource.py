"""A pytest plugin for `make e2e`: which test files may run at the same time.

One process runs a whole file, since a file's tests follow one stack. One process runs all files of a group that needs
the node for itself. (xdist 3.8's own groups do not work with pytest 9.2, which removed the `_nodeid` that they write.)
Time limits apply only to test functions (timeout_func_only): a fixture may wait for the node's first build, or for
another process to leave the node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

#: Files that continue from an earlier file's result, or that have the node for themselves one after the other: in two
#: processes they would wait for each other. The groups start in this order. First those that have the node for
#: themselves, beside all that need no pods, the longest first; then those that share it. All others follow. Of files
#: that share a stack those come first that change nothing of it.
GROUPS = (
    ("test_node_healing", "test_trainings"),
    ("test_gcp_engine",),
    ("test_aws_engine",),
    ("test_replaced_objects",),
    ("test_living_stack",),
    ("test_versions",),
    ("test_job_controller",),
    ("test_stack", "test_killed_pulumi", "test_typed_values"),
    ("test_elastic_pods", "test_network_policies"),
    ("test_run_commands", "test_evaluate", "test_data_in_model_out", "test_finetune"),
    ("test_local_stack",),
    ("test_prove",),
)
PLACES = {file: (place, turn) for place, group in enumerate(GROUPS) for turn, file in enumerate(group)}


def place(nodeid: str) -> tuple[int, int]:
    """The group of a test's file, and the file's turn in it."""
    return PLACES.get(Path(nodeid.split("::")[0]).stem, (len(GROUPS), 0))


class ByResource(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file, (group, _) = super()._split_scope(nodeid), place(nodeid)
        return file if group == len(GROUPS) else f"group {group}"

    def _reschedule(self, node: Any) -> None:
        # xdist gives the next files to a process with two tests left, each of which may take minutes here.
        if self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByResource:
    return ByResource(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(item.nodeid))
