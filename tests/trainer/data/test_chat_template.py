"""What others wrote beside a tokenizer is read, or refused by name; so is a record that a template cannot write."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.data import templates
from tests.trainer.data.chats import ASKED, RESULT, TOLD, WEATHER, WHOLE, Build, answers, call, calling
from tests.trainer.data.templates import CHATML, CUT, FRONT, TAILS, THOUGHTS, TOOLS
from trainer import prepare
from trainer.errors import UserError

DEEP: dict[str, Any] = {}
for _ in range(100_000):  # newer Pythons take some thousands
    DEEP = {"properties": DEEP}
SHORT = TOOLS.replace("call.arguments | tojson", "(call.arguments | tojson)[:60]")
SPELLED = CHATML.replace(
    "m.content",
    "(m.content | tojson if m.role == 'tool' else m.content if m.role == 'assistant' else m.content | upper)",
)


@pytest.mark.parametrize(
    ("template", "record", "said"),
    [
        (CUT, [ASKED | {"content": "Rain? ### SECRET"}, TOLD], "leaves out message 1 (user)"),
        (FRONT, [ASKED | {"content": "SECRET ### Rain?"}, TOLD], "leaves out the beginning of message 1 (user)"),
        (TAILS, [ASKED, RESULT | {"content": "x " * 20 + "SECRET"}, TOLD], "leaves out message 2 (tool)"),
        (THOUGHTS, [ASKED, TOLD | {"thinking": "a ### SECRET"}], "thinking of message 2"),
        (
            SHORT,
            [ASKED, calling(call("look", False, a=1, b={"c": ["y", "z" * 90]})), RESULT, TOLD],
            "leaves out the end of an argument of call 1 of",
        ),
        (
            TOOLS.replace("tool | tojson", "(tool | tojson)[:70]"),
            {"messages": [ASKED, TOLD], "tools": [WEATHER]},
            "leaves out the description of tool 1",
        ),
        (CHATML.replace("m.content", "m.content + m.missing"), [ASKED, TOLD], "object' has no attribute 'missing'"),
        (templates.ZEPHYR, WHOLE, "call 1 of message 2"),
        (CHATML, {"messages": [ASKED, TOLD], "tools": [WEATHER]}, "tool 1"),
        (TOOLS, [ASKED, TOLD | {"reasoning_content": "Hm"}], "reasoning"),
        (templates.JSON_RESULTS, [ASKED, calling(call(), content="I look."), RESULT, TOLD], "message 2"),
        (templates.FORGETFUL, [ASKED, TOLD | {"content": "<think>hm</think>Yes."}], "the answer in message 2"),
        (TOOLS, [ASKED, {"role": "critic", "content": "So?"}, TOLD], "message 2 has role critic"),
        (templates.MISTRAL, [ASKED, ASKED, TOLD], "does not take this conversation (roles must alternate)"),
        (CHATML + "{{ messages.append(1) }}", [ASKED, TOLD], "access to attribute 'append'"),
        (CHATML + "{{ 1 / 0 }}", [ASKED, TOLD], "does not take this conversation (division by zero)"),
        (CHATML + "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", [ASKED, TOLD], "does not take this conversation"),
        ("{{ tools | tojson }}" + CHATML, {"messages": [ASKED, TOLD], "tools": [DEEP]}, "does not take this conv"),
    ],
)
def test_what_a_template_cannot_write_or_leaves_out_of_any_record_is_named_by_line(
    chat: Build, template: str, record: Any, said: str
) -> None:
    built = chat(template)
    if "leaves" in said:  # it writes others of the same form
        assert built.read({"messages": [ASKED, TOLD, ASKED, TOLD]}, lambda: "talk.jsonl, line 1")
    with pytest.raises(UserError) as error:
        built.read(record if isinstance(record, dict) else {"messages": record}, lambda: "talk.jsonl, line 2")
    assert str(error.value).startswith("--input talk.jsonl, line 2: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_written_as_json_in_capitals_or_without_space_is_not_left_out(chat: Build, tmp_path: Path) -> None:
    built = chat(SPELLED)
    for result in ('{"a": "b\n"}', 'é "x" \\', " a\n\n b "):
        record = {"messages": [ASKED | {"content": " So?\n"}, RESULT | {"content": result}, TOLD]}
        assert answers(tmp_path, built, record) == ["It rains.<|im_end|>"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", b"\xff{{ 1 }}"),
        ("additional_chat_templates/x.jinja", b"\xff"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[1]"),
        ("tokenizer_config.json", b'{"eos_token": 5}'),
        ("tokenizer_config.json", b'{"chat_template": 5}'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}'),
        ("tokenizer_config.json", b'{"added_tokens_decoder": [1]}'),
    ],
)
def test_odd_files_beside_a_tokenizer_are_one_line(
    words: Path, tmp_path: Path, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, talk = tmp_path / "model", tmp_path / "talk.jsonl"
    shutil.copytree(words, folder)
    talk.write_text((json.dumps({"messages": [ASKED, TOLD]}) + "\n") * 40)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    options = ["--conversations", "--input", str(talk), "--output", str(tmp_path / "out"), "--tokenizer", str(folder)]
    assert prepare.main(options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(("--tokenizer ", "--input "))
    assert name in line or b"chat_template" not in content
    assert not (tmp_path / "out" / "index.json").exists()
