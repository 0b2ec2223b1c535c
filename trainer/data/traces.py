"""Whether a chat template writes what a conversation says: words that stand at the end of its texts, and the texts."""

import json
import re
from collections.abc import Iterator
from typing import Any

from trainer.data.answers import squeezed
from trainer.data.records import ANSWERS, REASONS, Talk

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


def unfound(talk: Talk, text: str) -> list[int]:
    """Numbers of the messages with a text that is not written as often as it is said, be it as JSON."""
    said = [
        [
            (key, each)
            for key, each in (
                *((key, message.get(key)) for key in ("content", *ANSWERS)),
                *(
                    ("", text)
                    for call in message.get("tool_calls", [])
                    for text in _texts(call["function"]["arguments"])
                ),
            )
            if isinstance(each, str) and each.strip()
        ]
        for message in talk.messages[: talk.learned[-1] + 1]
    ]
    text = squeezed(text).lower()
    whole = "\n".join(squeezed(each).lower() for texts in said for _, each in texts)

    def written(each: str) -> bool:
        spelled = (squeezed(given).lower() for given in (each, json.dumps(each, ensure_ascii=False)[1:-1]))
        return any(text.count(way) >= max(1, whole.count(way)) for way in spelled)

    return [number for number, texts in enumerate(said) if not all(written(each) for _, each in texts)]


def _texts(value: Any) -> Iterator[str]:
    """The texts in an object."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(item)


def shape(value: Any) -> Any:
    """What decides where a template writes a value: its kind, and the tags in a text."""
    if isinstance(value, str):
        return bool(value.strip()), sorted(set(re.findall(r"<[^<>\s]*>|\[/?[A-Z_]+\]", value)))
    if isinstance(value, list):
        return [shape(item) for item in value]
    return {key: shape(item) for key, item in value.items()} if isinstance(value, dict) else type(value).__name__
