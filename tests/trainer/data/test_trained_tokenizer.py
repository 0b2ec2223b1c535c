"""A tokenizer trained on the input: on its training split only, once, and with a possible vocabulary size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.data.test_prepare import run, text_of
from trainer import prepare
from trainer.data.tokenizer import train


def test_a_tokenizer_is_trained_on_the_text_that_is_learned(text: Path, tmp_path: Path) -> None:
    arguments = ("--input", text, "--tokenizer", "train:512", "--output")
    assert run(*arguments, tmp_path / "a") == 0
    index = json.loads((tmp_path / "a" / "index.json").read_text())
    assert index["vocabulary"] == 512
    tokens = sum(split["tokens"] for split in index["splits"].values())
    assert index["text_bytes"] / tokens > 2, "words of more than a byte or two"

    # A text of the same length has the same passages held out: their content adds no word.
    held_out = text_of(tmp_path / "a", "validation").split("<|endoftext|>")
    other = text.read_text("utf-8")
    for passage in filter(None, held_out):
        other = other.replace(passage, passage[0] + "q" * (len(passage) - 2) + passage[-1])
    text.write_text(other, encoding="utf-8")
    assert run(*arguments, tmp_path / "b") == 0
    assert "qqqq" in text_of(tmp_path / "b", "validation")
    assert (tmp_path / "a" / "tokenizer.json").read_text() == (tmp_path / "b" / "tokenizer.json").read_text()


def test_the_tokenizer_of_the_same_inputs_and_options_is_not_trained_again(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["--input", text, "--tokenizer", "train:300", "--output", out]
    assert run(*arguments) == 0
    assert "trained_words=300" in capsys.readouterr().out
    assert run(*arguments) == 0
    said = capsys.readouterr().out
    assert "trained_words" not in said
    assert "state=found" in said
    assert run(*arguments, "--seed", "1") in (0, 2)  # other passages are learned: so may be other words
    assert "trained_words=300" in capsys.readouterr().out


def test_after_an_interruption_the_same_words_are_trained_and_what_is_finished_stays(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    for _ in range(2):
        assert run("--input", text, "--tokenizer", "train:300", "--output", tmp_path / "out") == 130
    assert len(list((tmp_path / "out" / ".progress").iterdir())) == 1


def test_words_trained_on_other_text_do_not_replace_those_of_a_dataset(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--input", text, "--tokenizer", "train:300", "--output", tmp_path / "out")
    assert run(*arguments) == 0
    before = (tmp_path / "out" / "index.json").read_bytes()
    text.write_text(text.read_text("utf-8")[::-1], encoding="utf-8")
    assert run(*arguments) == 2
    assert "in the tokens of train:300, which would be lost" in capsys.readouterr().err
    assert (tmp_path / "out" / "index.json").read_bytes() == before


def test_no_more_text_is_trained_on_than_fits_into_memory(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(prepare, "TRAINED_ON", 20_000)
    monkeypatch.setattr(prepare, "train", lambda _, texts: sizes.extend(map(len, texts)) or train(300, iter(["a b"])))
    assert run("--input", text, "--tokenizer", "train:300", "--output", tmp_path / "out") == 0
    assert sum(sizes[:-1]) < 20_000 <= sum(sizes)


@pytest.mark.parametrize("words", ["", "256", "many"])
def test_a_size_of_vocabulary_that_cannot_be_is_one_line(
    words: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--input", text, "--output", tmp_path / "out", "--tokenizer", f"train:{words}") == 2
    assert f"--tokenizer train:{words}: give train:WORDS with 257 to" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
