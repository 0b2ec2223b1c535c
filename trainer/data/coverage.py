"""Whether a chat template writes what a conversation says: words that stand at the end of its texts, and the texts."""

import json
import re
from collections.abc import Iterator
from typing import Any

from trainer.data.loss_mask import squeezed
from trainer.data.records import ANSWERS, REASONS, Talk
from trainer.data.sentences import leaves, sentences, words

PYTHON = "'xq': 'xq"
"""What probed() adds to the arguments of a call, where a template writes them as Python does and not as JSON."""


def probed(talk: Talk) -> tuple[Talk, dict[str, str]]:
    """The same conversation with a word at the end of each text, and what each word stands for.

    A template that leaves out a text leaves out its word. Only what stands before the end of the last answer counts.
    """
    wanted: dict[str, str] = {}

    def after(text: str, what: str) -> str:
        wanted[word := f"xq{len(wanted)}qx"] = what
        return f"{text}{word}"

    def each(value: Any, what: str) -> Any:
        if isinstance(value, str):
            return after(value, what) if value.strip() else value
        if isinstance(value, dict):
            return {key: each(item, what) for key, item in value.items()}
        return [each(item, what) for item in value] if isinstance(value, list) else value

    def described(tool: dict[str, Any], what: str) -> dict[str, Any]:
        tool = named(tool, what)
        function = tool.get("function", tool)
        if isinstance(text := function.get("description"), str) and text.strip():
            function = {**function, "description": after(text, f"the description of {what}")}
        return {**tool, "function": function} if "function" in tool else function

    def named(call: dict[str, Any], what: str) -> dict[str, Any]:
        function = call.get("function", call)
        marked = {**function, "name": after(function["name"], what)} if "name" in function else function
        if isinstance(given := marked.get("arguments"), dict):
            given = each(given, f"the end of an argument of {what}")
            marked |= {"arguments": {**given, "xq": after("", f"the arguments of {what}")}}
        elif isinstance(given, str):
            marked |= {"arguments": after(given, f"the arguments of {what}")}
        return {**call, "function": marked} if "function" in call else marked

    messages = []
    for number, message in enumerate(talk.messages[: talk.learned[-1] + 1], 1):
        what = f"message {number} ({message['role']})"
        copy = dict(message)
        for key in ("content", *ANSWERS):
            if key in REASONS and number - 1 not in talk.learned:
                continue  # of context, templates leave out the thoughts, and transformers with them
            if isinstance(text := message.get(key), str) and text.strip():
                copy[key] = after(text, what if key == "content" else f"{key} of {what}")
            elif text and not isinstance(text, str):
                wanted[f"xq{len(wanted)}qx"] = f"{key} of {what}"
        if "tool_calls" in message:
            copy["tool_calls"] = [
                named(call, f"call {place} of {what}") for place, call in enumerate(message["tool_calls"], 1)
            ]
        messages.append(copy)
    tools = [described(tool, f"tool {place}") for place, tool in enumerate(talk.tools or [], 1)] or None
    return Talk(messages, talk.learned, tools, talk.options), wanted


def flat(text: str) -> str:
    """A text in small letters and without white space, in which others are looked for."""
    return squeezed(text).lower()


def unread(talk: Talk, template: str, written: str) -> Iterator[tuple[int, str, bool]]:
    """Keys whose text leaves no trace in `written`, a flat text: the message, the key, and whether it is a sentence.

    The message is -1 for what stands beside the messages. Of answers a single word counts too, if the template does
    not name its key: "channel": "analysis" says what the answer is.
    """
    for number, message in enumerate(talk.messages[: talk.learned[-1] + 1]):
        for key, value in message.items():
            if key in ("role", "content", *ANSWERS) or not isinstance(value, str | list | dict):
                continue
            if key == "tool_calls":
                value = list(map(_further, message[key]))
            if any(not _is_in(text, written) for text in sentences(value)):
                yield number, key, True
            elif (
                message["role"] == "assistant"
                and not re.search(rf"\b{re.escape(key)}\b", template)
                and any(words(text) and not _is_in(text, written) for text in leaves(value))
            ):
                yield number, key, False
    yield from ((-1, key, True) for key in beside({"tools": talk.tools, **talk.beside}, written))


def beside(given: dict[str, Any], written: str) -> Iterator[str]:
    """The keys of a record that say something of which `written`, a flat text, has no trace."""
    for key, value in given.items():
        if isinstance(value, str | list | dict) and any(not _is_in(text, written) for text in sentences(value)):
            yield key


def _further(call: dict[str, Any]) -> Any:
    function = call.get("function", {})
    of = {**{key: value for key, value in call.items() if key != "function"}, **function}
    return {key: value for key, value in of.items() if key not in ("name", "arguments")}


def _is_in(text: str, written: str) -> bool:
    """Whether a flat text has `text`, be it as JSON."""
    return flat(text) in written or flat(json.dumps(text, ensure_ascii=False)[1:-1]) in written


def unfound(talk: Talk, text: str) -> list[int]:
    """Numbers of the messages with a text that is not written in the flat `text` as often as it is said."""
    said = [
        [
            each
            for each in (
                *(message.get(key) for key in ("content", *ANSWERS)),
                *leaves([call["function"]["arguments"] for call in message.get("tool_calls", [])], decoded=False),
            )
            if isinstance(each, str) and each.strip()
        ]
        for message in talk.messages[: talk.learned[-1] + 1]
    ]
    whole = "\n".join(flat(each) for texts in said for each in texts)

    def written(each: str) -> bool:
        spelled = map(flat, (each, json.dumps(each, ensure_ascii=False)[1:-1]))
        return any(text.count(way) >= max(1, whole.count(way)) for way in spelled)

    return [number for number, texts in enumerate(said) if not all(map(written, texts))]


def shape(value: Any) -> Any:
    """What decides where a template writes a value: its kind, and the tags in a text."""
    if isinstance(value, str):
        return bool(value.strip()), sorted(set(re.findall(r"<[^<>\s]*>|\[/?[A-Z_]+\]", value)))
    if isinstance(value, list):
        return [shape(item) for item in value]
    return {key: shape(item) for key, item in value.items()} if isinstance(value, dict) else type(value).__name__
