"""The elastic training on real pods: scaled, deleted, evicted, without etcd, and destroyed while it trains (level 3).

The tests follow one training, in order; nothing restarts it. chaos/pod_rows.py has the faults and what must
follow each; `python -m bench.elastic.pods` measures the same.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import pytest

from chaos.pod_rows import ROWS, STACK, difference, play
from chaos.pods import Pods
from chaos.row import SAME_LOSS, Row
from chaos.stack import Stack

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def stack(node_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack("e2e-elastic", tmp_path_factory.mktemp("elastic"), node_environment)
    made.write(**STACK)
    made.write(job={"name": f"elastic-{uuid.uuid4().hex[:8]}"})
    made.select()
    made.up()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def pods(stack: Stack) -> Iterator[Pods]:
    with Pods(stack) as made:
        made.world(1)
        yield made


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_the_training_goes_on_by_itself(row: Row, pods: Pods, stack: Stack) -> None:
    result = play(row, pods, stack)
    assert not result.problem
    # A busy machine takes longer.
    assert result.seconds < 3 * row.seconds


def test_destroyed_while_it_trains_it_leaves_nothing(pods: Pods, stack: Stack) -> None:
    pods.more_steps(3)
    begin = time.monotonic()
    destroyed = stack.pulumi("destroy", "--yes")
    assert destroyed.returncode == 0, destroyed.stdout + destroyed.stderr
    assert time.monotonic() - begin < 120
    assert "NotFound" in stack.kubectl("get", "namespace", stack.namespace).stderr
    assert stack.namespace not in stack.kubectl("get", "persistentvolumes").stdout
    left = json.loads(stack.run(["pulumi", "stack", "export", "--stack", stack.name]).stdout)["deployment"]
    assert not left.get("resources")


def test_every_step_was_that_of_an_undisturbed_training(pods: Pods) -> None:
    assert difference(pods) < SAME_LOSS
