"""Whether a chat template writes what a conversation says: words that stand around its texts, and the texts."""

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

    A template that leaves out a text leaves out its word. What others say has a word at its beginning too; of answers,
    templates leave out the thoughts that they begin with. Only what stands before the end of the last answer counts.
    """
    wanted: dict[str, str] = {}

    def word(what: str) -> str:
        wanted[word := f"xq{len(wanted)}qx"] = what
        return word

    def ended(value: Any, what: str) -> Any:
        if isinstance(value, str):
            return value + word(what) if value.strip() else value
        if isinstance(value, dict):
            return {key: ended(item, what) for key, item in value.items()}
        return [ended(item, what) for item in value] if isinstance(value, list) else value

    def called(call: dict[str, Any], what: str) -> dict[str, Any]:
        """A call, or a tool that may be called."""
        function = dict(call.get("function", call))
        if "name" in function:
            function["name"] += word(what)
        if isinstance(given := function.get("arguments"), dict):
            given = ended(given, f"the end of an argument of {what}")
            function["arguments"] = {**given, "xq": word(f"the arguments of {what}")}
        elif isinstance(given, str):
            function["arguments"] = given + word(f"the arguments of {what}")
        if isinstance(text := function.get("description"), str):
            function["description"] = ended(text, f"the description of {what}")
        return {**call, "function": function} if "function" in call else function

    messages = []
    for number, message in enumerate(talk.messages[: talk.learned[-1] + 1]):
        what = f"message {number + 1} ({message['role']})"
        copy = dict(message)
        for key in ("content", *ANSWERS):
            if key in REASONS and number not in talk.learned:
                continue  # of context, templates leave out the thoughts, and transformers with them
            named = what if key == "content" else f"{key} of {what}"
            if isinstance(text := message.get(key), str):
                copy[key] = ended(text, named)
            elif text:
                word(named)
        if message["role"] != "assistant" and message.get("content", "").strip():
            copy["content"] = f"{word(f'the beginning of {what}')} {copy['content']}"
        if "tool_calls" in message:
            copy["tool_calls"] = [
                called(call, f"call {place} of {what}") for place, call in enumerate(message["tool_calls"], 1)
            ]
        messages.append(copy)
    tools = [called(tool, f"tool {place}") for place, tool in enumerate(talk.tools or [], 1)] or None
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
