"""Preparation runs once, ends complete or absent, and reports bad input in one line; see test_trained_tokenizer.py."""

from __future__ import annotations

import errno
import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from trainer import prepare
from trainer.data import documents, pool, shards
from trainer.data.batches import open_dataset


def run(*arguments: str | Path) -> int:
    return prepare.main([str(argument) for argument in arguments])


def text_of(folder: Path, split: str) -> str:
    """A split decoded back to text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = np.concatenate([np.fromfile(path, np.uint16) for path in sorted(folder.glob(f"{split}-*.bin"))])
    return tokenizer.decode(ids.tolist(), skip_special_tokens=False)


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
        next((tmp_path / "out").glob("train-*.bin")).unlink()
    capsys.readouterr()
    assert run(*arguments) == 0
    assert "state=written" in capsys.readouterr().out
    open_dataset(str(tmp_path / "out"), verify=True)


@pytest.mark.parametrize("change", [("--tokenizer", "gpt2"), ("--conversations",)])
def test_what_a_training_may_still_read_is_not_replaced(
    tmp_path: Path, tokenizer: Path, change: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    source, record = tmp_path / "texts.jsonl", {"text": "Light is rays.", "prompt": "Light?", "completion": "Rays."}
    source.write_text(f"{json.dumps(record)}\n" * 40)
    arguments = ["--input", source, "--output", tmp_path / "out", "--validation-fraction", "0.3"]
    arguments += ["--tokenizer", tokenizer]
    assert run(*arguments) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert run(*arguments, *change) == 2
    assert f"holds text in the tokens of {tokenizer}, which would be lost" in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_no_text_is_lost_and_none_is_in_both_splits(text: Path, tmp_path: Path, tokenizer: Path) -> None:
    assert run("--input", text, "--output", tmp_path / "out", "--tokenizer", tokenizer) == 0
    source = text.read_text("utf-8")
    train, held_out = text_of(tmp_path / "out", "train"), text_of(tmp_path / "out", "validation")
    pieces = [piece for split in (train, held_out) for piece in split.split("<|endoftext|>")]
    assert sum(map(len, pieces)) == len(source)
    assert all(piece in source for piece in pieces)
    assert not any(piece in train for piece in held_out.split("<|endoftext|>") if piece)
    assert 0.02 < len(held_out) / len(source) < 0.15


def test_shards_are_cut_to_size_and_the_index_counts_them(
    text: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--input", text, "--output", tmp_path / "b", "--tokenizer", tokenizer) == 0
    monkeypatch.setattr(shards, "SHARD_TOKENS", 6000)
    assert run("--input", text, "--output", tmp_path / "a", "--tokenizer", tokenizer) == 0
    sizes = [path.stat().st_size for path in sorted((tmp_path / "a").glob("train-*.bin"))]
    assert max(sizes) <= 12_000
    assert len(sizes) > 5
    assert text_of(tmp_path / "a", "train") == text_of(tmp_path / "b", "train")
    index = json.loads((tmp_path / "a" / "index.json").read_text())
    assert index["splits"]["train"]["tokens"] == sum(sizes) // 2


def test_gpt2s_own_tokenizer_needs_no_network_and_matches_its_known_ids(tmp_path: Path) -> None:
    from trainer.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer("gpt2")
    # As OpenAI's encoder and every copy of it encodes this text.
    known = [15496, 995, 11, 340, 338, 1596, 3023, 13, 50256]
    assert tokenizer.encode("Hello world, it's 1704.<|endoftext|>").ids == known
    assert tokenizer.get_vocab_size() == 50257
    assert tokenizer.decode(tokenizer.encode("Ælfric’s  naïve\ttest\n").ids) == "Ælfric’s  naïve\ttest\n"


@pytest.mark.parametrize(
    ("content", "extra", "said"),
    [
        (b"too short", [], "validation split empty with --validation-fraction 0.05; give more (about 81 kB of text)"),
        (b"text", ["--validation-fraction", "2"], "between 0 and 1"),
        (b"text", ["--tokenizer", "no/such-tokenizer"], "give gpt2"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path,
    tokenizer: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    extra: list[str],
    said: str,
) -> None:
    path = tmp_path / "input.txt"
    path.write_bytes(content)
    code = run("--input", path, "--output", tmp_path / "out", "--tokenizer", tokenizer, *extra)
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out" / "index.json").exists()


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Five files of some hundred documents."""
    lines = (prepare.SAMPLE.read_text("utf-8")[:150_000] * 2).split("\n\n")
    records = [json.dumps({"text": line}) + "\n" for line in lines if line.strip()]
    folder = tmp_path_factory.mktemp("pieces")
    for number in range(5):
        (folder / f"{number}.jsonl").write_text("".join(records[number::5]), encoding="utf-8")
    return [str(folder)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def in_pieces(pieces: list[str], tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Prepare these files in many pieces of work."""
    monkeypatch.setattr(documents, "PIECE_BYTES", 20_000)
    options = ("--input", *pieces, "--tokenizer", tokenizer)
    return lambda output, workers=1: run(*options, "--output", output, "--workers", str(workers))


def test_the_bytes_do_not_depend_on_the_number_of_processes(in_pieces: Callable[..., int], tmp_path: Path) -> None:
    assert in_pieces(tmp_path / "one") == in_pieces(tmp_path / "two", workers=2) == 0
    assert len(contents(tmp_path / "one")) > 20
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_full_disk_is_one_line_and_what_is_finished_and_whole_stays(
    in_pieces: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, calls = shards.fsync, iter(range(1000))

    def fails(path: Path) -> None:
        if next(calls) == 7:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(shards, "fsync", fails)
        assert in_pieces(out) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "No space left on device" in error
    assert "run the same command again" in error
    assert not (out / "index.json").exists()
    recorded = [json.loads(path.read_text()) for path in sorted((out / ".progress").glob("*/[0-9]*.json"))]
    assert len(recorded) == 7
    harmed = out / recorded[3]["train"][0]["file"]  # does not match its checksum
    harmed.write_bytes(harmed.read_bytes()[:-2] + b"xx")
    before = {path: path.stat().st_mtime_ns for path in out.glob("train-*.bin")}
    assert in_pieces(out) == in_pieces(tmp_path / "straight") == 0
    assert contents(out) == contents(tmp_path / "straight")
    kept = [out / shard["file"] for part in recorded for shard in part["train"]]
    again = {path for path in kept if path.stat().st_mtime_ns != before[path]}
    assert again == {out / shard["file"] for shard in recorded[3]["train"]}


def test_the_fraction_holds_and_the_seed_chooses(pieces: list[str], tmp_path: Path, tokenizer: Path) -> None:
    shares = {}
    for seed in (0, 1):
        out = tmp_path / str(seed)
        options = ("--validation-fraction", "0.1", "--seed", seed)
        assert run("--input", *pieces, "--output", out, "--tokenizer", tokenizer, *map(str, options)) == 0
        index = json.loads((out / "index.json").read_text())
        held = text_of(out, "validation").count("<|endoftext|>")
        shares[seed] = (held, text_of(out, "validation"))
        assert abs(held / index["documents"] - 0.1) < 0.02
    assert shares[0][1] != shares[1][1]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_read_is_told_before_a_piece_ends(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """A large compressed file is one piece: without its bytes nothing would be told for minutes."""
    real, before, after = pool._parts, threading.Event(), threading.Event()

    def event(_name: str, **fields: str) -> None:
        if fields["pieces"] == "0/2" and fields["read_mib"] == "2/2":
            before.set()
        if fields["pieces"] == "1/2" and "eta_seconds" in fields:
            after.set()

    def parts(*given: Any) -> Iterator[Any]:
        found = list(real(*given))  # no piece has ended for run()
        assert before.wait(20)
        yield found[0]
        assert after.wait(20)
        yield found[1]

    monkeypatch.setattr(documents, "PIECE_BYTES", 1)
    monkeypatch.setattr(pool, "LOG_SECONDS", 0.01)
    monkeypatch.setattr(pool, "event", event)
    monkeypatch.setattr(pool, "_parts", parts)
    for number in range(2):
        (tmp_path / f"{number}.txt.gz").write_bytes(gzip.compress(b"Rays of light.\n\n" * 70_000, 0))
    options = ("--tokenizer", tokenizer, "--workers", str(workers))
    run("--input", f"{tmp_path}/*.gz", "--output", tmp_path / "out", *options)
    assert after.is_set()


def test_what_abandoned_preparations_left_goes_with_the_next(
    text: Path, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    real = shards.write_json
    monkeypatch.setattr(shards, "write_json", lambda file, part: killed(file))
    options = ("--output", tmp_path / "out", "--tokenizer", tokenizer, "--workers", "1")
    assert run("--input", text, *options, "--seed", "1") == 130
    monkeypatch.setattr(shards, "write_json", real)
    assert list((tmp_path / "out").glob("train-*.bin"))
    assert run("--input", text, *options) == 0
    assert len(list((tmp_path / "out").glob("train-*.bin"))) == 1
    assert not (tmp_path / "out" / ".progress").exists()
    assert not list((tmp_path / "out").glob(".lock*"))
