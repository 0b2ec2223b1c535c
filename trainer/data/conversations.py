"""Turn conversations into tokens; only the answers and their closing tokens count in the loss.

A record is a conversation, {"messages": [{"role": ..., "content": ...}, ...]} or {"conversations": [{"from": ...,
"value": ...}, ...]}, which the tokenizer's chat template renders; or {"prompt": ..., "completion": ...}, whose texts
are joined as they are. The content of a message stays text, even where it looks like a special token.

In a rendered text, characters of the private use planes mark where an answer begins and ends; encode() removes them and
writes the ids with two bits above them.
"""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from trainer.data.documents import Place
from trainer.data.tokenizer import FILE, end_of_text, find_folder
from trainer.errors import UserError, one_line

COUNTS, BEGINS = np.uint32(1 << 31), np.uint32(1 << 30)
"""Bits of a token on disk: its loss counts; it begins a conversation. The rest is its id."""
ID = BEGINS - np.uint32(1)
CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
"""Files beside tokenizer.json."""
DOCUMENTS = "conversations"
"""Value of Recipe.documents for conversations; other values say what a document is in a text file."""
ROLES = {"human": "user", "gpt": "assistant"}
"""Values of `from` that differ from `role`."""
START, ANSWER, END, LITERAL, PLAIN = map(chr, range(0xF0000, 0xF0005))
"""Marks: a conversation begins; an answer begins, ends; text that looks like a special token begins, ends."""
MARKS = re.compile(f"([{START}-{PLAIN}])")


class _Day(datetime):
    """A fixed date for templates that ask for today's (Llama 3, SmolLM3): otherwise the same conversations would have
    other tokens tomorrow. Llama 3.1's own template falls back to this date."""

    @classmethod
    def now(cls, tz: Any = None) -> "_Day":
        return cls(2024, 7, 26)


class _Wrong(Exception):
    """What is wrong with a record."""


def described(spec: str, tokenizer: Tokenizer) -> tuple[dict[str, Any], str]:
    """tokenizer_config.json and chat template of the tokenizer that `spec` names; empty without one."""
    folder = find_folder(spec)
    text = _beside(folder, CONFIG)
    try:
        given = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise UserError(f"--tokenizer {spec}: its {CONFIG} is not JSON ({error}); mend it") from None
    template = given.pop("chat_template", None) or ""
    if isinstance(template, list):  # several, by name
        template = {item["name"]: item["template"] for item in template}.get("default", "")
    given.pop("auto_map", None)  # code
    end = tokenizer.id_to_token(end_of_text(tokenizer, folder)) if not given.get("eos_token") else None
    return {**given, **({"eos_token": end} if end else {})}, _beside(folder, TEMPLATE) or template


def _beside(folder: Path | None, name: str) -> str:
    """The text of a file beside a tokenizer's own; empty without one."""
    return (folder / name).read_text("utf-8") if folder is not None and (folder / name).is_file() else ""


def plain_template(tokenizer: Tokenizer, config: dict[str, Any]) -> str:
    """A template for a tokenizer without one: headings in plain words that every text model knows."""
    begin = _added_before(tokenizer, _word(config.get("bos_token")))
    return (
        ("{{ bos_token }}" if begin else "")
        + "{% for message in messages %}"
        + "{{ '### ' + message['role'] | capitalize + ':\\n' + message['content'] }}"
        + "{% if message['role'] == 'assistant' %}{{ eos_token + '\\n' }}{% else %}{{ '\\n\\n' }}{% endif %}"
        + "{% endfor %}"
        + "{% if add_generation_prompt %}{{ '### Assistant:\\n' }}{% endif %}"
    )


def _word(token: Any) -> str:
    """The text of a special token, which tokenizer_config.json holds as text or with attributes."""
    return (token.get("content") if isinstance(token, dict) else token) or ""


def _added_before(tokenizer: Tokenizer, begin: str) -> str:
    """`begin`, if the tokenizer puts it before a text; else empty."""
    return begin if begin and tokenizer.encode("").ids[:1] == [tokenizer.token_to_id(begin)] else ""


class Chat:
    """Renders and encodes with the tokenizer and the template in a dataset's folder."""

    columns: tuple[str, ...] = ("messages", "conversations", "tools", "prompt", "completion")

    def __init__(self, folder: Path) -> None:
        from transformers import PreTrainedTokenizerFast
        from transformers.utils import chat_template_utils

        chat_template_utils.datetime = _Day  # pyright: ignore[reportPrivateImportUsage]
        known = PreTrainedTokenizerFast.from_pretrained(folder)
        self._render: Any = chat_template_utils.render_jinja_template
        self._template: str = known.get_chat_template()
        self._words: dict[str, Any] = dict(known.special_tokens_map)
        self._generation = re.search(r"\{%-?\s*generation\s*-?%\}", self._template) is not None
        self._tokenizer, self._literal = (Tokenizer.from_file(str(folder / FILE)) for _ in range(2))
        self._literal.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._special = tuple(sorted((token.content for token in added if token.special), key=len, reverse=True))
        self._control = re.compile("|".join(map(re.escape, self._special)) or "(?!)")
        self._begin = _added_before(self._tokenizer, self._words.get("bos_token", ""))

    def read(self, record: Any, place: Place) -> str:
        """The record's text with marks; empty where there is no answer to learn. Raises UserError."""
        from jinja2 import TemplateError, TemplateSyntaxError

        try:
            kind = _form(record)
            if kind == "prompt":
                prompt, completion = (self._safe(record[key]) for key in ("prompt", "completion"))
                begun = self._begin + prompt
                whole = begun + completion + self._words["eos_token"]
                return _marked(whole, [(len(begun), len(whole))])
            messages = self._safe(_messages(record[kind], kind))
            return "".join(_marked(*part) for part in self._conversation(messages, self._safe(record.get("tools"))))
        except _Wrong as error:
            raise UserError(f"--input {place()}: {error}; mend or remove the record") from None
        except TemplateSyntaxError as error:
            raise UserError(
                f"--chat-template: line {error.lineno} is not Jinja ({error.message}); mend the template"
            ) from None
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise UserError(
                f"--input {place()}: the chat template does not take this conversation ({one_line(error)}); mend or "
                "remove the record, or give another template with --chat-template"
            ) from None

    def _conversation(self, messages: list[dict[str, Any]], tools: Any) -> list[tuple[str, list[tuple[int, int]]]]:
        """Rendered texts, each with the spans of its answers: one text, unless the template changes earlier messages.

        Some templates drop the reasoning of earlier answers or move the system prompt to the last question. Such an
        answer is learned in its own text, rendered as it is when the model is used.
        """
        answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        if self._generation:
            text, spans = self._rendered(messages[: answers[-1] + 1], tools, False, True)
            return [(text, spans)]
        found: list[tuple[str, list[tuple[int, int]]]] = []
        for number in answers:
            if number == 0:
                continue  # a greeting answers nothing
            text = self._rendered(messages[: number + 1], tools)[0]
            prompt = self._rendered(messages[:number], tools, asking=True)[0]
            if not text.startswith(prompt):  # its generation prompt differs from how it writes answers (DeepSeek R1)
                prompt = self._rendered(messages[:number], tools)[0]
                if not text.startswith(prompt):
                    raise ValueError("an answer changes what stands before it")
                begun = text.find(messages[number]["content"].strip(), len(prompt))
                prompt = text[: max(begun, len(prompt))]
            bare = text.rstrip()  # what follows the closing token is not the model's
            closed = len(bare) > len(prompt) and bare.endswith(self._special)
            span = len(prompt), len(bare) if closed else len(text)
            earlier = found.pop()[1] if found and prompt.startswith(found[-1][0]) else []
            found.append((text, [*earlier, span]))
        return found

    def _rendered(
        self, messages: list[dict[str, Any]], tools: Any, asking: bool = False, spans: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        texts, found = self._render(
            [messages],
            tools=tools,
            chat_template=self._template,
            add_generation_prompt=asking,
            return_assistant_tokens_mask=spans,
            **self._words,
        )
        return texts[0], found[0] if found else []

    def _safe(self, value: Any) -> Any:
        """A copy of `value` with special tokens marked as text, and without other marks."""
        if isinstance(value, str):
            return self._control.sub(f"{LITERAL}\\g<0>{PLAIN}", MARKS.sub("", value))
        if isinstance(value, dict):
            return {key: self._safe(item) for key, item in value.items() if item is not None}
        return [self._safe(item) for item in value] if isinstance(value, list) else value

    def encode(self, texts: list[str]) -> list[bytes]:
        """The little-endian bytes of each text's tokens, with their two bits."""
        conversations = [_parts(part) for text in texts for part in text.split(START)[1:]]
        encoded: dict[bool, Any] = {}
        for literal, tokenizer in ((False, self._tokenizer), (True, self._literal)):
            wanted = [text for parts in conversations for text, kind, _ in parts if kind == literal]
            encoded[literal] = iter(tokenizer.encode_batch(wanted, add_special_tokens=False))
        result = []
        each = iter(conversations)
        for text in texts:
            values = [_flagged(next(each), encoded) for _ in range(text.count(START))]
            result.append(b"".join(part.tobytes() for part in values))
        return result


def _form(record: Any) -> str:
    """The form of a record: messages, conversations or prompt."""
    if not isinstance(record, dict):
        raise _Wrong("it is not a JSON object")
    for key in ("messages", "conversations"):
        if record.get(key) is not None:
            return key
    for key in ("prompt", "completion"):
        if record.get(key) is None:
            have = ", ".join(str(name) for name, value in record.items() if value is not None) or "nothing"
            raise _Wrong(f"it has {have}; a record has messages, conversations, or prompt and completion")
        if not isinstance(record[key], str):
            raise _Wrong(f"{key} holds {type(record[key]).__name__}, not text")
    return "prompt"


def _messages(given: Any, key: str) -> list[dict[str, Any]]:
    """Messages as chat templates take them."""
    who, what = ("role", "content") if key == "messages" else ("from", "value")
    if not isinstance(given, list) or not given:
        raise _Wrong(f"{key} holds {'nothing' if given == [] else type(given).__name__}, not a list of messages")
    messages = []
    for number, message in enumerate(given, 1):
        if not isinstance(message, dict) or not isinstance(message.get(who), str):
            raise _Wrong(f"message {number} of {key} has no {who}")
        content = message.get(what)
        if content is None and message.get("tool_calls"):
            content = ""
        if not isinstance(content, str):
            have = f"{type(content).__name__} as {what}, not text" if content is not None else f"no {what}"
            raise _Wrong(f"message {number} of {key} has {have}")
        role = message[who] if key == "messages" else ROLES.get(message[who], message[who])
        messages.append(
            {**{k: v for k, v in message.items() if k not in (who, what)}, "role": role, "content": content}
        )
    roles = dict.fromkeys(message["role"] for message in messages)
    if "assistant" not in roles:
        raise _Wrong(f"no message has role assistant (roles: {', '.join(roles)})")
    return messages


def _marked(text: str, spans: list[tuple[int, int]]) -> str:
    parts, position = [START], 0
    for start, end in spans:
        parts += [text[position:start], ANSWER, text[start:end], END]
        position = end
    return "".join([*parts, text[position:]])


Part = tuple[str, bool, list[tuple[int, int]]]
"""Text that is encoded in one call, whether special tokens in it are text, and the spans of answers in it."""


def _parts(marked: str) -> list[Part]:
    """Split a conversation at its marks, and remove them."""
    parts: list[Part] = []
    text, literal, counting = "", False, False
    spans: list[tuple[int, int]] = []
    for piece in [*MARKS.split(marked), PLAIN]:
        if piece in (LITERAL, PLAIN):
            if text:
                parts.append((text, literal, spans))
            text, literal, spans = "", piece == LITERAL, []
        elif piece in (ANSWER, END):
            counting = piece == ANSWER
        else:
            if counting:
                spans.append((len(text), len(text) + len(piece)))
            text += piece
    return parts


def _flagged(parts: list[Part], encoded: dict[bool, Any]) -> np.ndarray:
    """The tokens of a conversation with their two bits, as uint32."""
    values = []
    for _, literal, spans in parts:
        encoding: Encoding = next(encoded[literal])
        ids = np.array(encoding.ids, dtype=np.uint32)
        if spans:
            first, last = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
            for start, end in spans:
                ids[(last > start) & (first < end)] |= COUNTS
        values.append(ids)
    whole = np.concatenate(values) if values else np.zeros(0, dtype=np.uint32)
    whole[:1] |= BEGINS
    return whole
