"""Preparation is done once, is complete or absent, and tells bad input in one line."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from trainer import prepare
from trainer.data import open_dataset


def run(*arguments: str | Path) -> int:
    return prepare.main([str(argument) for argument in arguments])


def text_of(folder: Path, split: str) -> str:
    """A split decoded back to text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = np.concatenate([np.fromfile(path, np.uint16) for path in sorted(folder.glob(f"{split}-*.bin"))])
    return tokenizer.decode(ids.tolist(), skip_special_tokens=False)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(prepare.SAMPLE.read_text("utf-8")[:100_000], encoding="utf-8")
    return path


def test_a_second_run_finds_the_dataset_and_changes_nothing(
    text: Path, tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--input", text, "--output", tmp_path / "out", "--tokenizer", tokenizer)
    assert run(*arguments) == 0
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "out").iterdir()}
    assert "state=written" in capsys.readouterr().out
    assert run(*arguments) == 0
    assert "state=found" in capsys.readouterr().out
    assert before == {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("change", ["text", "fraction", "lost shard"])
def test_another_recipe_or_a_lost_shard_is_prepared_again(
    text: Path, tmp_path: Path, tokenizer: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--input", str(text), "--output", str(tmp_path / "out"), "--tokenizer", str(tokenizer)]
    assert run(*arguments) == 0
    if change == "text":
        text.write_text(text.read_text("utf-8") + "More.\n", encoding="utf-8")
    elif change == "fraction":
        arguments += ["--validation-fraction", "0.3"]
    else:
        (tmp_path / "out" / "train-00000.bin").unlink()
    capsys.readouterr()
    assert run(*arguments) == 0
    assert "state=written" in capsys.readouterr().out
    open_dataset(str(tmp_path / "out"), verify=True)


def test_no_text_is_lost_and_none_is_in_both_splits(text: Path, tmp_path: Path, tokenizer: Path) -> None:
    assert run("--input", text, "--output", tmp_path / "out", "--tokenizer", tokenizer) == 0
    source = text.read_text("utf-8")
    train, held_out = text_of(tmp_path / "out", "train"), text_of(tmp_path / "out", "validation")
    pieces = [piece for split in (train, held_out) for piece in split.split("<|endoftext|>")]
    assert sum(map(len, pieces)) == len(source)
    assert all(piece in source for piece in pieces)
    assert not any(piece in train for piece in held_out.split("<|endoftext|>"))
    assert 0.02 < len(held_out) / len(source) < 0.15


def test_many_documents_are_held_out_whole(tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:03d}.txt").write_text(f"Document {number} speaks of light. " * 20, encoding="utf-8")
    assert run("--input", folder, "--output", tmp_path / "out", "--tokenizer", tokenizer) == 0
    held_out = text_of(tmp_path / "out", "validation").split("<|endoftext|>")
    assert len(held_out) == 3
    assert all(document.count("Document") == 20 for document in held_out)
    assert text_of(tmp_path / "out", "train").count("<|endoftext|>") == 60 - 3 - 1


def test_shards_are_cut_to_size_and_the_index_counts_them(text: Path, tmp_path: Path, tokenizer: Path) -> None:
    assert run("--input", text, "--output", tmp_path / "a", "--tokenizer", tokenizer, "--shard-tokens", "3000") == 0
    assert run("--input", text, "--output", tmp_path / "b", "--tokenizer", tokenizer) == 0
    sizes = [path.stat().st_size for path in sorted((tmp_path / "a").glob("train-*.bin"))]
    assert set(sizes[:-1]) == {6000}
    assert text_of(tmp_path / "a", "train") == text_of(tmp_path / "b", "train")
    index = json.loads((tmp_path / "a" / "index.json").read_text())
    assert index["splits"]["train"]["tokens"] == sum(sizes) // 2


def _die_before_the_index(arguments: list[str]) -> None:
    prepare.write_json = lambda *_: os._exit(9)  # pyright: ignore[reportAttributeAccessIssue]
    prepare.main(arguments)


def test_a_killed_preparation_is_not_taken_for_a_dataset(text: Path, tmp_path: Path, tokenizer: Path) -> None:
    arguments = ["--input", str(text), "--output", str(tmp_path / "out"), "--tokenizer", str(tokenizer)]
    child = multiprocessing.get_context("spawn").Process(target=_die_before_the_index, args=(arguments,))
    child.start()
    child.join()
    assert child.exitcode == 9
    assert not (tmp_path / "out" / "index.json").exists()
    assert run(*arguments) == 0
    open_dataset(str(tmp_path / "out"), verify=True)


def test_gpt2s_own_tokenizer_needs_no_network_and_matches_its_known_ids(tmp_path: Path) -> None:
    from trainer.tokenizer import load

    tokenizer = load("gpt2")
    # As OpenAI's encoder and every copy of it encodes this text.
    assert tokenizer.encode("Hello world, it's 1704.<|endoftext|>").ids == [
        15496,
        995,
        11,
        340,
        338,
        1596,
        3023,
        13,
        50256,
    ]
    assert tokenizer.get_vocab_size() == 50257
    assert tokenizer.decode(tokenizer.encode("Ælfric’s  naïve\ttest\n").ids) == "Ælfric’s  naïve\ttest\n"


def test_the_sample_is_in_the_package_and_small_enough() -> None:
    assert prepare.find_files(["sample"]) == [prepare.SAMPLE]
    assert 500_000 < prepare.SAMPLE.stat().st_size < 600_000


@pytest.mark.parametrize(
    ("content", "extra", "said"),
    [
        (None, [], "no such file or folder"),
        (b"", [], "is empty"),
        (b"\xff\xfe\x00latin", [], "not UTF-8"),
        (b"too short", [], "give more text"),
        (b"text", ["--validation-fraction", "2"], "between 0 and 1"),
        (b"text", ["--tokenizer", "no/such-tokenizer"], "give gpt2"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path,
    tokenizer: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    extra: list[str],
    said: str,
) -> None:
    path = tmp_path / "input.txt"
    if content is not None:
        path.write_bytes(content)
    code = run("--input", path, "--output", tmp_path / "out", "--tokenizer", tokenizer, *extra)
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out" / "index.json").exists()
