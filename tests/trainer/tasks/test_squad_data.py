"""Questions are tokenised once, and read by a restart; what is no question is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.tasks import test_squad
from tests.trainer.tasks.test_squad import KEY, encoder, words
from trainer.errors import UserError
from trainer.tasks import squad_data
from trainer.tasks.squad_data import Question, Windows, make_windows

__all__ = ["encoder", "words"]  # fixtures

QUESTIONS = squad_data.read_questions(KEY, str(test_squad.QUESTIONS))
SHAPE = (48, 8, 12)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each tokenisation."""
    calls: list[int] = []

    def counted(questions: list[Question], *rest: Any) -> Windows:
        calls.append(len(questions))
        return make_windows(questions, *rest)

    monkeypatch.setattr(squad_data, "make_windows", counted)
    return calls


def assert_kept(questions: list[Question], words: Any, shape: tuple[int, int, int], folder: Path) -> None:
    """What is read back is what was made."""
    expected = dataclasses.astuple(make_windows(questions, words, *shape))
    for one, other in zip(
        dataclasses.astuple(squad_data.kept_windows(questions, words, shape, folder)), expected, strict=True
    ):
        assert np.array_equal(one, other)
        assert one.dtype == other.dtype


def test_questions_are_tokenised_once_and_anew_when_anything_changed(
    words: Any, made: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = [dataclasses.replace(QUESTIONS[0], context=QUESTIONS[0].context + " End"), *QUESTIONS[1:]]
    for questions, shape in ((QUESTIONS, SHAPE), (changed, SHAPE), (QUESTIONS, (40, 8, 12)), (QUESTIONS, (48, 9, 12))):
        for _ in range(2):
            assert_kept(questions, words, shape, tmp_path)
    monkeypatch.setattr(words, "model_input_names", ["input_ids", "attention_mask"])  # a model without token types
    for _ in range(2):
        assert_kept(QUESTIONS, words, SHAPE, tmp_path)
    assert len(made) == 5


@pytest.mark.parametrize("harm", ["half", "other"])
def test_a_damaged_file_of_kept_windows_is_made_again(
    words: Any, made: list[int], tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_kept(QUESTIONS, words, SHAPE, tmp_path)
    (path,) = tmp_path.glob("*.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if harm == "half" else whole.replace(b"spans", b"spins"))
    assert_kept(QUESTIONS, words, SHAPE, tmp_path)
    assert capsys.readouterr().out.count("event=questions_damaged") == 1
    assert path.read_bytes() == whole
    assert len(made) == 2


def test_where_nothing_can_be_kept_the_run_goes_on(
    words: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    assert_kept(QUESTIONS, words, SHAPE, tmp_path / "full")
    (line,) = capsys.readouterr().out.splitlines()[-1:]
    assert line.startswith("event=questions_not_kept file=")


def one(rest: str) -> bytes:
    """A file of one question about "of light"."""
    asked = f'{{"id": "7", "question": "q", {rest}}}'
    return f'{{"data": [{{"paragraphs": [{{"context": "of light", "qas": [{asked}]}}]}}]}}'.encode()


def asked(*ids: Any) -> bytes:
    """A file of these questions, each in an article of its own."""
    answers = [{"text": "sea", "answer_start": 4}]
    paragraphs = [
        {"context": "The sea", "qas": [{"id": each, "question": "What?", "answers": answers}]} for each in ids
    ]
    return json.dumps({"data": [{"paragraphs": [each]} for each in paragraphs]}).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        (b"{", "not a single JSON file"),
        (b"[" * 100_000, "not a single JSON file"),
        (b"[]", 'no list "data"'),
        (b'{"data": [{"title": "x"}]}', "article 1: not in SQuAD's format (KeyError: 'paragraphs')"),
        (b'{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "7", "question": "q"}]}]}]}', "question 7"),
        (b'{"data": []}', "holds no usable question"),
        (one('"answers": [{"text": "light", "answer_start": -5}]'), "answers of all 1 are not where"),
        (one('"answers": [{"text": "", "answer_start": -1}]'), "answers of all 1 are not where"),
        (one('"answers": [{"text": " ", "answer_start": 2}]'), "answers of all 1 are not where"),
        (one('"answers": []').replace(b'"q"', b'"\\ud83d"'), "surrogates not allowed"),
        (one('"answers": [{"text": "of", "answer_start": 0.0}]'), "question 7: not in SQuAD's format"),
        (one('"answers": [{"text": "f", "answer_start": true}]'), "answer_start must be a whole number"),
        (one('"answers": [{"text": 5, "answer_start": 0}]'), "each answer needs a text"),
        (one('"answers": []').replace(b'"q"', b'" "'), "question is empty"),
        (one('"answers": [], "is_impossible": "false"'), "is_impossible must be true or false"),
        (one('"answers": [], "is_impossible": false'), "is_impossible is false, and there is no answer"),
        (
            one('"answers": [{"text": "of", "answer_start": 0}], "is_impossible": true'),
            "is true, and there are answers",
        ),
        (one('"answers": [], "answers": []'), "has answers twice in one object"),
        (asked(None), "id must be text or a whole number"),
        # Predictions are kept by id: the second would replace the first, and both be judged by it.
        (asked(5, "5"), "article 2, question 5: has the id '5' of an earlier question (article 1, question 5)"),
    ],
)
def test_questions_that_cannot_be_read_are_one_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError) as raised:
        squad_data.read_questions(KEY, str(tmp_path / "a.json"))
    assert said in str(raised.value)
    assert str(raised.value).startswith(KEY)
    assert "\n" not in str(raised.value)


def test_questions_have_a_digest_of_their_own() -> None:
    other = [dataclasses.replace(QUESTIONS[0], answers=("else",)), *QUESTIONS[1:]]
    sets = [[QUESTIONS, QUESTIONS], [other, QUESTIONS], [QUESTIONS, other], [QUESTIONS[::-1], QUESTIONS]]
    assert len({squad_data.digest(each) for each in sets}) == len(sets)
