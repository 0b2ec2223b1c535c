"""Read a record of conversations, in any of the usual forms, as the messages that a chat template takes.

The forms, read on 2026-11-25: OpenAI's fine-tuning files (messages, weight, functions), TRL's conversational and plain
prompt and completion (dataset_formats), LLaMA-Factory's sharegpt and alpaca (data/README.md, converter.py), Axolotl's
chat_template (conversation.qmd: from or role, value or content, train, train_detail) and ms-swift's loss.

What a record says is kept, or the record is refused, or it is counted as not learned: nothing goes in silence.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainer.config.values import kind, shown, unique_keys
from trainer.data.sentences import sentences
from trainer.errors import one_line

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "function_call": "assistant",
    **{role: role for role in ("system", "user", "assistant", "tool")},
}
"""What `role` or `from` says, in small letters (NeMo's begin with large ones), and a chat template's role."""
REASONS = ("reasoning_content", "thinking", "reasoning")
"""Keys of an answer's thoughts: transformers hands each of them to the template."""
ANSWERS = (*REASONS, "refusal", "tools", "functions", "function_calls")
"""Keys of a message beside its content and its calls; the last two are OLMo's."""
ARGUMENTS = ("arguments", "parameters", "args", "input")
"""Where a call has its arguments: OpenAI's key, Llama 3's, LangChain's and Anthropic's."""
OF_CALLS = ("name", "id", "type", "index", "description", "function")
"""Keys of a call that may have no arguments."""
MASKS = ("weight", "train", "training", "loss")
"""Whether a message is learned: OpenAI's, Axolotl's two and ms-swift's key; 0 or false, 1 or true."""
OTHER_MASKS = ("train_detail", "training_detail", "mask", "loss_mask", "loss_scale", "loss_weight")
OF_RECORDS = ("weight", "mask", "loss_mask", "completion_mask", "assistant_masks", "train_on_inputs", "segments")
"""Keys of a record that say what is learned of it, and are not honoured."""
MEDIA = ("image", "images", "image_url", "image_urls", "image_path", "video", "videos", "video_url")
MEDIA += ("audio", "audios", "audio_url", "input_audio", "media")
UNWANTED = ("label", "kto_tag")
"""All but true: an answer that is not wanted (TRL's unpaired preferences, LLaMA-Factory's KTO)."""
PREFERENCES = ("chosen", "rejected", "rejected_response", "rejected_messages")
"""Answers of TRL's, LLaMA-Factory's and ms-swift's preferences."""
CONTENTS = ("prompt", "completion", "instruction", "input", "output", "history", "context", "question", "query")
CONTENTS += ("response", "answer", *REASONS)
"""Keys of texts, in one form or another."""
HAVE = "messages, conversations, prompt and completion, or instruction and output"


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
    beside: dict[str, Any] = field(default_factory=dict)
    """What the record holds beside these."""


class Plain(NamedTuple):
    """A prompt and its completion as texts."""

    prompt: str
    completion: str
    beside: dict[str, Any]


def read(record: Any, wire: bool = False, blank: bool = False) -> Talk | Plain:
    """The conversation of a record, or its prompt and completion as texts. Raises Wrong.

    wire: leave the arguments of calls as text. blank: give an answer without a content an empty one.
    """
    if not isinstance(record, dict):
        raise Wrong("it is not a JSON object")
    record = {key: value for key, value in record.items() if value is not None}
    _refuse_unread(record)
    system, tools, options = _system(record), _tools(record), record.get("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise Wrong(f"chat_template_kwargs holds {kind(options)}, not an object")
    keys = [key for key in ("messages", "conversations") if key in record]
    keys = [key for key in keys if record[key]] or keys
    of_form = {*keys, "system", "system_prompt", "tools", "functions"}
    if keys:
        said = _messages(record[keys[0]], keys[0], wire)
        if len(keys) == 2 and _spoken(said) != _spoken(_messages(record[keys[1]], keys[1], wire)):
            raise Wrong("its messages and its conversations differ; give one of them")
    elif "prompt" in record and "completion" in record:
        if all(isinstance(record[name], str) for name in ("prompt", "completion")):
            if system or tools:
                raise Wrong(f"{'system' if system else 'tools'} belongs to messages, not to a prompt that is text")
            _refuse_beside(record, "prompt", "completion")
            beside = {key: value for key, value in record.items() if key not in ("prompt", "completion")}
            return Plain(record["prompt"], record["completion"], beside)
        for name in ("prompt", "completion"):
            if not isinstance(record[name], str | list):
                raise Wrong(f"{name} holds {kind(record[name])}, not text")
        if isinstance(record["prompt"], str) or isinstance(record["completion"], str):
            raise Wrong("of prompt and completion one is text and one is messages")
        asked, said = (_messages(record[name], name, wire) for name in ("prompt", "completion"))
        said = [*((message, False) for message, _ in asked), *said]
        of_form |= {"prompt", "completion"}
    elif "instruction" in record and "output" in record:
        said = _messages(list(_alpaca(record)), "output", wire)
        of_form |= {"instruction", "input", "history", "output"}
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
    beside = {key: value for key, value in record.items() if key not in of_form}
    return Talk(messages, learned, tools, options, beside)


def _spoken(said: list[tuple[dict[str, Any], bool]]) -> list[Any]:
    return [[message.get(key) for key in ("role", "content", "tool_calls")] for message, _ in said]


def present(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table as JSON has it: all rows share the keys that any of them has, and text may be bytes.

    So nulls inside its columns are left out, and objects of nothing but nulls with them; in a list they have a place.
    """

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {key: without(item) for key, item in value.items() if item is not None}
            return {key: item for key, item in kept.items() if item != {} or not value[key]}
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        return [without(item) for item in value] if isinstance(value, list) else value

    return dict.fromkeys(row) | without(row)


def _refuse_unread(record: dict[str, Any]) -> None:
    _refuse_media(record, "it")
    for name in UNWANTED:
        if record.get(name, 1) != 1:  # true is 1
            raise Wrong(f"{name} is {shown(record[name])}, not true: an answer that is not wanted; it would be learned")
    for name in PREFERENCES:  # the publishers of UltraFeedback repeat what is chosen as messages
        if record.get(name) and ("messages" not in record or record.get("chosen") != record["messages"]):
            raise Wrong(f"it has {name}; preferences are not learned: give the wanted answer as messages alone")
    for name in OF_RECORDS:
        if name not in record or (name == "weight" and record[name] == 1):
            continue
        if name == "mask" and isinstance(record[name], str) and ROLES.get(record[name].lower()) == "user":
            continue  # NeMo's: the role that is not learned
        raise Wrong(f"{name} is not read; say with weight 0 or 1 in a message whether it is learned")


def _refuse_media(given: dict[str, Any], name: str) -> None:
    for key in MEDIA:
        if given.get(key):
            raise Wrong(f"{name} has {key}; only text is learned")


def _refuse_beside(record: dict[str, Any], asked: str, *others: str) -> None:
    """Raise Wrong for a text beside those of the form, unless it repeats them, as the prompts of Alpaca's do."""
    said = {key: text for key in (asked, *others) if isinstance(text := record.get(key), str) and text.strip()}
    questions = [text for key, text in said.items() if key != others[-1]]
    for name in CONTENTS:
        if name in (asked, *others) or not (text := record.get(name)):
            continue
        within = isinstance(text, str) and any(text in each for each in said.values())
        if not within and not (isinstance(text, str) and questions and all(each in text for each in questions)):
            raise Wrong(f"it has {name} beside {asked} and {others[-1]}, which is not read; put it into {asked}")


def _system(record: dict[str, Any]) -> str:
    found = dict.fromkeys(text for key in ("system", "system_prompt") if (text := _text(record, key)))
    if len(found) > 1:
        raise Wrong("system and system_prompt are two system prompts")
    return next(iter(found), "")


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key, "")
    if not isinstance(value, str):
        raise Wrong(f"{key} holds {kind(value)}, not text")
    return value


def _decoded(value: Any, what: str) -> Any:
    """JSON that stands in a text, as what it says."""
    try:
        return json.loads(value, object_pairs_hook=unique_keys) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        why = error if isinstance(error, json.JSONDecodeError) else one_line(error)
        raise Wrong(f"{what}: not JSON ({why})") from None


def _tools(record: dict[str, Any]) -> list[dict[str, Any]] | None:
    found = []
    for key in ("tools", "functions"):
        given = _decoded(record.get(key) or [], key)
        for tool in given if isinstance(given, list) else [given]:
            tool = _decoded(tool, key)
            if not isinstance(tool, dict):
                raise Wrong(f"{key} holds {kind(tool)}, not the objects that describe tools")
            # LLaMA-Factory and OpenAI's older files name the function alone.
            bare = "name" in tool and (key == "functions" or "conversations" in record)
            found.append({"type": "function", "function": tool} if bare else tool)
    return found or None


def _alpaca(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The turns of LLaMA-Factory's alpaca: instruction and input are one question, a line each."""
    _refuse_beside(record, "instruction", "input", "history", "output")
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
        raise Wrong(f"{key} holds {'nothing' if given == [] else kind(given)}, not a list of messages")
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
    for one, other in (("from", "role"), ("value", "content")):
        if one in said and other in said:
            raise Wrong(f"{name} has both {one} and {other}; give one of them")
    _refuse_media(said, name)
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
            raise Wrong(f"{has} {kind(given)} as {what}, not text")
        return given
    for part in given:
        if not isinstance(part, dict):
            raise Wrong(f"{has} {kind(part)} among the parts of its {what}; a part is an object with type and text")
        if (form := part.get("type", "text")) != "text" or not isinstance(part.get("text"), str):
            raise Wrong(f"{has} a part of type {form} in {what}; only text is learned")
        for key, value in part.items():
            if key != "text" and sentences(value):
                raise Wrong(f"{has} {key} in a part of its {what}, which is not read; remove it")
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
        try:  # transformers writes "<datetime>" for what a table has and JSON has not
            text = json.dumps(found, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise Wrong(f"{what}: its {key} are not JSON ({one_line(error)})") from None
        if wire:
            found = arguments if isinstance(arguments, str) else text
        # transformers' form of a call, which LLaMA-Factory's turns, LangChain's and OpenAI's older files shorten.
        about = {k: v for k, v in call.items() if k not in ARGUMENTS and (nested or k in ("id", "index"))}
        mine = function.items() if nested else [(k, v) for k, v in call.items() if k not in (*about, "type")]
        own = {"arguments" if k in ARGUMENTS else k: v for k, v in mine}
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
            raise Wrong(f"{name} has {shown(value)} as {key}; give 0 or 1, or leave it out")
        if value and role != "assistant":
            raise Wrong(f"{name} is to be learned by its {key}; only answers are learned, give 0 or leave it out")
    if len(set(map(bool, given.values()))) > 1:
        raise Wrong(f"{name}: {' and '.join(given)} contradict each other")
    return all(given.values())
