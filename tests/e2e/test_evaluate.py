"""`trainyard evaluate` on the real node: a task of one's own judges a checkpoint in a Job made of the training's."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from chaos.nodes import ROOT
from chaos.stack import Stack
from local import paths

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = f"judged-{uuid.uuid4().hex[:8]}"
PYTHON = str(ROOT / ".venv/bin/python")
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


@pytest.fixture(scope="module")
def stack(node_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Up with a training of seconds on the sample, that has ended, and a task on its volume."""
    made = Stack("judge", tmp_path_factory.mktemp("judge"), node_environment)
    made.write(
        workers={"count": 1, "min": 1},
        dataset={"name": NAME},
        job={"name": NAME},
        training={
            "model": {"preset": "tiny"},
            "steps": 4,
            "tokensPerStep": 1024,
            "optimizer": {"warmupSteps": 1},
            "evaluation": {"every": 4, "batches": 2},
        },
    )
    made.select()
    made.up()
    followed = tool(made, "follow")
    assert followed.returncode == 0, followed.stdout + followed.stderr
    assert "bits per byte" in followed.stdout
    folder = tmp_path_factory.mktemp("tasks") / NAME
    folder.mkdir()
    (folder / "questions.json").write_text("\n".join(map(json.dumps, QUESTIONS)))
    (folder / "own_choice.yaml").write_text(TASK)
    sent = tool(made, "upload", str(folder))
    assert sent.returncode == 0, sent.stdout + sent.stderr
    yield made
    made.remove()
    for path in paths.STORAGE.glob(f"**/{NAME}*"):
        shutil.rmtree(path, ignore_errors=True)


def tool(stack: Stack, command: str, *arguments: str) -> CompletedProcess[str]:
    return stack.run([PYTHON, "-m", "cli", command, "--stack", stack.name, *arguments], timeout=600)


def test_a_checkpoint_is_judged_and_the_table_comes_with_the_report(stack: Stack, tmp_path: Path) -> None:
    judged = tool(stack, "evaluate", "--tasks", "own_choice", "--include", NAME, "--limit", "5")
    assert judged.returncode == 0, judged.stdout + judged.stderr
    (row,) = [line.split() for line in judged.stdout.splitlines() if line.split()[1:2] == ["own_choice"]]
    assert row[:3] == ["4", "own_choice", "acc"]
    fetched = tool(stack, "fetch", "--to", str(tmp_path / "run"))
    assert fetched.returncode == 0, fetched.stdout + fetched.stderr
    (task,) = json.loads((tmp_path / "run" / "evaluations" / "step-4.json").read_text())["tasks"].values()
    assert (task["samples"], task["limit"], task["version"]) == (5, 5, 3.0)
    assert row[3] == f"{task['metrics']['acc']['value']:.4f}"
    assert "own_choice" in (tmp_path / "run" / "report" / "index.html").read_text()
    made = json.loads(stack.kubectl("get", "jobs", "-l", "app.kubernetes.io/managed-by=trainyard", "-o", "json").stdout)
    (job,) = made["items"]
    assert job["spec"]["ttlSecondsAfterFinished"] <= 600, "nothing stays"


def test_a_task_that_does_not_exist_is_one_line(stack: Stack) -> None:
    """With the harness's own 14,000 tasks, which take half a minute to list."""
    judged = tool(stack, "evaluate", "--tasks", "own_choise", "--include", NAME)
    assert judged.returncode == 1
    error = judged.stderr.strip().splitlines()[-1]
    assert error.startswith("error: the evaluation failed: --tasks own_choise: no such task; similar ones: own_choice")
    assert "Traceback" not in judged.stdout + judged.stderr


def test_a_step_that_has_no_checkpoint_is_told_before_anything_is_made(stack: Stack) -> None:
    judged = tool(stack, "evaluate", "--tasks", "own_choice", "--step", "3")
    assert judged.returncode == 2
    assert "--step 3: no such checkpoint; there are: 4" in judged.stderr
