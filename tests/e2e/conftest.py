"""The local stack after a training of seconds, from which several test files continue."""

from __future__ import annotations

import copy
import shutil
import sys
import uuid
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest

from faults.stack import Stack
from local import paths


@pytest.fixture(scope="session")
def small_run() -> str:
    """Name of the training of seconds, of its dataset and its run."""
    return f"small-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def small_stack(
    node_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory, small_run: str
) -> Iterator[Stack]:
    """A stack on the real node whose training on the sample has ended, with volume, dataset, model and TensorBoard."""
    made = Stack("small", tmp_path_factory.mktemp("small"), node_environment)
    made.write(
        workers={"count": 1, "min": 1},
        dataset={"name": small_run},
        job={"name": small_run},
        training={
            "model": {"preset": "tiny"},
            "steps": 4,
            "tokensPerStep": 1024,
            "optimizer": {"warmupSteps": 1},
            "evaluation": {"every": 4, "batches": 2},
        },
    )
    made.select()
    try:
        made.up()
        succeed(made, "follow")
        yield made
    finally:
        made.remove()
        for folder in paths.STORAGE.glob(f"**/{small_run}*"):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def stack(small_stack: Stack) -> Iterator[Stack]:
    """Restore the configuration after a file's tests; what they deployed stays."""
    before = copy.deepcopy(small_stack.values)
    yield small_stack
    small_stack.values = before
    small_stack.write()


@pytest.fixture(scope="module")
def trained(stack: Stack, small_run: str) -> None:
    """Bring the stack back to its small run: another file may have left it on one that it has removed."""
    if not stack.outputs()["runDirectory"].endswith(small_run):
        stack.up()
        succeed(stack, "follow")


def tool(stack: Stack, command: str, *arguments: str) -> CompletedProcess[str]:
    """`trainyard COMMAND --stack ...`, as a user types it."""
    return stack.run([sys.executable, "-m", "cli", command, "--stack", stack.name, *arguments], timeout=600)


def succeed(stack: Stack, command: str, *arguments: str) -> str:
    """Run a command that must succeed and return its stdout."""
    done = tool(stack, command, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
