"""`trainyard evaluate` on the real node: an own task judges a checkpoint in a Job derived from the training's."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from faults.stack import Stack
from local import paths
from tests.e2e.conftest import succeed, tool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = f"judged-{uuid.uuid4().hex[:8]}"
QUESTIONS = [{"question": f"Light {number}", "choices": ["is a Ray", "xq"], "answer": 0} for number in range(6)]
TASK = f"""
task: own_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: /data/{NAME}/questions.json}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: "{{{{choices}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 3.0}}
"""


@pytest.fixture(scope="module", autouse=True)
def task(stack: Stack, trained: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Upload the task."""
    folder = tmp_path_factory.mktemp("tasks") / NAME
    folder.mkdir()
    (folder / "questions.json").write_text("\n".join(map(json.dumps, QUESTIONS)))
    (folder / "own_choice.yaml").write_text(TASK)
    succeed(stack, "upload", str(folder))
    yield
    shutil.rmtree(paths.STORAGE / NAME, ignore_errors=True)


@pytest.fixture(scope="module")
def last(stack: Stack) -> int:
    """The last step of the run, which has ended."""
    run = PurePosixPath(stack.outputs()["runDirectory"]).relative_to("/data")
    return json.loads((paths.STORAGE / run / "DONE").read_text())["step"]


def test_a_checkpoint_is_judged_and_the_table_comes_with_the_report(stack: Stack, last: int, tmp_path: Path) -> None:
    judged = succeed(stack, "evaluate", "--tasks", "own_choice", "--include", NAME, "--limit", "5")
    (row,) = [line.split() for line in judged.splitlines() if line.split()[1:2] == ["own_choice"]]
    assert row[:3] == [str(last), "own_choice", "acc"]
    succeed(stack, "fetch", "--to", str(tmp_path / "run"))
    (task,) = json.loads((tmp_path / "run" / "evaluations" / f"step-{last}.json").read_text())["tasks"].values()
    assert (task["samples"], task["limit"], task["version"]) == (5, 5, 3.0)
    assert row[3] == f"{task['metrics']['acc']['value']:.4f}"
    assert "own_choice" in (tmp_path / "run" / "report" / "index.html").read_text()
    made = json.loads(stack.kubectl("get", "jobs", "-l", "app.kubernetes.io/managed-by=trainyard", "-o", "json").stdout)
    (job,) = made["items"]
    assert job["spec"]["ttlSecondsAfterFinished"] <= 600, "nothing stays"


def test_a_task_that_cannot_be_judged_is_one_line(stack: Stack) -> None:
    """The pod finds it out; tests/trainer/test_harness.py has all such errors."""
    (paths.STORAGE / NAME / "questions.json").unlink()
    judged = tool(stack, "evaluate", "--tasks", "own_choice", "--include", NAME)
    assert judged.returncode == 1
    error = judged.stderr.strip().splitlines()[-1]
    assert error.startswith("error: the evaluation failed: --tasks own_choice: cannot load its data (json)")
    assert "Traceback" not in judged.stdout + judged.stderr


def test_a_step_that_has_no_checkpoint_is_told_before_anything_is_made(stack: Stack, last: int) -> None:
    judged = tool(stack, "evaluate", "--tasks", "own_choice", "--step", "3")
    assert judged.returncode == 2
    assert "--step 3: no such checkpoint; there are: " in judged.stderr
    assert judged.stderr.strip().endswith(str(last))
