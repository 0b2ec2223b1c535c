"""Shards of text: on the disk before the index names them, never changed under a reader, part of any text held out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import Disk
from tests.trainer.data.test_prepare import run, text_of
from trainer import prepare
from trainer.contract import EXIT_USAGE
from trainer.data import documents, shards
from trainer.data.batches import open_dataset
from trainer.data.lock import LOCK


def test_a_power_cut_finds_every_file_of_a_finished_dataset(
    text: Path, tmp_path: Path, tokenizer: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, source = tmp_path / "out", tmp_path / "tokenizer"
    shutil.copytree(tokenizer, source)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    sweep, files = prepare._sweep, list[Path]()

    def sweeps(*given: Any) -> None:
        if (out / "index.json").exists():  # at the end, not before the first shard
            files.extend(
                path for path in out.rglob("*") if path.is_file() and not {prepare.PROGRESS, LOCK} & {*path.parts}
            )
            assert not disk.lost([*files, out])
        sweep(*given)

    monkeypatch.setattr(prepare, "_sweep", sweeps)
    assert run("--input", text, "--output", out, "--tokenizer", source, "--workers", "1") == 0
    assert {path.suffix for path in files} == {".bin", ".jinja", ".json"}
    assert len(list(out.glob("*.bin"))) >= 2


def test_who_reads_the_former_shards_goes_on_reading_them(text: Path, tmp_path: Path, tokenizer: Path) -> None:
    arguments = ("--input", text, "--output", tmp_path / "out", "--tokenizer", tokenizer)
    assert run(*arguments) == 0
    former = open_dataset(str(tmp_path / "out")).train
    before = former.read(0, 5_000).copy()
    text.write_text(text.read_text("utf-8").swapcase(), encoding="utf-8")
    assert run(*arguments) == 0
    assert (open_dataset(str(tmp_path / "out")).train.read(0, 5_000) != before).any()
    assert (former.read(0, 5_000) == before).all(), "mapped by a training that still runs"


@pytest.mark.parametrize("group", [-1, 0])
def test_little_text_has_something_held_out_whatever_the_seed(group: int) -> None:
    """Ten passages of a file, or ten files, where one in twenty is held out."""
    for seed in range(50):
        recipe = shards.Recipe("file", "text", 0.05, seed, by_document=group < 0)
        assert any(shards.held_out(recipe, group, number) for number in range(10))


def test_files_that_are_held_out_are_as_many_in_pieces_of_any_size(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in twenty, also where a piece has fewer than twenty files."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:03d}.txt").write_text(f"Document {number} speaks of light. " * 20, encoding="utf-8")
    assert run("--input", folder, "--output", tmp_path / "one", "--tokenizer", tokenizer) == 0
    monkeypatch.setattr(documents, "PIECE_BYTES", 2000)
    assert run("--input", folder, "--output", tmp_path / "many_pieces", "--tokenizer", tokenizer) == 0
    assert len(list((tmp_path / "many_pieces").glob("train-*.bin"))) > 10
    one, many = (open_dataset(str(tmp_path / name)) for name in ("one", "many_pieces"))
    held_out = many.validation.read(0, len(many.validation))
    *texts, last = text_of(tmp_path / "one", "validation").split("<|endoftext|>")
    assert [text.count("Document") for text in texts] == [20] * 3, "whole documents"
    assert last == "", "every document is ended"
    assert text_of(tmp_path / "one", "train").count("<|endoftext|>") == 60 - 3
    assert held_out.tolist() == one.validation.read(0, len(one.validation)).tolist()


class PanicException(BaseException):
    """As pyo3 raises it where Rust gives up."""


@pytest.mark.parametrize("where", ["encoding", "beginning"])
def test_a_tokenizer_whose_library_panics_is_one_line_and_no_reason_to_try_again(
    where: str,
    text: Path,
    tmp_path: Path,
    tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def panics(*given: object) -> Any:
        raise PanicException("called `Result::unwrap()` on an `Err` value:\n\tOnig(retry-limit-in-match over)")

    if where == "encoding":
        monkeypatch.setattr(shards.Encoder, "__call__", panics)
    if where == "beginning":
        monkeypatch.setattr(prepare, "unfit", panics)
    assert run("--input", text, "--output", tmp_path / "out", "--tokenizer", tokenizer, "--workers", "1") == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--tokenizer: cannot encode ")
    assert line.endswith("Onig(retry-limit-in-match over)); give another tokenizer")
    assert where == "beginning" or str(text) in line
