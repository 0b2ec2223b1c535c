"""The elastic training on real pods: scaled, deleted, evicted, without etcd, and destroyed while it trains (level 3).

The tests follow one training, in order; nothing restarts it. faults/on_pods.py has the faults and what must follow
each; `python -m faults --on node` writes the same down.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from faults.fault import SAME_LOSS, Fault
from faults.node import Node, difference, elastic_stack
from faults.on_pods import NODE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def there(node_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with elastic_stack(tmp_path_factory.mktemp("elastic"), node_environment) as stack, Node(stack) as node:
        yield node


@pytest.mark.parametrize("fault", NODE, ids=[fault.name for fault in NODE])
def test_the_training_goes_on_by_itself(fault: Fault, there: Node) -> None:
    result = there.play(fault)
    assert not result.problem


def test_destroyed_while_it_trains_it_leaves_nothing(there: Node) -> None:
    stack = there.stack
    there.more_steps()
    begin = time.monotonic()
    stack.destroy()
    assert time.monotonic() - begin < 120
    assert "NotFound" in stack.kubectl("get", "namespace", stack.namespace).stderr
    assert stack.namespace not in stack.kubectl("get", "persistentvolumes").stdout
    assert not (stack.engine().export_stack().deployment or {}).get("resources")


def test_every_step_was_that_of_an_undisturbed_training(there: Node) -> None:
    assert difference(there) < SAME_LOSS
