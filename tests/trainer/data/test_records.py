"""A record in any of the usual forms teaches what it says, as transformers writes it, or is refused by name."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.trainer.data import templates
from tests.trainer.data.chats import (
    ASKED,
    RESULT,
    SYSTEM,
    TOLD,
    WEATHER,
    WHOLE,
    Build,
    Record,
    answers,
    call,
    calling,
    ids,
    said,
    shown,
    tokens,
)
from tests.trainer.data.templates import CHATML, JSON_RESULTS, MARKED, TOOLS
from trainer import prepare
from trainer.data.conversations import Chat
from trainer.errors import UserError

HUMAN, GPT = {"from": "human", "value": "Rain?"}, {"from": "gpt", "value": "It rains."}
LOOK = json.dumps({"name": "look", "arguments": {"place": "here"}})
SEEN = {"from": "observation", "value": "yes"}

FORMS: dict[str, tuple[Record, list[Record], list[Record] | None]] = {
    "ShareGPT's calls": (
        {"conversations": [HUMAN, {"from": "function_call", "value": LOOK}, SEEN, GPT]}, WHOLE, None),
    "ShareGPT's calls at once": (
        {"conversations": [HUMAN, {"from": "function_call", "value": f"[{LOOK}, {LOOK}]"}, SEEN, SEEN, GPT]},
        [ASKED, calling(call(place="here"), call(place="here")), RESULT, RESULT, TOLD], None),
    "ShareGPT's tools": (
        {"conversations": [HUMAN, GPT], "tools": json.dumps([WEATHER["function"]]), "system": ""},
        [ASKED, TOLD], [WEATHER]),
    "large letters": ({"mask": "User", "conversations": [HUMAN | {"from": "User"}, GPT | {"from": "Assistant"}]},
                      [ASKED, TOLD], None),
    "LangChain's": (
        {"messages": [ASKED, calling({"name": "look", "args": {"place": "here"}}), RESULT, TOLD]}, WHOLE, None),
    "Anthropic's": (
        {"messages": [ASKED, calling({"name": "look", "input": {"place": "here"}}), RESULT, TOLD]}, WHOLE, None),
    "Llama 3's": (
        {"messages": [ASKED, calling({"name": "look", "parameters": {"place": "here"}}), RESULT, TOLD]}, WHOLE, None),
    "pygmalion's": ({"conversations": [{"role": "user", "value": "Rain?"}, {"role": "assistant", "value": "Yes."}]},
                    said("user: Rain?", "assistant: Yes."), None),
    "a system beside": ({"messages": [ASKED, TOLD], "system": "You are Nemo."}, [SYSTEM, ASKED, TOLD], None),
    "a system twice": ({"messages": [SYSTEM, ASKED, TOLD], "system": "You are Nemo."}, [SYSTEM, ASKED, TOLD], None),
    "tools as text": ({"messages": WHOLE, "tools": json.dumps([WEATHER])}, WHOLE, [WEATHER]),
    "each tool as text": ({"messages": WHOLE, "tools": [json.dumps(WEATHER)]}, WHOLE, [WEATHER]),
    "OpenAI's arguments": (
        {"messages": [ASKED, calling(call(wire=True, c=1, d={"e": None}), content=None), RESULT, TOLD]},
        [ASKED, calling(call(c=1, d={"e": None})), RESULT, TOLD], None),
    "no arguments": (
        {"messages": [ASKED, calling({"function": {"name": "look", "arguments": ""}}), RESULT, TOLD]},
        [ASKED, calling(call()), RESULT, TOLD], None),
    "arguments beside the function": (
        {"messages": [ASKED, calling({"function": {"name": "look"}, "arguments": '{"place": "here"}'}), RESULT, TOLD]},
        WHOLE, None),
    "OpenAI's functions": (
        {
            "messages": [ASKED, {"role": "assistant", "content": None, "function_call": json.loads(LOOK)},
                         {"role": "function", "name": "look", "content": "yes"}, TOLD],
            "functions": [WEATHER["function"]],
        },
        WHOLE, [WEATHER]),
    "text parts": (
        {"messages": [ASKED | {"content": [{"type": "text", "text": "Ra"}, {"type": "text", "text": "in?"}]}, TOLD]},
        [ASKED, TOLD], None),
    "TRL's prompt and completion": ({"prompt": [SYSTEM, ASKED], "completion": [TOLD]}, [SYSTEM, ASKED, TOLD], None),
    "Alpaca's input": ({"instruction": "Is it", "input": "wet?", "output": "Yes."},
                       said("user: Is it\nwet?", "assistant: Yes."), None),
    "Alpaca's history": (
        {"instruction": "And now?", "input": None, "output": "No.", "system": "You are Nemo.",
         "history": [["Rain?", "It rains."]]},
        [SYSTEM, ASKED, TOLD, *said("user: And now?", "assistant: No.")], None),
    "OpenHermes' system": (
        {"conversations": [HUMAN, GPT], "system_prompt": "You are Nemo."}, [SYSTEM, ASKED, TOLD], None),
    "Alpaca's text": ({"instruction": "Rain?", "output": "It rains.", "prompt": "Do: Rain?", "text": "Rain? It rains."},
                      [ASKED, TOLD], None),
    "UltraFeedback's": ({"messages": [ASKED, TOLD], "chosen": [ASKED, TOLD], "rejected": [ASKED], "label": 1},
                        [ASKED, TOLD], None),
    "thoughts of an answer that is not learned": (
        {"messages": [ASKED, TOLD | {"reasoning_content": "Hm", "weight": 0}, ASKED, TOLD]}, [ASKED, TOLD] * 2, None),
    "messages first": ({"prompt": "Rain?", "completion": "x", "messages": [ASKED, TOLD]}, [ASKED, TOLD], None),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_record_of_any_usual_form_has_the_tokens_that_transformers_gives_its_messages(
    chat: Build, tmp_path: Path, form: str
) -> None:
    record, messages, tools = FORMS[form]
    found = ids(chat(TOOLS), record)
    known: Any = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert found == known.apply_chat_template(messages, tools=tools)["input_ids"]


def test_a_learned_call_is_an_object_and_closes_as_an_answer(chat: Build, tmp_path: Path) -> None:
    record = {"messages": [ASKED, calling(call(wire=True, c=1), call("go", unit=None)), RESULT, TOLD]}
    expected = [
        '<tool_call>\n{"name": "look", "arguments": {"c": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "go", "arguments": {"unit": null}}\n</tool_call><|im_end|>',
        "It rains.<|im_end|>",
    ]
    assert answers(tmp_path, chat(TOOLS), record) == expected


@pytest.mark.parametrize("template", ["WIRE", "PRINTED"])
@pytest.mark.parametrize("arguments", ['{"c":1}', {"c": 1}])
def test_a_template_that_writes_arguments_as_text_gets_text(
    chat: Build, tmp_path: Path, template: str, arguments: Any
) -> None:
    record = {
        "messages": [ASKED, calling({"type": "function", "function": {"name": "f", "arguments": arguments}}), TOLD]
    }
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    assert answers(tmp_path, chat(getattr(templates, template)), record)[0] == f"f\n{text}<|eot|>"


TALK = {"messages": [SYSTEM, ASKED, TOLD]}


@pytest.mark.parametrize(
    ("template", "record"),
    [
        (JSON_RESULTS, {"messages": [ASKED, calling(call()), RESULT | {"content": '{"a": "b\n"}'}, TOLD]}),
        (templates.LAST_TOOLS, {"messages": [ASKED, TOLD, *WHOLE], "tools": [WEATHER]}),
        (templates.THINKING, {"messages": [ASKED, TOLD | {"content": "<think>a</think>b"}] * 2}),
        (templates.CHATML, {"messages": [ASKED, RESULT, TOLD]}),
    ],
)
def test_what_a_template_only_writes_in_another_way_is_learned(
    chat: Build, tmp_path: Path, template: str, record: Record
) -> None:
    found = answers(tmp_path, chat(template), record)
    wanted = [m["content"].strip() for m in record["messages"] if m["role"] == "assistant" and m.get("content")]
    assert [text for text in wanted if not any(text in each for each in found)] == []


LYON = [*said("user: Where?"), {"role": "assistant", "content": "Lyon."}, *said("user: Sure?", "assistant: Rome.")]


@pytest.mark.parametrize(("template", "key"), [(CHATML, {"weight": 0.0}), (MARKED, {"train": False})])
def test_an_answer_that_the_data_mask_is_not_learned(chat: Build, tmp_path: Path, template: str, key: Record) -> None:
    (name,) = key
    other = dict.fromkeys(key, type(key[name])(1))
    masked = [LYON[0], LYON[1] | key, LYON[2], LYON[3] | other]
    built = chat(template)
    assert answers(tmp_path, built, {"messages": masked}) == ["Rome.<|im_end|>"]
    assert "Lyon." in shown(tmp_path, tokens(built, {"messages": masked})[0])
    twin = [{"from": m["role"], "value": m["content"], **{k: m[k] for k in m if k == name}} for m in masked]
    assert answers(tmp_path, built, {"conversations": twin}) == ["Rome.<|im_end|>"]
    masked = [LYON[0], LYON[1], LYON[2], LYON[3] | key]
    assert answers(tmp_path, built, {"messages": masked}) == ["Lyon.<|im_end|>"]
    assert built.read({"messages": [LYON[0], LYON[1] | key]}, lambda: "") == ""


def test_of_prompt_and_completion_only_the_completion_is_learned(chat: Build, tmp_path: Path) -> None:
    record = {"prompt": LYON[:3], "completion": [LYON[3]]}
    assert answers(tmp_path, chat(CHATML), record) == ["Rome.<|im_end|>"]


REFUSED: list[tuple[Any, str]] = [
    ([1], "it is not a JSON object"),
    ({"text": "x"}, "it has text; a record has messages, conversations, prompt and completion, or instruction"),
    ({"prompt": "x", "completion": 3}, "completion holds a number, not text"),
    ({"messages": []}, "messages holds nothing, not a list of messages"),
    ({"messages": [{"role": "user"}]}, "message 1 of messages has no content"),
    ({"messages": [ASKED, TOLD | {"content": [1]}]}, "message 2 of messages has a number among the parts of its"),
    ({"conversations": [{"from": "human"}]}, "message 1 of conversations has no value"),
    ({"messages": [ASKED, {"role": "bot", "content": "x"}]}, "no message has role assistant (roles: user, bot)"),
    ({"messages": [LYON[0], LYON[1] | {"weight": 0.5}]}, "message 2 of messages has 0.5 as weight; give 0 or 1"),
    ({"messages": [LYON[0], LYON[1] | {"weight": 1, "train": False}]}, "weight and train contradict"),
    ({"messages": [LYON[0] | {"train": True}, LYON[1]]}, "message 1 of messages is to be learned by its train"),
    ({"conversations": [HUMAN, GPT | {"train_detail": [{"begin_offset": 0, "end_offset": 2, "train": False}]}]},
     "message 2 of conversations has train_detail"),
    ({"mask": "Assistant", "conversations": [HUMAN, GPT]}, "mask is not read"),
    ({"prompt": "x", "completion": "y", "label": False}, "label is false"),
    ({"conversations": [HUMAN, GPT], "kto_tag": "false"}, "kto_tag is 'false', not true"),
    ({"conversations": [HUMAN], "chosen": GPT, "rejected": GPT}, "it has chosen; preferences are not learned"),
    ({"messages": [ASKED | {"images": ["a.png"]}, TOLD]}, "message 1 of messages has images; only text"),
    ({"messages": [ASKED, TOLD | {"value": "No."}]}, "message 2 of messages has both value and content"),
    ({"messages": [SYSTEM | {"tools": [WEATHER]}, ASKED, TOLD]}, "leaves out tools of message 1"),
    ({"messages": LYON[:2], "system": "x", "system_prompt": "y"}, "two system prompts"),
    ({"instruction": "x", "context": "z", "output": "y"}, "it has context beside instruction and output"),
    ({"prompt": "x", "completion": "y", "history": [["z", "w"]]}, "it has history beside prompt and completion"),
    ({"prompt": "x", "completion": "y", "thinking": "42"}, "it has thinking beside prompt and completion"),
    ({"messages": LYON[:2], "images": ["a.png"]}, "it has images; only text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, TOLD]}, "type image_url"),
    ({"conversations": [HUMAN, {"from": "function_call", "value": "look(here)"}, SEEN, GPT]}, "its call: not JSON"),
    ({"messages": [ASKED, calling({"function": {"name": "f", "arguments": "[1]"}}), TOLD]}, "arguments are a list"),
    ({"messages": [ASKED, calling(call(day=date(2024, 1, 2))), TOLD]}, "arguments are not JSON (Object of type date"),
    ({"messages": [ASKED, calling(call(wire=True, x=float("nan"))), TOLD]}, "arguments are not JSON (Out of range"),
    ({"messages": [ASKED, calling({"function": {"name": "f", "kwargs": {"a": 1}}}), TOLD]}, "call 1 has kwargs, which"),
    ({"messages": [ASKED, calling({"name": "f", "args": {}, "input": {"a": 1}}), TOLD]}, "as args and as input"),
    ({"messages": [ASKED, calling(call(), function_call=json.loads(LOOK)), TOLD]}, "as tool_calls and as function"),
    ({"conversations": [HUMAN, {"from": "function_call", "value": LOOK, "tool_calls": [call()]}, SEEN, GPT]},
     "calls as value and as tool_calls"),
    ({"messages": LYON[:2], "tools": [3]}, "tools holds a number"),
    ({"prompt": "x", "completion": "y", "system": "z"}, "system belongs to messages"),
    ({"prompt": "x", "completion": [TOLD]}, "one is text and one is messages"),
    ({"instruction": "x", "output": "y", "history": ["z"]}, "history is not a list of"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "said"), REFUSED)
def test_what_is_not_honoured_is_refused_by_name(chat: Build, record: Record, said: str) -> None:
    with pytest.raises(UserError) as error:
        chat(TOOLS).read(record, lambda: "chats.jsonl, line 7")
    assert str(error.value).startswith("--input chats.jsonl, line 7: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


NAMED = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": TOOLS}]


@pytest.mark.parametrize("where", ["list", "folder"])
def test_of_several_templates_the_one_of_transformers_is_taken_and_stays_with_the_data(
    tmp_path: Path, words: Path, where: str
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in words.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    if where == "list":
        config = json.loads((model / "tokenizer_config.json").read_text())
        (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": NAMED}))
    else:
        (model / "chat_template.jinja").write_text(CHATML)
        (model / "additional_chat_templates").mkdir()
        (model / "additional_chat_templates" / "tool_use.jinja").write_text(TOOLS)
    path = tmp_path / "talk.jsonl"
    records: list[Record] = [{"messages": WHOLE, "tools": [WEATHER]}, {"messages": [ASKED, TOLD]}] * 10
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    out = tmp_path / "out"
    options = ["--conversations", "--input", str(path), "--output", str(out), "--tokenizer", str(model)]
    assert prepare.main(options) == 0
    both: list[Any] = [PreTrainedTokenizerFast.from_pretrained(each) for each in (model, out)]
    for known in both:
        for record in records[:2]:
            expected = both[0].apply_chat_template(record["messages"], tools=record.get("tools"))["input_ids"]
            assert ids(Chat(out), record) == expected
            assert known.apply_chat_template(record["messages"], tools=record.get("tools"))["input_ids"] == expected


def test_further_variables_reach_the_template(chat: Build, tmp_path: Path) -> None:
    built = chat("{% if not enable_thinking %}<|start|>{% endif %}" + CHATML)
    record = {"messages": [ASKED, TOLD], "chat_template_kwargs": {"enable_thinking": True}}
    assert shown(tmp_path, tokens(built, record)[0]).startswith("<|im_start|>")
    assert shown(tmp_path, tokens(built, TALK)[0]).startswith("<|start|>")
