"""`trainyard init`: the stack file that it writes, what it asks and refuses, and its estimates."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from cli import init
from cli.__main__ import main
from infra.config import StackConfig
from infra.eks.keys import EksConfig
from infra.parse import cluster_kind, parse
from infra.stackfiles import ours, stack_file_values, stacks
from tests.forked import fork
from trainer.config.settings import Config

PLACE = {"gke": ["--project", "my-project-1"], "eks": ["--address", "8.8.8.8/32"], "existing": []}
QWEN = "Qwen/Qwen2.5-0.5B-Instruct"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stack files are written instead of in the checkout."""
    monkeypatch.setattr("cli.init.ROOT", tmp_path)
    return tmp_path


def read(folder: Path, name: str = "mine") -> StackConfig:
    return parse(ours(yaml.safe_load((folder / f"Pulumi.{name}.yaml").read_text())["config"]), name)


def kind(stack: str) -> str:
    return cluster_kind(stack_file_values(stack))


@pytest.mark.parametrize(
    ("like", "model"),
    [
        *((stack, "none") for stack in stacks()),
        *((stack, "modern") for stack in ("gcp-a100", "local")),
        ("gcp-a100", "gpt2"),
        *((stack, QWEN) for stack in ("aws-g4dn", "local")),
    ],
)
def test_what_it_writes_passes_every_check_on_the_machines_of_every_stack(like: str, model: str, written: Path) -> None:
    data = str(talks(written / "chats.jsonl", 700, 2000)) if model == QWEN else "sample"
    assert main(["init", "mine", "--like", like, "--data", data, "--model", model, *PLACE[kind(like)]]) == 0
    made, theirs = read(written), parse(stack_file_values(like), like)
    assert (made.nodes, made.workers.count, made.storage) == (theirs.nodes, theirs.workers.count, theirs.storage)
    training = made.training
    scratch = model in ("none", "modern")
    assert (training.model.name, training.task) == (
        "" if scratch else model,
        "finetune" if model == QWEN else "language_model",
    )
    if model == "modern":
        assert training.recipe == "modern"
        assert training.model.preset == f"modern-{theirs.training.model.preset}"
        assert training.optimizer.learning_rate == Config(recipe="modern").optimizer.learning_rate
    assert (training.adapter.kind == "lora") == (model == QWEN)
    assert training.epochs == (4 if scratch else 3)
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
    assert "cost    about 74.00 to 99.00 USD: 59.52 USD an hour at full size, 0.39 at rest" in shown
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
    model, data = weights(written), talks(written / "chats.jsonl", 240, 9)
    assert main(["init", "mine", "--like", "local", "--data", str(data), "--model", str(model)]) == 0
    assert read(written).training.model.name == "/data/models/weights"
    shown = capsys.readouterr().out
    assert f"  trainyard up --stack mine --data {data} --data {model}\n" in shown


def test_a_link_keeps_its_name_by_which_its_kind_is_known(written: Path) -> None:
    talks(written / "chats.jsonl", 240, 9).rename(written / "0a1b2c")
    (written / "train.jsonl").symlink_to("0a1b2c")
    assert main(["init", "mine", "--like", "local", "--data", str(written / "train.jsonl"), "--model", QWEN]) == 0
    assert read(written).dataset.input[0].endswith("train.jsonl")


def weights(folder: Path, **config: Any) -> Path:
    """A small Llama of 512 positions on this machine."""
    made = folder / "weights"
    made.mkdir()
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64, "vocab_size": 512}
    shape |= {"model_type": "llama", "max_position_embeddings": 512, "intermediate_size": 128}
    (made / "config.json").write_text(json.dumps(shape | config))
    return made


def talks(file: Path, size: int, count: int, form: str = "messages") -> Path:
    """Conversations of up to `size` bytes, the longest in the middle."""
    records: list[dict[str, Any]] = []
    for number in range(count):
        said = "Because. " * ((size if number == count // 2 else size // 2) // 9)
        chat = [{"role": "user", "content": f"Why {number}?"}, {"role": "assistant", "content": said}]
        pair = {"prompt": f"Why {number}?", "completion": said}
        records.append({form: chat} if form != "prompt" else pair)
    text = json.dumps(records) if file.suffix == ".json" else "".join(f"{json.dumps(each)}\n" for each in records)
    text = "\n" * (file.stem == "blank") + text
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file


@pytest.mark.parametrize(
    ("name", "form", "size", "count", "model", "window", "warned"),
    [
        ("chats.jsonl", "messages", 240, 2, QWEN, 256, "steps teach next to nothing (each has at least a window of"),
        ("chats.jsonl", "messages", 8000, 34, QWEN, 4096, ""),
        ("blank.jsonl", "messages", 8000, 34, QWEN, 4096, ""),
        ("chats.json", "conversations", 8000, 34, QWEN, 4096, ""),
        ("chats.jsonl", "messages", 8000, 34, "gpt2", 1024, "is cut off (training.sequenceLength: all that the model"),
        ("chats.jsonl", "messages", 8000, 34, "some/model", 2048, "2,048 is cut off (training.sequenceLength: more"),
        ("chats.jsonl.gz", "prompt", 900, 340, "", 512, "give more data"),
        ("chats.jsonl", "messages", 8000, 34, "", 512, "the longest conversation has up to 3,2"),
    ],
)
def test_the_window_holds_the_longest_conversation_and_there_are_dozens_of_steps(
    name: str,
    form: str,
    size: int,
    count: int,
    model: str,
    window: int,
    warned: str,
    written: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`model`: empty: a folder of this machine."""
    data = talks(written / name, size, count, form)
    given = ["--like", "local", "--model", model or str(weights(written))]
    assert main(["init", "mine", *given, "--data", str(data)]) == 0
    shown, made = capsys.readouterr().out, read(written)
    assert made.training.task == "finetune"
    assert made.training.sequence_length == window
    assert (warned in shown) if warned else ("Warning" not in shown), shown
    steps = data.stat().st_size / 3.85 * made.training.epochs / made.training.tokens_per_step
    assert steps >= 24 or name.endswith("gz") or "teach" in shown
    assert made.job.max_hours <= 24 or size > 10_000
    assert "of unknown" not in shown
    assert ("time    unknown" in shown) == (model == "some/model")


def test_a_chat_whose_longest_is_unknown_keeps_its_window(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (written / "chats.jsonl.zst").write_bytes(9000 * b"x")
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    pair = {"prompt": "Why?", "completion": "Because."}
    for row in ({"messages": chat}, pair, {"text": "The messages.", "prompt": "a"}):
        parquet.write_table(pa.Table.from_pylist([row] * 5000), written / f"{next(iter(row))}.parquet")
    given = ["--like", "local", "--model", QWEN, "--force", "--data"]
    for name, task in (
        ("chats.jsonl.zst", ["--task", "finetune"]),
        ("messages.parquet", []),
        ("prompt.parquet", []),
        ("text.parquet", []),
    ):
        assert main(["init", "mine", *given, str(written / name), *task]) == 0
        made = read(written).training
        assert (made.task == "finetune") == (name != "text.parquet")
        assert made.sequence_length == (2048 if made.task == "finetune" else made.sequence_length)
    (written / "chats.jsonl").write_bytes(json.dumps({"messages": chat}).encode("utf-16") + "\n".encode("utf-16-le"))
    assert main(["init", "mine", *given, str(written / "chats.jsonl")]) == 2
    assert "chats.jsonl: is not UTF-8; convert it, for example with iconv" in capsys.readouterr().err


def test_a_folder_of_this_machine_tells_what_its_model_needs(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4.6 billion parameters, whose name says nothing: only an adapter fits."""
    large = weights(written, num_hidden_layers=32, hidden_size=3072, intermediate_size=12288, num_attention_heads=32)
    words = ["init", "mine", "--like", "aws-g4dn", "--data", "sample", "--address", "8.8.8.8/32", "--model"]
    assert main([*words, str(large)]) in (0, 2)
    shown = capsys.readouterr()
    assert "engine.name" in shown.err or read(written).training.adapter.kind == "lora"
    for broken in (
        "{",
        '{"a": ' + 9**6 * "[",
        '{"n_positions": 64}' + (8 << 20) * " ",
        *(f'{{"n_positions": {given}}}' for given in ('"many"', "1e999", "[9]")),
    ):
        (large / "config.json").write_text(broken)
        assert main([*words, str(large), "--force"]) == 2
        assert capsys.readouterr().err.startswith(f"error: --model {large}: config.json: ")


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
        ([], "missing: NAME; give it, or answer on a terminal"),
        (["mine", "--like", "gcp-c3", "--data", "sample"], "missing: --project; give it, or answer on a terminal"),
        (["mine", "--like", "gcp-c4"], "no stack 'gcp-c4'; there are: aws-g4dn, "),
        (["Mine", "--like", "local", "--data", "sample"], "'Mine' is no name for a stack; allowed: lower-case letters"),
        (["prove-a", "--like", "local", "--data", "sample"], "'prove-a' is no name for a stack; "),
        (["mine", "--like", "local", "--data", "gone.txt"], "--data gone.txt: is not here; give /data/gone.txt"),
        (
            ["mine", "--like", "local", "--data", "a/b"],
            "--data a/b: is not here; give /data/a/b for what is on the volume already, hf:a/b for what is on the hub",
        ),
        (["mine", "--like", "local", "--data", "paper.pdf"], "--data 'paper.pdf': .pdf files are not read"),
        (["mine", "--like", "local", "--data", "mixed.jsonl"], "--data mixed.jsonl: some of its records are conv"),
        (["mine", "--like", "local", "--data", "papers"], "--data papers: holds 1 file such as paper.pdf, which the"),
        (
            ["mine", "--like", "local", "--data", "ftp://x/y", "--model", QWEN],
            "invalid configuration of stack mine (1 problem)\n  dataset.input.0",
        ),
        (["mine", "--like", "local", "--data", "sample", "--epochs", "inf"], "Invalid value for '--epochs'"),
        (["mine", "--like", "gcp-c3", "--data", "sample", "--project", "P"], "invalid configuration of stack mine"),
        (["mine", "--like", "aws-g4dn", "--data", "sample", "--address", "203.0.113.7/32"], "invalid configuration of"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(
    words: list[str], said: str, written: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(written)
    for name in ("paper.pdf", "papers/paper.pdf", "papers/paper.txt", "papers/.git/old.zip"):
        (written / name).parent.mkdir(parents=True, exist_ok=True)
        (written / name).write_text("text")
    (written / "mixed.jsonl").write_text('{"text": "One."}\n{"prompt": "What is two?", "completion": "Two."}\n')
    assert main(["init", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert list(written.glob("Pulumi.*")) == []


def test_no_file_is_overwritten_unless_one_forces_it(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written / "Pulumi.mine.yaml"
    file.write_text("encryptionsalt: v1:abc\nmine: {}\n")
    words = ["init", "mine", "--like", "local", "--data", "sample"]
    assert main(words) == 2
    said = "error: Pulumi.mine.yaml is there; take another name, or --force to overwrite it\n"
    assert (capsys.readouterr().err, file.read_text()) == (said, "encryptionsalt: v1:abc\nmine: {}\n")
    assert main([*words, "--force"]) == 0
    assert read(written).dataset.input == ("sample",)
    assert yaml.safe_load(file.read_text())["encryptionsalt"] == "v1:abc", "the stack's secrets stay readable"


def on_a_terminal(folder: Path, answers: str) -> tuple[int, str]:
    """Exit code and output of `trainyard init` on a terminal where somebody types."""
    ours, theirs = pty.openpty()
    os.write(ours, answers.encode())
    with tempfile.TemporaryFile() as shown:
        streams = (theirs, shown.fileno(), shown.fileno())
        process = fork(["cli", "init"], {**os.environ}, streams, lambda: setattr(init, "ROOT", folder))
        _, status = os.waitpid(process, 0)
        os.close(ours)
        os.close(theirs)
        shown.seek(0)
        return os.waitstatus_to_exitcode(status), shown.read().decode()


def test_on_a_terminal_it_asks_for_what_is_missing_and_again_after_a_wrong_answer(tmp_path: Path) -> None:
    named, like, model, data = "Mine mine", "gcp-c4 aws-smoke", "./gone ", "gone.txt sample"
    answers = f"{named} {like} {model} {data} 203.0.113.7/32 8.8.8.8/32 "
    code, shown = on_a_terminal(tmp_path, answers.replace(" ", "\n"))
    assert code == 0, shown
    assert "Name of the stack: Error: 'Mine' is no name for a stack" in shown
    listed = shown.partition("Machines like those")[0].splitlines()
    assert {line.split()[0] for line in listed if line.startswith("  ")} == set(stacks())
    assert "aws-smoke     EKS in us-" in shown
    assert "USD an hour, 0." in shown
    assert "Error: no stack 'gcp-c4'; there are: " in shown
    assert "none (a GPT-2) or modern (fewer tokens) [none]: Error: --model ./gone: config.json: " in shown
    assert "Error: --data gone.txt: is not here" in shown
    assert "Error: invalid configuration of stack mine (1 problem) eks.apiAllowedCidrs" in " ".join(shown.split())
    assert read(tmp_path).section(EksConfig).api_allowed_cidrs == ("8.8.8.8/32",)


def test_ctrl_c_at_a_question_writes_nothing(tmp_path: Path) -> None:
    code, shown = on_a_terminal(tmp_path, "mine\n\x04")
    assert code == 130, shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []
