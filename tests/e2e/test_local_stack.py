"""The local stack on the real engine and the real Kubernetes: trained by two pods, changed, asked, destroyed.

The tests of this file follow one stack through its life, in order. It has a namespace and a run folder of its own, so a
stack that somebody brought up by `make up` is not touched. It runs where Pulumi.local.yaml says: on the local node, or
on another cluster after `trainyard local use`, as .github/workflows/e2e.yml does with kind.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from faults.fault import until
from faults.stack import Stack
from infra.stackfiles import ROOT, stack_file_values
from local import environment, paths
from tests.fixtures_cluster import bring_up

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


PYTHON = str(ROOT / ".venv/bin/python")


@pytest.fixture(scope="module")
def stack(claim: TextIO, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    bring_up(stack_file_values("local")["cluster"]["context"])
    made = Stack("e2e", tmp_path_factory.mktemp("e2e"), environment.variables())
    # Leave room for another training on a node with two processors (test_prove.py). Fewer steps learn enough.
    run = f"e2e-{uuid.uuid4().hex[:8]}"
    made.write(workers={"cpu": 0.2}, job={"name": run}, training={"steps": 150})
    made.select()
    yield made
    # A hosted runner is deleted anyway; after a failure the stack stays there, so that its logs can be shown.
    if not (request.session.testsfailed and os.environ.get("GITHUB_ACTIONS")):
        made.remove()
        shutil.rmtree(paths.STORAGE / "runs" / run, ignore_errors=True)


def test_two_pods_train_a_model_that_is_fetched_and_that_transformers_loads(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    followed = stack.run([PYTHON, "-m", "cli", "follow", "--stack", "e2e"])
    assert followed.returncode == 0, followed.stdout + followed.stderr

    run = tmp_path / "run"
    fetched = stack.run([PYTHON, "-m", "cli", "fetch", "--stack", "e2e", "--to", str(run)], timeout=300)
    assert fetched.returncode == 0, fetched.stdout + fetched.stderr
    done = json.loads((run / "DONE").read_text())
    # From ln 1024 to a loss far below that of a model that knows only the tokens' frequencies, which is 1.1 lower.
    assert done["initial_validation_loss"] - done["validation_loss"] > 2
    assert done["bits_per_byte"] < 2.5
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(entry["step"] for entry in metrics) == stack.values["training"]["steps"]
    assert "begins with 2 processes" in followed.stdout
    assert f"Validation loss {done['initial_validation_loss']:.2f}" in followed.stdout
    assert done["sample"].strip().splitlines()[0] in followed.stdout

    from transformers import GPT2LMHeadModel

    assert GPT2LMHeadModel.from_pretrained(run / "model").config.vocab_size == 1024


def test_a_second_up_changes_nothing(stack: Stack) -> None:
    stack.up(expect_no_changes=True)


def test_the_commands_in_the_outputs_work(stack: Stack) -> None:
    ready = stack.kubectl("wait", "--for=condition=Available", "deployment/tensorboard", "--timeout=200s")
    assert ready.returncode == 0, ready.stderr
    written = stack.run([PYTHON, "-m", "cli", *shlex.split(stack.outputs()["sampleCommand"])[1:]], timeout=200)
    assert written.returncode == 0, written.stderr
    assert written.stdout.startswith("The"), "and nothing but the text"
    logs = stack.run([PYTHON, "-m", "cli", *shlex.split(stack.outputs()["logsCommand"])[1:]], timeout=60)
    assert "event=done" in logs.stdout


def test_a_job_that_is_made_again_has_the_size_that_is_configured_now(stack: Stack) -> None:
    """Also where the first Job had another size, which Pulumi goes on ignoring."""
    stack.write(workers={"count": 1})
    stack.up()
    assert _job(stack)["spec"]["parallelism"] == 1
    before = _job(stack)["metadata"]["uid"]
    command = ["pulumi", "up", "--stack", "e2e", "--replace", "**Job::training"]  # as trainyard resume does
    again = stack.run([*command, "--config-file", str(stack.config), "--yes", "--skip-preview"])
    assert again.returncode == 0, again.stdout + again.stderr
    after = _job(stack)
    assert after["metadata"]["uid"] != before
    assert after["spec"]["parallelism"] == after["spec"]["completions"] == 1


def _job(stack: Stack) -> dict[str, Any]:
    found = stack.kubectl("get", "job", stack.outputs()["jobName"], "--output=json")
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_destroy_leaves_no_object(stack: Stack) -> None:
    stack.destroy()
    assert "NotFound" in stack.kubectl("get", "namespace", stack.namespace).stderr
    # A provisioner deletes a volume after its claim.
    until(lambda: stack.namespace not in stack.kubectl("get", "persistentvolumes").stdout, 200, "no volume is left")
    assert not stack.resources()
