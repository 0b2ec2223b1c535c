"""The local stack with a training of seconds behind it, which several files go on from."""

from __future__ import annotations

import copy
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from subprocess import CompletedProcess

import pytest

from chaos.stack import Stack
from local import paths

Tool = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="session")
def small_run() -> str:
    """Of the training of seconds."""
    return f"small-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def small_stack(
    node_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory, small_run: str
) -> Iterator[Stack]:
    """Up on the real node, its training on the sample ended: there are a volume, a dataset, a model and TensorBoard."""
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
    """The configuration is as before after a file's tests; what is deployed stays as they left it."""
    before = copy.deepcopy(small_stack.values)
    yield small_stack
    small_stack.values = before
    small_stack.write()


def tool(stack: Stack, command: str, *arguments: str) -> CompletedProcess[str]:
    """`trainyard COMMAND --stack ...`, as a user types it."""
    return stack.run([sys.executable, "-m", "cli", command, "--stack", stack.name, *arguments], timeout=600)


def succeed(stack: Stack, command: str, *arguments: str) -> str:
    """What a command says that has to succeed."""
    done = tool(stack, command, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
