"""Read a record of conversations, in any of the usual forms, as the messages that a chat template takes.

The forms, read on 2026-11-25: OpenAI's fine-tuning files (messages, weight, functions), TRL's conversational and plain
prompt and completion (dataset_formats), LLaMA-Factory's sharegpt and alpaca (data/README.md, converter.py), Axolotl's
chat_template (conversation.qmd: from or role, value or content, train, train_detail) and ms-swift's loss.

What a record says is kept, or the record is refused: nothing is left out in silence.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainer.config.values import kind

COLUMNS = ("messages", "conversations", "tools", "functions", "system", "prompt", "completion", "instruction", "input")
COLUMNS += ("output", "history", "chat_template_kwargs")
ROLES = {
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "function_call": "assistant",
    **{role: role for role in ("system", "user", "assistant", "tool")},
}
"""What `role` or `from` says, in small letters (NeMo's begin with large ones), and the role of a chat template."""
REASONS = ("reasoning_content", "thinking", "reasoning")
"""Keys of an answer's thoughts: transformers hands each of them to the template."""
ANSWERS = (*REASONS, "refusal", "audio")
"""Keys of an answer beside its content and its calls."""
ARGUMENTS = ("arguments", "parameters", "args", "input")
"""Where a call has its arguments: OpenAI's key, Llama 3's, LangChain's and Anthropic's."""
OF_CALLS = ("name", "id", "type", "index", "description", "function")
"""Keys of a call that may have no arguments."""
MASKS = ("weight", "train", "training", "loss")
"""Whether a message is learned: OpenAI's, Axolotl's two and ms-swift's key; 0 or false, 1 or true."""
OTHER_MASKS = ("train_detail", "training_detail", "mask", "loss_mask", "loss_scale", "loss_weight")
OF_RECORDS = ("weight", "mask", "loss_mask", "completion_mask", "assistant_masks", "train_on_inputs", "segments")
"""Keys of a record that say what is learned of it, and are not honoured."""
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
UNWANTED = ("label", "kto_tag")
"""false: an answer that is not wanted (TRL's unpaired preferences, LLaMA-Factory's KTO)."""
COLUMNS += (*OF_RECORDS, *MEDIA, *UNWANTED)
HAVE = "messages, conversations, prompt and completion, or instruction and output"


PYTHON = "'xq': 'xq"
"""What probed() adds to the arguments of a call, where a template writes them as Python does and not as JSON."""


class Wrong(Exception):
    """What is wrong with a record."""


@dataclass(frozen=True)
class Talk:
    """A conversation, as a chat template takes it."""

    messages: list[dict[str, Any]]
    learned: list[int]
    """Numbers of the messages that are learned."""
    tools: list[dict[str, Any]] | None = None
    options: dict[str, Any] | None = None
    """Further variables of the template, such as enable_thinking."""


def read(record: Any, wire: bool = False, blank: bool = False) -> Talk | tuple[str, str]:
    """The conversation of a record, or its prompt and completion as texts. Raises Wrong.

    wire: leave the arguments of calls as text. blank: give an answer without a content an empty one.
    """
    if not isinstance(record, dict):
        raise Wrong("it is not a JSON object")
    record = {key: value for key, value in record.items() if value is not None}
    _refuse_unread(record)
    system, tools, options = _text(record, "system"), _tools(record), record.get("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise Wrong(f"chat_template_kwargs holds {type(options).__name__}, not an object")
    key = next((key for key in ("messages", "conversations") if key in record), "")
    if key:
        said = _messages(record[key], key, wire)
    elif "prompt" in record and "completion" in record:
        if all(isinstance(record[name], str) for name in ("prompt", "completion")):
            if system or tools:
                raise Wrong(f"{'system' if system else 'tools'} belongs to messages, not to a prompt that is text")
            return record["prompt"], record["completion"]
        for name in ("prompt", "completion"):
            if not isinstance(record[name], str | list):
                raise Wrong(f"{name} holds {type(record[name]).__name__}, not text")
        if isinstance(record["prompt"], str) or isinstance(record["completion"], str):
            raise Wrong("of prompt and completion one is text and one is messages")
        asked, said = (_messages(record[name], name, wire) for name in ("prompt", "completion"))
        said = [*((message, False) for message, _ in asked), *said]
        key = "completion"
    elif "instruction" in record and "output" in record:
        said = _messages(list(_alpaca(record)), "output", wire)
    else:
        have = ", ".join(map(str, record)) or "nothing"
        raise Wrong(f"it has {have}; a record has {HAVE}")
    if system:
        first = said[0][0]
        if first["role"] == "system" and first.get("content") != system:
            raise Wrong("system and its first message are two system prompts")
        said = said if first["role"] == "system" else [({"role": "system", "content": system}, False), *said]
    messages = [{"content": "", **message} if blank else message for message, _ in said]
    roles = dict.fromkeys(message["role"] for message in messages)
    if "assistant" not in roles:
        raise Wrong(f"no message has role assistant (roles: {', '.join(roles)})")
    learned = [number for number, (message, counts) in enumerate(said) if counts and message["role"] == "assistant"]
    return Talk(messages, learned, tools, options)


def present(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table without the nulls inside its columns: there all rows share the keys that any of them has."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(item) for key, item in value.items() if item is not None}
        return [without(item) for item in value] if isinstance(value, list) else value

    return {key: without(value) for key, value in row.items()}


def _refuse_unread(record: dict[str, Any]) -> None:
    for name in MEDIA:
        if record.get(name):
            raise Wrong(f"it has {name}; only text is learned")
    for name in UNWANTED:
        if record.get(name) is False:
            raise Wrong(f"{name} is false: an answer that is not wanted; it would be learned")
    for name in OF_RECORDS:
        if name not in record or (name == "weight" and record[name] == 1):
            continue
        if name == "mask" and isinstance(record[name], str) and ROLES.get(record[name].lower()) == "user":
            continue  # NeMo's: the role that is not learned
        raise Wrong(f"{name} is not read; say with weight 0 or 1 in a message whether it is learned")


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key, "")
    if not isinstance(value, str):
        raise Wrong(f"{key} holds {type(value).__name__}, not text")
    return value


def _decoded(value: Any, what: str) -> Any:
    """JSON that stands in a text, as what it says."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise Wrong(f"{what}: not JSON ({error})") from None


def _tools(record: dict[str, Any]) -> list[dict[str, Any]] | None:
    found = []
    for key in ("tools", "functions"):
        given = _decoded(record.get(key) or [], key)
        for tool in given if isinstance(given, list) else [given]:
            tool = _decoded(tool, key)
            if not isinstance(tool, dict):
                raise Wrong(f"{key} holds {type(tool).__name__}, not the objects that describe tools")
            # LLaMA-Factory and OpenAI's older files name the function alone.
            bare = "name" in tool and (key == "functions" or "conversations" in record)
            found.append({"type": "function", "function": tool} if bare else tool)
    return found or None


def _alpaca(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The turns of LLaMA-Factory's alpaca: instruction and input are one question, a line each."""
    history = record.get("history") or []
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise Wrong("history is not a list of [question, answer]")
    question = [text for text in (_text(record, "instruction"), _text(record, "input")) if text]
    for asked, answered in [*history, ("\n".join(question), record["output"])]:
        yield {"role": "user", "content": asked}
        yield {"role": "assistant", "content": answered}


def _messages(given: Any, key: str, wire: bool) -> list[tuple[dict[str, Any], bool]]:
    """Messages, and whether each is learned if it is an answer."""
    if not isinstance(given, list) or not given:
        raise Wrong(f"{key} holds {'nothing' if given == [] else type(given).__name__}, not a list of messages")
    return [_message(message, f"message {number} of {key}", key, wire) for number, message in enumerate(given, 1)]


def _message(given: Any, name: str, key: str, wire: bool) -> tuple[dict[str, Any], bool]:
    said = {k: value for k, value in given.items() if value is not None} if isinstance(given, dict) else {}
    shares = key == "conversations"
    who = "from" if "from" in said or (shares and "role" not in said) else "role"
    what = "value" if "value" in said or (shares and "content" not in said) else "content"
    word = said.get(who)
    if not isinstance(word, str):
        raise Wrong(f"{name} has no {who}")
    role = ROLES.get(word.lower(), word)
    counts = _counts(said, role, name)
    message = {k: v for k, v in said.items() if k not in (who, what, "function_call", *MASKS, *OTHER_MASKS)}
    message = {"role": role, **message}
    content, places = said.get(what), [key for key in ("tool_calls", "function_call") if said.get(key)]
    if word.lower() == "function_call":
        content, places = None, [what, *places]
    if len(places) > 1:
        raise Wrong(f"{name} has calls as {' and as '.join(places)}; give all of them in tool_calls")
    message.pop("tool_calls", None)
    if places and (calls := _calls(said.get(places[0]), name, wire)):
        message["tool_calls"] = calls
    if content is not None:
        message["content"] = _content(content, f"{name} has", what)
    elif not any(message.get(k) for k in ("tool_calls", *ANSWERS)):
        raise Wrong(f"{name} has no {what}")
    return message, counts


def _content(given: Any, has: str, what: str) -> str:
    """Text, also where it is a list of text parts; templates write these one after another."""
    if not isinstance(given, list):
        if not isinstance(given, str):
            raise Wrong(f"{has} {type(given).__name__} as {what}, not text")
        return given
    for part in given:
        kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise Wrong(f"{has} a part of type {kind} in {what}; only text is learned")
    return "".join(part["text"] for part in given)


def _calls(given: Any, name: str, wire: bool) -> list[dict[str, Any]]:
    given = _decoded(given, f"{name}: its call")
    calls = []
    for number, call in enumerate(given if isinstance(given, list) else [given], 1):
        what = f"{name}: call {number}"
        call = _decoded(call, what)
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Wrong(f"{what} has no name of a function")
        nested = "function" in call
        has = [(k, v) for part in ((call, function) if nested else (call,)) for k, v in part.items()]
        given_as = [(key, value) for key, value in has if key in ARGUMENTS and value not in (None, "")]
        if len(given_as) > 1:
            raise Wrong(f"{what} has arguments as {' and as '.join(key for key, _ in given_as)}; give one of these")
        key, arguments = given_as[0] if given_as else ("arguments", {})
        found = _decoded(arguments, f"{what}: its {key}")
        if not isinstance(found, dict):
            raise Wrong(f"{what}: its {key} are {kind(found)}, not an object")
        other = next((k for k, v in has if k not in (*OF_CALLS, *ARGUMENTS) and v not in (None, "")), "")
        if not found and other:
            raise Wrong(f"{what} has {other}, which is not read, and no arguments; name them arguments")
        if wire:
            found = arguments if isinstance(arguments, str) else json.dumps(found, ensure_ascii=False)
        # transformers' form of a call, which LLaMA-Factory's turns, LangChain's and OpenAI's older files shorten.
        about = {k: v for k, v in call.items() if k not in ARGUMENTS and (nested or k in ("id", "index"))}
        own = {
            "arguments" if k in ARGUMENTS else k: v for k, v in function.items() if nested or k not in (*about, "type")
        }
        calls.append({"type": "function", **about, "function": {**own, "arguments": found}})
    return calls


def _counts(said: dict[str, Any], role: str, name: str) -> bool:
    """Whether the message is learned if it is an answer."""
    for key in OTHER_MASKS:
        if said.get(key) not in (None, []):
            raise Wrong(f"{name} has {key}, which is not read; say with weight 0 or 1 whether it is learned")
    given = {key: said[key] for key in MASKS if key in said}
    for key, value in given.items():
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise Wrong(f"{name} has {value} as {key}; give 0 or 1, or leave it out")
        if value and role != "assistant":
            raise Wrong(f"{name} is to be learned by its {key}; only answers are learned, give 0 or leave it out")
    if len(set(map(bool, given.values()))) > 1:
        raise Wrong(f"{name}: {' and '.join(given)} contradict each other")
    return all(given.values())


def probed(talk: Talk) -> tuple[Talk, dict[str, str]]:
    """The same conversation with a word at the end of each text, and what each word stands for.

    A template that leaves out a text leaves out its word. Only what stands before the end of the last answer counts.
    """
    wanted: dict[str, str] = {}

    def after(text: str, what: str) -> str:
        wanted[word := f"xq{len(wanted)}qx"] = what
        return f"{text}{word}"

    def named(call: dict[str, Any], what: str) -> dict[str, Any]:
        function = call.get("function", call)
        marked = {**function, "name": after(function["name"], what)} if "name" in function else function
        if isinstance(given := marked.get("arguments"), dict):
            marked |= {"arguments": {**given, "xq": after("", f"the arguments of {what}")}}
        elif isinstance(given, str):
            marked |= {"arguments": after(given, f"the arguments of {what}")}
        return {**call, "function": marked} if "function" in call else marked

    messages = []
    for number, message in enumerate(talk.messages[: talk.learned[-1] + 1], 1):
        what = f"message {number} ({message['role']})"
        copy = dict(message)
        for key in ("content", *ANSWERS):
            if isinstance(text := message.get(key), str) and text.strip():
                copy[key] = after(text, what if key == "content" else f"{key} of {what}")
            elif text and not isinstance(text, str):
                wanted[f"xq{len(wanted)}qx"] = f"{key} of {what}"
        if "tool_calls" in message:
            copy["tool_calls"] = [
                named(call, f"call {place} of {what}") for place, call in enumerate(message["tool_calls"], 1)
            ]
        messages.append(copy)
    tools = [named(tool, f"tool {place}") for place, tool in enumerate(talk.tools or [], 1)] or None
    return Talk(messages, talk.learned, tools, talk.options), wanted
