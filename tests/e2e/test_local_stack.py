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
import subprocess
import time
import urllib.request
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
from tests.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]


PYTHON = str(ROOT / ".venv/bin/python")


@pytest.fixture(scope="module")
def stack(claim: TextIO, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    bring_up(stack_file_values("local")["cluster"]["context"])
    made = Stack("e2e", tmp_path_factory.mktemp("e2e"), environment.variables())
    # Leave room for another training on a node with two processors (test_prove.py). Fewer steps learn enough.
    run = f"e2e-{uuid.uuid4().hex[:8]}"
    made.write(workers={"cpu": 0.2}, job={"name": run}, training={"steps": 300})
    made.select()
    yield made
    # A hosted runner is deleted anyway; after a failure the stack stays there, so that its logs can be shown.
    if not (request.session.testsfailed and os.environ.get("GITHUB_ACTIONS")):
        made.remove()
        shutil.rmtree(paths.STORAGE / "runs" / run, ignore_errors=True)


def test_a_broken_configuration_is_refused_with_every_problem_and_no_traceback(stack: Stack) -> None:
    good = json.loads(json.dumps(stack.values))
    stack.write(workers={"coutn": 3}, training={"steps": -1, "tokensPerStep": "many"})
    refused = stack.pulumi("preview")
    stack.values = good
    stack.write()
    shown = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert "invalid configuration of stack e2e (3 problems)" in shown
    assert "workers.coutn: unknown key; did you mean count?" in shown
    assert "training.steps: -1 is not allowed; must be greater than or equal to 0" in shown
    assert "training.tokensPerStep: 'many' is not a whole number" in shown
    assert "Traceback" not in shown


def test_two_pods_train_a_model_that_is_fetched_and_that_transformers_loads(stack: Stack, tmp_path: Path) -> None:
    stack.up()
    followed = stack.run([PYTHON, "-m", "cli", "follow", "--stack", "e2e"])
    assert followed.returncode == 0, followed.stdout + followed.stderr

    run = tmp_path / "run"
    fetched = stack.run([PYTHON, "-m", "cli", "fetch", "--stack", "e2e", "--to", str(run)], timeout=300)
    assert fetched.returncode == 0, fetched.stdout + fetched.stderr
    done = json.loads((run / "DONE").read_text())
    # From ln 1024 to a loss far below that of a model that knows only the tokens' frequencies.
    assert done["initial_validation_loss"] - done["validation_loss"] > 2.5
    assert done["bits_per_byte"] < 2
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
    logs = stack.run([part for part in shlex.split(stack.outputs()["logsCommand"]) if part != "--follow"], timeout=60)
    assert "event=done" in logs.stdout


def test_tensorboard_shows_the_run(stack: Stack) -> None:
    port = free_port()
    command = shlex.split(stack.outputs()["tensorboardCommand"])
    forward = subprocess.Popen(
        [*command[:-1], f"{port}:6006"], env=stack.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        runs = _get_json(f"http://127.0.0.1:{port}/data/runs", seconds=200)
    except TimeoutError as error:
        raise AssertionError(stack.kubectl("logs", "deployment/tensorboard").stdout) from error
    finally:
        forward.terminate()
        forward.wait(timeout=10)
    assert any(stack.values["job"]["name"] in run for run in runs)


def _get_json(url: str, seconds: float) -> Any:
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                found = json.load(response)
            if found:
                return found
        except OSError:
            pass
        if time.monotonic() > end:
            raise TimeoutError(f"{url} answers nothing")
        time.sleep(1)


def test_a_change_of_the_training_alone_replaces_only_its_job(stack: Stack) -> None:
    stack.write(training={"metrics": {"every": 7}})
    preview = stack.pulumi("preview", "--json")
    assert preview.returncode == 0, preview.stdout + preview.stderr
    steps = json.loads(preview.stdout)["steps"]
    changed = {step["urn"].rsplit("::", 1)[1] for step in steps if step["op"] != "same"}
    # The Job and, with its name, its configuration and the patch that holds its size.
    assert {step["newState"]["type"].rpartition(":")[2] for step in steps if step["op"] == "replace"} == {
        "ConfigMapPatch",
        "Job",
        "JobPatch",
    }
    assert changed - {"trainyard-e2e"} == {"training", "training-size", "training-config"}
    stack.up()
    # The run is done: the new Job sees that and ends at once.
    job = stack.outputs()["jobName"]
    ended = stack.kubectl("wait", "--for=condition=Complete", f"job/{job}", "--timeout=200s")
    assert ended.returncode == 0, ended.stderr
    names = stack.kubectl("get", "jobs", "-o", "name").stdout.split()
    assert sorted(names) == sorted([f"job.batch/{job}", *[name for name in names if "/dataset-" in name]])


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
    assert not (stack.engine().export_stack().deployment or {}).get("resources")
