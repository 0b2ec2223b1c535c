"""The local stack after a training of seconds, from which several test files continue."""

from __future__ import annotations

import copy
import json
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from faults.fault import until
from faults.stack import Stack
from local import paths


def losses(run: Path, name: str = "loss") -> dict[int, float]:
    """Map each step of a run to its loss of this name."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return {entry["step"]: entry[name] for entry in entries if name in entry}


def learns_as(run: Path, undisturbed: dict[str, dict[int, float]]) -> None:
    """Wait until a run is as far as the undisturbed one, and compare the losses of both, by name and step.

    A validation that a notice interrupted follows after a step, so its loss is another.
    """
    last = max(undisturbed["validation_loss"])
    until(lambda: max(losses(run, "validation_loss")) >= last, 400, f"step {last} of {run.name} is validated")
    for name, wanted in undisturbed.items():
        found = losses(run, name)
        if name == "validation_loss":
            wanted = {at: value for at, value in wanted.items() if at in found or at + 1 not in found}
        assert {at: found[at] for at in wanted} == pytest.approx(wanted, abs=1e-5)


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


def tool(stack: Stack, command: str, *arguments: str) -> CompletedProcess[str]:
    """`trainyard COMMAND --stack ...`, as a user types it."""
    return stack.run([sys.executable, "-m", "cli", command, "--stack", stack.name, *arguments], timeout=600)


def succeed(stack: Stack, command: str, *arguments: str) -> str:
    """Run a command that must succeed and return its stdout."""
    done = tool(stack, command, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
