"""What the data say is what is learned: nothing goes without a word, and answers begin and end where they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import AddedToken, Tokenizer

from tests.trainer.data import templates
from tests.trainer.data.chats import ASKED, RESULT, SYSTEM, TOLD, Build, Record, answers, call, calling
from tests.trainer.data.templates import CHATML
from trainer import prepare
from trainer.data import documents
from trainer.data.conversations import Chat
from trainer.data.documents import TextField
from trainer.errors import UserError

THOUGHT = "The clouds are dark, so rain is likely."
READS_TOOL_PLAN = CHATML.replace("m.content + '<|im_end|>", "(m.tool_plan or '') + m.content + '<|im_end|>")
NAMES_TOOLS = "{% for tool in tools or [] %}{{ tool.function.name + tool.function.description }}{% endfor %}" + CHATML
LOOK: Record = {"name": "look", "description": "It looks.", "parameters": {"p": {"description": THOUGHT}}}
READS_DOCUMENTS = "{{ (documents or [{'text': ''}])[0].text }}" + CHATML


def noted(chat: Chat) -> dict[str, int]:
    """What is counted as not learned, by name."""
    return {name: count for (_, name), count in chat.notes.items()}


@pytest.mark.parametrize(
    "key",
    [
        {"thought": THOUGHT},
        {"rationale": {"steps": [{"text": THOUGHT}]}},
        {"reasoning_details": [{"type": "reasoning.text", "text": THOUGHT, "index": 0}]},
        {"annotations": json.dumps({"note": THOUGHT})},
        {"思考": "天空很暗所以很可能会下雨"},
        {"考え": "空が暗い、たぶん雨。"},
        {"soch": "बादल काले हैं, इसलिए बारिश हो सकती है"},
        {"réflexion": "re\u0301e\u0301crit e\u0301tait me\u0302me"},
    ],
    ids=lambda key: next(iter(key)),
)
def test_what_an_answer_says_under_a_key_that_the_template_does_not_write_refuses_it(chat: Build, key: Record) -> None:
    record = {"prompt": [ASKED], "completion": [TOLD | key]}
    with pytest.raises(UserError, match=rf"line 7: message 2 \(assistant\) says something as {next(iter(key))}, which"):
        chat(CHATML).read(record, lambda: "chats.jsonl, line 7")


@pytest.mark.parametrize(
    ("template", "more"),
    [
        (READS_TOOL_PLAN, {"tool_plan": THOUGHT}),
        (templates.QWEN3, {"reasoning_content": THOUGHT, "thinking_blocks": [{"thinking": THOUGHT}]}),
        (CHATML, {"original": "It rains."}),
        (CHATML, {"id": "msg_01XFDUDYJgAACzvnptvVoYEL", "created": 1732784400, "timestamp": "2024-11-28T09:00:00Z"}),
        (CHATML, {"url": "https://example.org/a/page?of=it", "score": 0.5, "flags": [], "extra": {"a": None, "b": ""}}),
    ],
)
def test_what_the_template_writes_and_what_says_nothing_is_neither_refused_nor_told(
    chat: Build, template: str, more: Record
) -> None:
    built = chat(template)
    assert built.read({"messages": [ASKED, TOLD | more]}, lambda: "here")
    assert noted(built) == {}


LONG = "A text about rain that is longer than the rest."
BESIDE: list[tuple[str, Record, list[str]]] = [
    (CHATML, {"documents": [{"title": "x", "text": LONG}]}, ["documents"]),
    (CHATML, {"system_message": LONG, "context": LONG, "reasoning": "Hm."}, ["system_message", "context", "reasoning"]),
    (CHATML, {"context": "THE SKY WAS DARK ON THAT DAY", "table": "|a|b|\n|--|--|\n|the sky|is dark|"},
     ["context", "table"]),
    (CHATML, {"chat_template_kwargs": {"documents": [{"text": LONG}]}}, ["chat_template_kwargs"]),
    (NAMES_TOOLS, {"tools": [{"type": "function", "function": LOOK}]}, ["tools"]),
    (NAMES_TOOLS, {"functions": [LOOK]}, ["tools"]),
    (templates.TOOLS, {"functions": [LOOK]}, []),
    (READS_DOCUMENTS, {"chat_template_kwargs": {"documents": [{"text": LONG}]}}, []),
    (CHATML, {"a\nkey of event=x": LONG}, ["a_key_of_event_x"]),
    (CHATML, {"prompt": "Rain?", "chosen": [ASKED, TOLD], "messages": [ASKED, TOLD]}, []),
    (CHATML, {"conversation_hash": "cf1267ca6b2f6fccc9c36652a00059a1", "model": "gpt-4", "turn": 2, "toxic": False,
              "timestamp": "2023-04-09T00:02:53Z", "language": "English", "country": "United States", "state": "Texas",
              "openai_moderation": [{"flagged": False, "categories": {"hate": False}}], "hashed_ip": "22fd87ba9b98"},
     []),
    (CHATML, {"messages": [SYSTEM | {"note": LONG}, ASKED | {"context": LONG}, TOLD]}, ["system.note", "user.context"]),
    (CHATML, {"messages": [ASKED, TOLD | {"channel": "analysis"}]}, ["assistant.channel"]),
    (CHATML, {"messages": [ASKED, TOLD | {"thought": "Hm"}]}, ["assistant.thought"]),
    (CHATML, {"messages": [ASKED, TOLD | {"thought": THOUGHT, "weight": 0}, ASKED, TOLD]}, ["assistant.thought"]),
    (CHATML, {"messages": None, "prompt": [ASKED], "completion": [TOLD], "notes": LONG}, ["notes"]),
]  # fmt: skip


@pytest.mark.parametrize(("template", "more", "names"), BESIDE)
def test_any_other_text_without_a_trace_is_counted_by_its_name(
    chat: Build, template: str, more: Record, names: list[str]
) -> None:
    built = chat(template)
    record = {key: value for key, value in ({"messages": [ASKED, TOLD]} | more).items() if value is not None}
    for _ in range(2):
        assert built.read(record, lambda: "here")
    assert noted(built) == dict.fromkeys(names, 2)


def test_messages_and_conversations_that_differ_are_refused(chat: Build) -> None:
    same = [{"from": "human", "value": "Rain?"}, {"from": "gpt", "value": "It rains."}]
    built = chat(CHATML)
    assert built.read({"messages": [ASKED, TOLD], "conversations": same}, lambda: "here")
    assert built.read({"messages": [ASKED, TOLD], "conversations": []}, lambda: "here")
    for other in (same[:1], [*same, *same], [same[0], same[1] | {"value": "No."}]):
        with pytest.raises(UserError, match="here: its messages and its conversations differ; give one of them"):
            built.read({"messages": [ASKED, TOLD], "conversations": other}, lambda: "here")


CALL = calling(call(place="here"), content="")
THINKING = TOLD | {"reasoning_content": "Hm"}
ENDS: dict[str, tuple[str, list[Record], list[str]]] = {
    "GLM": ("GLM", [ASKED, TOLD], ["\n<think></think>\nIt rains.<|im_start|>"]),
    "GLM, twice": ("GLM", [ASKED, TOLD, ASKED, TOLD], ["\n<think></think>\nIt rains.<|im_start|>"] * 2),
    "GLM, a thought": ("GLM", [ASKED, THINKING, ASKED, TOLD], ["\n<think>Hm</think>\nIt rains.<|im_start|>",
                                                             "\n<think></think>\nIt rains.<|im_start|>"]),
    "GLM, a call": ("GLM", [ASKED, CALL, RESULT, TOLD],
                    ['\n<think></think>\n<tool_call>look\n{"place": "here"}\n</tool_call><|end|>',
                     "\n<think></think>\nIt rains.<|im_start|>"]),
    "Nemotron": ("NEMOTRON", [ASKED, TOLD], ["It rains.\n<|eot|>"]),
    "Nemotron, a call": ("NEMOTRON", [ASKED, CALL, RESULT, TOLD],
                         ['<TOOLCALL>[{"name": "look", "arguments": {"place": "here"}}]</TOOLCALL>\n<|eot|>',
                          "It rains.\n<|eot|>"]),
    "Nemotron, a call with a content": (
        "NEMOTRON", [ASKED, CALL | {"content": "I look."}, RESULT, TOLD],
        ['I look.<TOOLCALL>[{"name": "look", "arguments": {"place": "here"}}]</TOOLCALL>\n<|eot|>',
         "It rains.\n<|eot|>"]),
    "Command R7B": ("COMMAND_R7B", [ASKED, TOLD, ASKED, TOLD], ["It rains.</s>"] * 2),
    "Phi": ("PHI", [ASKED, TOLD], ["It rains.<|end|>\n</s>"]),
    "gpt-oss": ("GPT_OSS", [ASKED, CALL, RESULT, TOLD],
                [' to=look:{"place": "here"}<|eot|>', "<|im_start|>final:It rains.<|im_end|>"]),
    "Qwen 3": ("QWEN3", [ASKED, TOLD], ["<think>\n\n</think>\n\nIt rains.<|im_end|>"]),
    "Qwen 3.5": ("QWEN35", [ASKED, TOLD | {"content": "<think>\nHm\n</think>\n\nYes."}],
                 ["Hm\n</think>\n\nYes.<|im_end|>"]),
    "no end but the next turn's token": ("OPEN", [ASKED, TOLD, ASKED, TOLD], ["It rains.\n<|im_start|>"] * 2),
    "Gemma 4, a call": ("GEMMA4", [ASKED, CALL, RESULT, TOLD],
                        ['look{"place": "here"}<|eot|>', "It rains.<|im_end|>"]),
    "marks of the last answer": ("LAST_MARKED", [ASKED, TOLD, ASKED, TOLD | {"content": "No."}],
                                 ["It rains.<|im_end|>", "No.<|im_end|>"]),
    "an end outside the marks": ("UNMARKED_END", [ASKED, TOLD], ["It rains.<|im_end|>"]),
    "marks that end behind it": ("MARKED_WHOLE", [ASKED, TOLD], ["<|im_start|>assistant\nIt rains.<|im_end|>"]),
    "an answer that begins as the prompt ends": ("ASKING", [ASKED, TOLD | {"content": "<thin> ice"}],
                                                 ["<thin> ice<|eot|>"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_an_answer_begins_where_any_other_would_and_ends_with_a_token_that_stops_it(
    chat: Build, tmp_path: Path, name: str
) -> None:
    template, messages, expected = ENDS[name]
    assert answers(tmp_path, chat(getattr(templates, template)), {"messages": messages}) == expected


@pytest.mark.parametrize(
    "template",
    [
        templates.ENDLESS,
        CHATML.replace("<|im_", "<|x_"),
        templates.UNMARKED_END.replace("<|im_", "<|x_"),
        templates.JSON_RESULTS.replace("}<|eot|>", "}"),
    ],
    ids=["plain", "no token", "marked", "calls"],
)
def test_a_template_that_ends_no_answer_is_refused(chat: Build, template: str) -> None:
    said = [ASKED, CALL, RESULT, TOLD] if "tool_calls" in template else [ASKED, TOLD]
    with pytest.raises(UserError, match=r"message 2 with no token of its own, so .* \{\{ eos_token \}\} behind each"):
        chat(template).read({"messages": said}, lambda: "here")


EMPTY = TOLD | {"content": " \n"}
NOTHING: list[tuple[list[Record], str, int]] = [
    ([ASKED, EMPTY, ASKED, TOLD], "empty_answers", 1),
    ([ASKED, {**EMPTY, "content": "\u200b\ufeff "}, ASKED, TOLD], "empty_answers", 1),
    ([{**ASKED, "content": " \u200b"}, TOLD, ASKED, TOLD], "answers_before_a_question", 1),
    ([SYSTEM, TOLD, ASKED, TOLD], "answers_before_a_question", 1),
    ([TOLD, TOLD, ASKED, TOLD], "answers_before_a_question", 2),
]


@pytest.mark.parametrize("template", ["CHATML", "MARKED", "GLM"])
@pytest.mark.parametrize(("messages", "name", "count"), NOTHING)
def test_turns_that_say_or_answer_nothing_are_counted_and_not_learned(
    chat: Build, tmp_path: Path, template: str, messages: list[Record], name: str, count: int
) -> None:
    built = chat(getattr(templates, template))
    (learned,) = answers(tmp_path, built, {"messages": messages})
    assert "It rains." in learned
    assert noted(built) == {name: count}


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"messages": [ASKED, EMPTY]}, "empty_answers"),
        ({"messages": [SYSTEM, TOLD]}, "answers_before_a_question"),
        ({"prompt": "Rain?", "completion": " "}, "empty_answers"),
        ({"prompt": "\n", "completion": "It rains."}, "answers_before_a_question"),
    ],
)
def test_a_record_of_such_turns_alone_teaches_nothing(chat: Build, record: Record, name: str) -> None:
    built = chat(CHATML)
    assert (built.read(record, lambda: "here"), noted(built)) == ("", {name: 1})


@pytest.mark.parametrize("key", ["tool_calls", "reasoning_content"])
def test_what_an_answer_says_outside_of_the_marks_of_its_template_is_counted(chat: Build, key: str) -> None:
    outside = "{% if m.KEY %}{{ m.KEY | tojson }}{% endif %}".replace("KEY", key)
    said = CALL | {"content": "I look.", "reasoning_content": "I"}
    record = {"messages": [ASKED, {each: said[each] for each in ("role", "content", key)}, ASKED, TOLD]}
    begin, end = "{% generation %}", "<|im_end|>{% endgeneration %}"
    for template, expected in (
        (templates.MARKED.replace(begin, outside + begin), {f"{key}_outside_the_marks": 1}),
        (templates.MARKED.replace(end, outside + end), {}),
    ):
        built = chat(template)
        assert built.read(record, lambda: "here")
        assert noted(built) == expected


CODE = "    if rain:\n        return 'umbrella'\n"
TRIMMED = ["LLAMA", "GLM", "COMMAND_R7B"]


@pytest.mark.parametrize("template", [*TRIMMED, "CHATML", "MARKED", "MISTRAL"])
def test_answers_that_lose_the_white_space_at_their_ends_are_counted(
    chat: Build, tmp_path: Path, template: str
) -> None:
    built = chat(getattr(templates, template))
    talk = {"messages": [ASKED, TOLD | {"content": CODE}, ASKED, TOLD]}
    found = answers(tmp_path, built, talk)
    assert (CODE if template not in TRIMMED else CODE.strip()) in found[0]
    assert noted(built) == ({"white_space_at_the_ends": 1} if template in TRIMMED else {})


@pytest.mark.parametrize("content", [CODE, "a\n\nb", "a  b", "a\tb", " <p>a\n</p> "])
def test_white_space_that_is_changed_inside_an_answer_refuses_it(chat: Build, content: str) -> None:
    with pytest.raises(UserError, match="the chat template changes the white space inside the answer in message 2"):
        chat(templates.JOINED).read({"messages": [ASKED, TOLD | {"content": content}]}, lambda: "here")


@pytest.mark.parametrize(
    ("content", "lost"),
    [
        ("<think>\nHm\n</think>\n\nYes.", 0),
        ("<think>Hm</think>Yes.", 0),
        ("<think>Hm</think>\n\n  Yes.", 0),
        ("<think>\n\n\nHm\n</think>\nYes.", 1),
    ],
)
def test_around_the_tags_of_thoughts_a_template_writes_its_own_white_space(
    chat: Build, content: str, lost: int
) -> None:
    built = chat(templates.QWEN3)
    assert built.read({"messages": [ASKED, TOLD | {"content": content}]}, lambda: "here")
    assert noted(built).get("white_space_at_the_ends", 0) == lost


def test_a_token_that_ends_answers_counts_as_special_whatever_its_file_says(words: Path, tmp_path: Path) -> None:
    built = Tokenizer.from_file(str(words / "tokenizer.json"))
    built.add_tokens(["[END]", AddedToken("<tool_call>", normalized=False)])
    built.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_bytes((words / "tokenizer_config.json").read_bytes())
    for template, expected in (
        (CHATML.replace("<|im_end|>", "[END]"), "a [END] <tool_call>[END]"),
        (templates.UNMARKED_END.replace("<|im_end|>", "[END]"), "a [END] <tool_call>[END]"),
        (templates.GLM.replace("<|im_start|>", "[END]"), "\n<think></think>\na [END] <tool_call>[END]"),
    ):
        (tmp_path / "chat_template.jinja").write_text(template)
        record = {"messages": [ASKED, TOLD | {"content": "a [END] <tool_call>"}]}
        assert answers(tmp_path, Chat(tmp_path), record) == [expected]


def test_the_summary_tells_what_is_not_learned_at_every_run(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talk.jsonl"
    plain, more = {"messages": [ASKED, TOLD]}, {"messages": [ASKED, EMPTY, ASKED, TOLD], "context": LONG, "id": "x1"}
    path.write_text("".join(json.dumps(record) + "\n" for record in [plain, more] * 20))
    arguments = ["--conversations", "--input", str(path), "--output", str(tmp_path / "out"), "--tokenizer"]
    for state in ("written", "found"):
        assert prepare.main([*arguments, str(tokenizer), "--validation-fraction", "0.2"]) == 0
        told = capsys.readouterr().out
        assert f"state={state}" in told
        assert [line for line in told.splitlines() if "not_learned" in line] == [
            "event=not_learned what=empty_answers answers=20",
            "event=not_learned what=context records=20",
        ]


TWICE = [
    '{"messages": [{"role": "user", "content": "a", "content": "b"}, {"role": "assistant", "content": "c"}]}',
    '{"text": "a", "more": {"x": [{"y": 1, "y": 1}]}}',
    json.dumps({"messages": [ASKED, {"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": '{"city": "Rome", "city": "Lyon"}'}}]}]}),
]  # fmt: skip


@pytest.mark.parametrize("line", TWICE)
def test_an_object_with_one_key_twice_is_refused_by_its_line(
    tmp_path: Path, tokenizer: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data.jsonl"
    plain = json.dumps({"messages": [ASKED, TOLD], "text": "It rains."})
    path.write_text(f"{plain}\n{line}\n{plain}\n")
    options = ["--conversations"] if "messages" in line else []
    arguments = ["--input", str(path), "--output", str(tmp_path / "out"), "--tokenizer", str(tokenizer), *options]
    assert prepare.main(arguments) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"--input {path}, line 2: ")
    assert " twice in one object" in told


def test_a_table_says_what_the_same_json_says(chat: Build, tmp_path: Path) -> None:
    """Structs of nulls are absent, unless in a list; bytes that are UTF-8 are text, maps objects; all columns count."""
    where = {"city": "Rome", "zip": None}
    rows = [
        {"messages": [ASKED, calling(call(**dict[str, Any](given))), RESULT, TOLD], "context": LONG, "number": 1.5}
        for given in ({"where": where, "when": None}, {"where": None, "when": "now"}, {"all": [{"of": None}, None]})
    ]
    table = pa.Table.from_pylist(rows * 2)
    plain = pa.array([[("plain", True)]] * len(table), pa.map_(pa.string(), pa.bool_()))
    table = table.append_column("chat_template_kwargs", plain)
    parquet.write_table(table, tmp_path / "rows.parquet")
    built = chat("{{ '' if plain else '<|start|>' }}" + templates.TOOLS)
    texts = read(tmp_path / "rows.parquet", built)
    assert not any("<|start|>" in text for text in texts)
    for text, given in zip(
        texts, ('{"where": {"city": "Rome"}}', '{"when": "now"}', '{"all": [{}, null]}'), strict=False
    ):
        assert f'"arguments": {given}' in text
    assert noted(built) == {"context": 6}
    bare = [{"prompt": b"Rain?", "completion": " Ça pleut.".encode(), "messages": None}] * 3
    for kind in (pa.binary(), pa.large_binary()):
        columns = {key: pa.array([row[key] for row in bare], kind) for key in ("prompt", "completion")}
        parquet.write_table(pa.table(columns), tmp_path / "bytes.parquet")
        assert all("Ça pleut." in text for text in read(tmp_path / "bytes.parquet", built))
    texts = {"text": pa.array([b"It rains."], pa.binary())}
    parquet.write_table(pa.table(texts), tmp_path / "text.parquet")
    assert read(tmp_path / "text.parquet", TextField("text")) == ["It rains."]
    parquet.write_table(pa.table({"text": pa.array([b"\xff"], pa.binary())}), tmp_path / "text.parquet")
    with pytest.raises(UserError, match="field 'text' holds bytes that are not UTF-8, not text"):
        read(tmp_path / "text.parquet", TextField("text"))


def read(path: Path, records: Any) -> list[str]:
    (source,) = prepare.find([str(path)])
    return [unit.text for unit in documents.units(documents.plan([source], "file")[0], "file", records)]
