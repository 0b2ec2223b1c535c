"""Through any chat template, conversations become tokens of which only the answers count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.data.chats import Build, shown, tokens
from tests.trainer.data.templates import CHATML, MISTRAL
from trainer import prepare
from trainer.data.batches import open_dataset

Message = dict[str, Any]

TALK: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is light?"},
    {"role": "assistant", "content": "It is rays."},
    {"role": "user", "content": "And colours?"},
    {"role": "assistant", "content": "Sorts of rays."},
]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            CHATML,
            [
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is light?<|im_end|>\n"
                "<|im_start|>assistant\n⟦It is rays.<|im_end|>⟧\n<|im_start|>user\nAnd colours?<|im_end|>\n"
                "<|im_start|>assistant\n⟦Sorts of rays.<|im_end|>⟧\n"
            ],
        ),
        (
            MISTRAL,
            [
                "<s>[INST] Be brief.\n\nWhat is light? [/INST]⟦ It is rays.</s>⟧",
                "<s>[INST] What is light? [/INST] It is rays.</s>[INST] Be brief.\n\nAnd colours? [/INST]"
                "⟦ Sorts of rays.</s>⟧",
            ],
        ),
    ],
    ids=["chatml", "mistral"],
)
def test_answers_and_what_closes_them_count(chat: Build, tmp_path: Path, template: str, expected: list[str]) -> None:
    asked = [*TALK, {"role": "user", "content": "A question without an answer"}]
    for messages in (TALK, asked) if template != MISTRAL else (TALK,):
        found = tokens(chat(template), {"messages": messages})
        assert [shown(tmp_path, values) for values in found] == expected


def test_a_completion_follows_its_prompt_as_it_is(chat: Build, tmp_path: Path) -> None:
    (found,) = tokens(chat(CHATML), {"prompt": "Q: light?\nA:", "completion": " Rays.", "messages": None})
    assert shown(tmp_path, found) == "<s>Q: light?\nA:⟦ Rays.</s>⟧"


def test_a_template_that_asks_for_the_date_gets_the_same_one_every_day(chat: Build, tmp_path: Path) -> None:
    (found,) = tokens(chat("{{ strftime_now('%d %b %Y') }}" + CHATML), {"messages": TALK})
    assert shown(tmp_path, found).startswith("26 Jul 2024<|im_start|>")


def written(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def run(*arguments: str | Path) -> int:
    return prepare.main(["--conversations", "--validation-fraction", "0.2", *map(str, arguments)])


def records(count: int) -> list[dict[str, Any]]:
    """Conversations whose texts have their number."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"Question {number} about light and {'colours ' * (number % 7)}?"},
                {"role": "assistant", "content": f"Answer {number}."},
            ]
        }
        for number in range(count)
    ]


def numbers(folder: Path, split: str) -> list[str]:
    """The answers of a split, in order, as the shards hold them."""
    dataset = open_dataset(str(folder), verify=True, conversations=True)
    part = getattr(dataset, split)
    text = shown(folder, part.read(0, len(part)))
    return [answer.split("⟧")[0] for answer in text.split("⟦")[1:]]


def test_a_tokenizer_without_a_template_gets_a_plain_one_that_stays_with_the_data(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "talk.jsonl", [*records(19), {"prompt": "2 + 2 =", "completion": " 4"}])
    out = tmp_path / "out"
    assert run("--input", path, "--output", out, "--tokenizer", tokenizer) == 0
    told = capsys.readouterr().out
    assert told.count("event=chat_template chosen=built-in") == 1
    both = numbers(out, "train") + numbers(out, "validation")
    assert sorted(both) == sorted([f"Answer {n}.<|endoftext|>" for n in range(19)] + [" 4<|endoftext|>"])
    assert len(numbers(out, "validation")) == 4
    from transformers import AutoTokenizer

    known: Any = AutoTokenizer.from_pretrained(out)
    assert known.apply_chat_template(records(1)[0]["messages"], tokenize=False) == (
        "### User:\nQuestion 0 about light and ?\n\n### Assistant:\nAnswer 0.<|endoftext|>\n"
    )
    assert run("--input", path, "--output", out, "--tokenizer", tokenizer) == 0
    assert "state=found" in capsys.readouterr().out
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}{{ m.role[0] + ' ' + m.content + eos_token }}{% endfor %}")
    assert run("--input", path, "--output", out, "--tokenizer", tokenizer, "--chat-template", template) == 0
    assert "state=written" in capsys.readouterr().out
    assert (out / "chat_template.jinja").read_text() == template.read_text()


def test_the_marks_of_answers_are_no_bytes_of_the_text(tmp_path: Path, tokenizer: Path) -> None:
    path = written(tmp_path / "talk.jsonl", [{"prompt": "2 + 2 =", "completion": " 4"}] * 20)
    assert run("--input", path, "--output", tmp_path / "out", "--tokenizer", tokenizer) == 0
    assert json.loads((tmp_path / "out" / "index.json").read_text())["text_bytes"] == 20 * len("2 + 2 = 4<|endoftext|>")


@pytest.mark.parametrize(
    ("empty", "options"),
    [
        ({"messages": [TALK[1], TALK[2] | {"weight": 0}]}, ("--conversations",)),
        ({"text": None}, ()),
    ],
)
def test_records_that_teach_nothing_are_counted_and_refused_where_all_are_such(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], empty: dict[str, Any], options: tuple[str, ...]
) -> None:
    rows = [row | {"text": str(row)} for row in records(40)]
    path, out = tmp_path / "talk.jsonl", tmp_path / "out"
    written(
        path, [row for number in range(40) for row in ([empty, rows[number]] if number % 8 == 0 else [rows[number]])]
    )
    arguments = ["--input", str(path), "--output", str(out), "--tokenizer", str(tokenizer), *options]
    arguments += ["--workers", "1"]
    assert prepare.main(arguments) == 0
    assert "unlearned=5 " in capsys.readouterr().out
    index = json.loads((out / "index.json").read_text())
    assert (index["documents"], index["unlearned"]) == (40, 5)
    written(path, [empty] * 3)
    assert prepare.main(arguments) == 2
    assert "none of the 3 record(s) has" in capsys.readouterr().err
