"""The documents say what the code does."""

from __future__ import annotations

import importlib
import io
import re
import shlex
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from review.reference import figures
from tests.trainer.conftest import ROOT
from trainer.config.schema import EXAMPLES
from trainer.data import sources
from trainer.train.metrics import StepFigures


def test_every_example_is_listed() -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    sentence = page.partition("The examples are ")[2].partition("\n\n")[0]
    listed = re.findall(r"`([a-z0-9-]+)`", sentence)
    assert sorted(listed) == sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def test_every_figure_is_listed_with_its_sentence() -> None:
    """review.reference reads the source; a field without a sentence would be left out, or get another one's."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (.+) \|$", figures(), re.MULTILINE)
    assert [name for name, _ in rows] == [field.name for field in fields(StepFigures)]


def test_every_event_that_the_trainer_tells_is_explained() -> None:
    rows = re.findall(r"^\| (`.*?`) \| ", (ROOT / "docs" / "model.md").read_text("utf-8"), re.MULTILINE)
    explained = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)} | {"name"}  # name: in metrics.event
    told: set[str] = set()
    for file in (ROOT / "trainer").rglob("*.py"):
        text = file.read_text("utf-8")
        told |= set(re.findall(r"""event\(\s*"([a-z_]+)\"""", text)) | set(re.findall(r"event=\"?([a-z_]+)", text))
    assert told - explained == set()


def test_the_commands_work_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each `python -m trainer...` of both documents, in their order, with little text, few steps and a local model."""
    (tmp_path / "opticks.txt").write_text(sources.SAMPLE.read_text("utf-8")[:60_000], "utf-8")
    monkeypatch.setattr(sources, "SAMPLE", tmp_path / "opticks.txt")
    monkeypatch.setattr("sys.stdin", io.StringIO("The rays"))
    monkeypatch.setattr("trainer.report.vega", str)
    done: list[str] = []
    for name in ("training.md", "model.md"):
        blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / name).read_text("utf-8"), re.DOTALL)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("/data/", f"{tmp_path}/").replace("< prompt.txt", ""), comments=True)
            if (
                words[:2] != ["python", "-m"] or "gpt2-small-c3-bf16" in words
            ):  # that one begins with weights of the hub
                continue
            module, arguments = words[2], words[3:]
            if module == "trainer.train":
                arguments += ["sequence_length=32", "micro_batch=1", "tokens_per_step=64"]
                arguments += ["steps=2", "evaluation.batches=2", "metrics.tensorboard=false"]
                arguments += ["evaluation.sample_tokens=4"]
            if "gpt2" in arguments:
                arguments[arguments.index("gpt2")] = str(tmp_path / "runs/first/checkpoints/step-00000002/model")
            if module == "trainer.report":
                shutil.copytree(tmp_path / "runs/first", tmp_path / "runs/second")
            found = importlib.import_module(module)
            entrance = found if hasattr(found, "main") else importlib.import_module(f"{module}.__main__")
            assert entrance.main(arguments) in (0, None), line + capsys.readouterr().err
            done.append(module)
    modules = {f"trainer.{name}" for name in ("prepare", "train", "sample", "evaluate", "export", "report")}
    assert set(done) == modules
