"""One preparation at a time writes a folder: a second one is told, and a dead one is not waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.data.test_prepare import run
from trainer.data import lock
from trainer.data.batches import open_dataset
from trainer.errors import Passing


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.01)


def test_a_second_preparation_changes_nothing_and_names_the_first(
    text: Path, tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with lock.only_writer(out):
        (out / "index.json").write_text("of the first")
        assert run("--input", text, "--output", out, "--tokenizer", tokenizer) == 75
        assert {path.name for path in out.iterdir()} == {".lock", "index.json"}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--output {out}: another preparation writes it (process ")
    assert not list(out.glob(".lock*"))


def test_the_lock_of_a_preparation_that_was_killed_is_taken(
    text: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lock, "DEAD", 0.1)
    out = tmp_path / "out"
    out.mkdir()
    (out / ".lock").write_text("process 7 of a node that is gone")
    assert run("--input", text, "--output", out, "--tokenizer", tokenizer) == 0
    assert "state=waits" in capsys.readouterr().out
    open_dataset(str(out), verify=True)
    assert not list(out.glob(".lock*"))


def test_one_that_stood_still_and_lost_its_lock_ends_and_leaves_the_lock_to_the_other(tmp_path: Path) -> None:
    def encodes() -> None:
        with lock.only_writer(tmp_path):
            (tmp_path / ".lock").write_text("another")
            while True:  # its own look at the lock ends it
                pass

    with pytest.raises(Passing, match=r"another preparation writes it \(another\)"):
        encodes()
    assert (tmp_path / ".lock").read_text() == "another"
