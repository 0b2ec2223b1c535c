"""`trainyard init`: the stack file that it writes, what it asks and refuses, and its estimates."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import main
from infra.config import StackConfig
from infra.eks.keys import EksConfig
from infra.parse import cluster_kind, parse
from infra.stackfiles import ROOT, ours, stack_file_values, stacks

PLACE = {"gke": ["--project", "my-project-1"], "eks": ["--address", "8.8.8.8/32"], "existing": []}
QWEN = "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stack files are written instead of in the checkout."""
    monkeypatch.setattr("cli.init.ROOT", tmp_path)
    return tmp_path


def chats(folder: Path, count: int = 2000) -> Path:
    file = folder / "chats.jsonl"
    talk = {"messages": [{"role": "user", "content": "Why?" * 20}, {"role": "assistant", "content": "Because. " * 40}]}
    file.write_text(f"{json.dumps(talk)}\n" * count)
    return file


def read(folder: Path, name: str = "mine") -> StackConfig:
    return parse(ours(yaml.safe_load((folder / f"Pulumi.{name}.yaml").read_text())["config"]), name)


def kind(stack: str) -> str:
    return cluster_kind(stack_file_values(stack))


@pytest.mark.parametrize("like", stacks())
@pytest.mark.parametrize("model", ["none", "gpt2", QWEN])
def test_what_it_writes_passes_every_check_on_the_machines_of_every_stack(like: str, model: str, written: Path) -> None:
    data = str(chats(written)) if model == QWEN else "sample"
    assert main(["init", "mine", "--like", like, "--data", data, "--model", model, *PLACE[kind(like)]]) == 0
    made, theirs = read(written), parse(stack_file_values(like), like)
    assert (made.nodes, made.workers.count, made.storage) == (theirs.nodes, theirs.workers.count, theirs.storage)
    training = made.training
    assert (training.model.name, training.task) == (
        "" if model == "none" else model,
        "finetune" if model == QWEN else "language_model",
    )
    assert (training.adapter.kind == "lora") == (model == QWEN)
    assert training.epochs == (4 if model == "none" else 3)
    assert training.steps == 0
    if kind(like) == "existing":
        assert made.cluster.namespace == "mine", "beside the stack whose machines it has"


def test_steps_and_the_time_limit_follow_from_the_data(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the arithmetic of docs/costs.md: 75 to 100 minutes for 10.5 G tokens on gcp-a100."""
    words = ["init", "mine", "--like", "gcp-a100", "--data", "hf:Skylion007/openwebtext", "--tokens", "11038000000"]
    assert main([*words, "--project", "my-project-1"]) == 0
    shown = capsys.readouterr().out
    assert "epochs  1: about 20,000 steps of 524,288 tokens" in shown
    assert "time    about 75 to 100 minutes by arithmetic" in shown
    assert "cost    about 74 to 99 USD: 59.52 USD an hour at full size, 0.39 at rest" in shown
    assert read(written).job.max_hours == 6
    (written / "Pulumi.mine.yaml").unlink()
    (written / "book.txt").write_text("All happy families are alike. " * 40_000)
    assert (
        main(["init", "mine", "--like", "gcp-c3", "--data", str(written / "book.txt"), "--project", "my-project-1"])
        == 0
    )
    small = read(written)
    assert "1.2 MB, about 310,000 tokens" in capsys.readouterr().out
    assert 310_000 * 4 / small.training.tokens_per_step > 300 > small.training.optimizer.warmup_steps > 0
    assert small.dataset.input == ("book.txt",)


def test_without_a_size_nothing_is_made_up(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["init", "mine", "--like", "gcp-c3", "--data", "hf:some/text", "--model", "some/model"]
    assert main([*words, "--project", "my-project-1"]) == 0
    shown = capsys.readouterr().out
    assert "data    of unknown size until it is prepared" in shown
    assert "time    unknown, as the size of the data is" in shown
    assert "cost    2.26 USD an hour at full size" in shown
    (written / "Pulumi.mine.yaml").unlink()
    assert main([*words, "--tokens", "5000000", "--project", "my-project-1"]) == 0
    assert "time    unknown, as the size of some/model is" in capsys.readouterr().out


def test_what_lies_on_this_machine_is_to_be_uploaded(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = written / "weights"
    model.mkdir()
    data = chats(written)
    assert main(["init", "mine", "--like", "local", "--data", str(data), "--model", str(model)]) == 0
    assert read(written).training.model.name == "/data/models/weights"
    shown = capsys.readouterr().out
    assert f"  trainyard upload {data} --stack mine\n" in shown
    assert f"  trainyard upload {model} --to models/weights --stack mine\n" in shown


def test_a_model_that_needs_more_memory_gets_it_or_the_line_of_the_check(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--like", "local", "--data", "sample", "--model"]
    assert main(["init", "mine", *words, "Qwen/Qwen2.5-0.5B"]) == 0
    assert read(written).workers.memory_gib == 16
    assert main(["init", "larger", *words, "some/model-1b"]) == 0
    assert read(written, "larger").training.adapter.kind == "lora"
    assert main(["init", "large", *words, "some/model-700b"]) == 2
    assert "training.engine.name: some/model-700b with ddp needs" in capsys.readouterr().err
    assert not (written / "Pulumi.large.yaml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "missing: NAME, --like, --data; give it, or answer on a terminal"),
        (["mine", "--like", "gcp-c3"], "missing: --data, --project; give it, or answer on a terminal"),
        (["mine", "--like", "gcp-c4"], "no stack 'gcp-c4'; there are: aws-g4dn, "),
        (["Mine", "--like", "local", "--data", "sample"], "'Mine' is no name for a stack; allowed: lower-case letters"),
        (["prove-a", "--like", "local", "--data", "sample"], "'prove-a' is no name for a stack; "),
        (["mine", "--like", "local", "--data", "gone.txt"], "--data gone.txt: is not here; give /data/gone.txt"),
        (["mine", "--like", "gcp-c3", "--data", "sample", "--project", "P"], "invalid configuration of stack mine"),
        (["mine", "--like", "aws-g4dn", "--data", "sample", "--address", "203.0.113.7/32"], "invalid configuration of"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(
    words: list[str], said: str, written: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["init", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert list(written.glob("Pulumi.*")) == []


def test_no_file_is_overwritten(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (written / "Pulumi.mine.yaml").write_text("mine")
    assert main(["init", "mine", "--like", "local", "--data", "sample"]) == 2
    assert capsys.readouterr().err == "error: Pulumi.mine.yaml is there, and is not overwritten; take another name\n"
    assert (written / "Pulumi.mine.yaml").read_text() == "mine"


def on_a_terminal(folder: Path, answers: str) -> tuple[int, str]:
    """Exit code and output of `trainyard init` on a terminal where somebody types."""
    program = f"import sys, pathlib, cli.init; cli.init.ROOT = pathlib.Path({str(folder)!r})\n"
    program += "from cli.__main__ import main; sys.exit(main(['init']))"
    ours, theirs = pty.openpty()
    os.write(ours, answers.encode())
    options: dict[str, Any] = {"stdin": theirs, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=120, **options)
    os.close(ours)
    os.close(theirs)
    return done.returncode, done.stdout


def test_on_a_terminal_it_asks_for_what_is_missing(tmp_path: Path) -> None:
    code, shown = on_a_terminal(tmp_path, "mine\naws-smoke\n\nsample\n8.8.8.8/32\n")
    assert code == 0, shown
    assert "Name of the stack: " in shown
    assert "or none for a GPT-2 from scratch [none]: " in shown
    assert read(tmp_path).section(EksConfig).api_allowed_cidrs == ("8.8.8.8/32",)


def test_ctrl_c_at_a_question_writes_nothing(tmp_path: Path) -> None:
    code, shown = on_a_terminal(tmp_path, "mine\n\x04")
    assert code == 130, shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []
