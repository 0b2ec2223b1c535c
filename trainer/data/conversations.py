"""Render conversations with the tokenizer's chat template; only the answers and their closing tokens count in the loss.

records.py reads a record; here it becomes a text with marks, which answers.py turns into tokens. Each role, content,
call and tool of a record leaves a trace in that text, and each answer is whole in what is learned of it, or the record
is refused by file and line: a template that leaves something out teaches something else than the data say.
"""

import json
import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trainer.data import records
from trainer.data.answers import BEGINS, COUNTS, ID, MARKS, START, Encoder, Span, Undecodable, marked, squeezed
from trainer.data.documents import Place
from trainer.data.records import Talk, Wrong
from trainer.data.tokenizer import FILE, end_of_text, find_folder
from trainer.errors import UserError, one_line

__all__ = ["BEGINS", "COUNTS", "ID", "MARKS", "Chat", "described", "plain_template"]

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
"""Files beside tokenizer.json."""
TEMPLATES = "additional_chat_templates"
"""The folder of further templates, where transformers looks for them."""
DOCUMENTS = "conversations"
"""Value of Recipe.documents for conversations; other values say what a document is in a text file."""
PENDING = 4096
"""Records whose places are kept until they are encoded: more than shards.py encodes in one call."""


class _Day(datetime):
    """A fixed date for templates that ask for today's (Llama 3, SmolLM3): otherwise the same conversations would have
    other tokens tomorrow. Llama 3.1's own template falls back to this date."""

    @classmethod
    def now(cls, tz: Any = None) -> "_Day":
        return cls(2024, 7, 26)


def described(spec: str, tokenizer: Tokenizer) -> tuple[dict[str, Any], str]:
    """tokenizer_config.json and chat template of the tokenizer that `spec` names; empty without one.

    Several templates stay in the former, by name, as transformers reads them where there is no other file.
    """
    folder = find_folder(spec)
    text = _beside(folder, CONFIG)
    try:
        given = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise UserError(f"--tokenizer {spec}: its {CONFIG} is not JSON ({error}); mend it") from None
    template = given.pop("chat_template", None) or {}
    named = {item["name"]: item["template"] for item in template} if isinstance(template, list) else template
    beside = sorted((folder / TEMPLATES).glob("*.jinja")) if folder is not None else []
    files = {path.stem: path.read_text("utf-8") for path in beside}
    if default := _beside(folder, TEMPLATE):
        files["default"] = default
    if isinstance(named := files or named, dict):
        if set(named) > {"default"} or (named and "default" not in named):
            given["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
        named = "" if "chat_template" in given else named.get("default", "")
    given.pop("auto_map", None)  # code
    end = tokenizer.id_to_token(end_of_text(tokenizer, folder)) if not given.get("eos_token") else None
    return {**given, **({"eos_token": end} if end else {})}, named


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

    columns: tuple[str, ...] = records.COLUMNS

    def __init__(self, folder: Path, tokenizer: Tokenizer | None = None) -> None:
        """tokenizer: that of the folder, if it is not its tokenizer.json as it is."""
        from transformers import PreTrainedTokenizerFast
        from transformers.utils import chat_template_utils

        chat_template_utils.datetime = _Day  # pyright: ignore[reportPrivateImportUsage]
        tokenizer = tokenizer or Tokenizer.from_file(str(folder / FILE))
        self._known = PreTrainedTokenizerFast.from_pretrained(folder, tokenizer_object=tokenizer)
        self._render: Any = chat_template_utils.render_jinja_template
        self._words: dict[str, Any] = dict(self._known.special_tokens_map)
        self._encoder = Encoder(tokenizer)
        self._begin = _added_before(tokenizer, self._words.get("bos_token", ""))
        self.has_template = bool(self._known.chat_template)
        self._checked: set[Any] = set()
        self._places: dict[str, Place] = {}

    def read(self, record: Any, place: Place) -> str:
        """The record's text with marks; empty where there is no answer to learn. Raises UserError."""
        from jinja2 import TemplateError, TemplateSyntaxError

        try:
            text = self._read(record)
        except Wrong as error:
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
        while len(self._places) >= PENDING:  # read again after an interruption, and not encoded again
            del self._places[next(iter(self._places))]
        self._places[text] = place
        return text

    def _read(self, record: Any) -> str:
        from jinja2 import UndefinedError

        talk = records.read(record)
        if isinstance(talk, tuple):
            prompt, completion = map(self._safe, talk)
            begun = self._begin + prompt
            whole = begun + completion + self._words["eos_token"]
            return marked(whole, [(len(begun), len(whole))])
        error: Exception | None = None
        # As transformers takes it; else with empty contents for calls alone, or their arguments as text (DeepSeek V3).
        for wire, blank in ((False, False), (False, True), (True, False), (True, True)):
            try:
                return self._text(records.read(record, wire, blank))  # pyright: ignore[reportArgumentType]
            except (TypeError, UndefinedError) as found:
                error = error or found
        assert error is not None
        raise error

    def _text(self, talk: Talk) -> str:
        talk = Talk(self._safe(talk.messages), talk.learned, self._safe(talk.tools), self._safe(talk.options))
        if not talk.learned:
            return ""
        self._check(talk)
        return "".join(marked(*part) for part in self._conversation(talk))

    def _check(self, talk: Talk) -> None:
        """Raise Wrong where the template leaves out a part of such conversations.

        What it leaves out depends on the roles, the keys and the tags of a conversation, so one of each shape is tried.
        """
        shape = repr(
            [[(key, _shape(value)) for key, value in message.items()] for message in talk.messages]
            + [talk.learned, _shape(talk.tools), talk.options]
        )
        if shape in self._checked:
            return
        template = self._known.get_chat_template(tools=talk.tools)
        for number, message in enumerate(talk.messages, 1):
            role = message["role"]
            if role not in records.ROLES.values() and not re.search(f"[\"']{re.escape(role)}[\"']", template):
                allowed = ", ".join(dict.fromkeys([*records.ROLES, *records.ROLES.values()]))
                raise Wrong(f"message {number} has role {role}, which the chat template does not know ({allowed})")
        probe, wanted = records.probed(talk)
        text = "".join(text for text, _ in self._conversation(probe))
        if records.PYTHON in text:
            raise TypeError("the arguments of a call are written as Python writes them")
        text = text.lower()
        if text and (lost := [what for word, what in wanted.items() if word not in text]):
            raise Wrong(
                f"the chat template leaves out {', '.join(lost[:3])}, which another may write (--chat-template)"
            )
        if len(self._checked) < PENDING:
            self._checked.add(shape)

    def _conversation(self, talk: Talk) -> list[tuple[str, list[Span]]]:
        """Rendered texts, each with the spans of its answers: one text, unless the template changes earlier messages.

        Some templates drop the reasoning of earlier answers or move the system prompt to the last question. Such an
        answer is learned in its own text, rendered as it is when the model is used.
        """
        template = self._known.get_chat_template(tools=talk.tools)
        marks = _marks(template)
        found: list[tuple[str, list[Span]]] = []
        for number in talk.learned:
            if number == 0 and not marks:
                continue  # a greeting answers nothing
            said = talk.messages[: number + 1]
            text, spans = self._rendered(said, talk, spans=marks)
            if marks:  # the template's own spans, after those of earlier answers
                spans = spans[len(self._rendered(said[:-1], talk, spans=True)[1]) if number else 0 :]
            else:
                begun = self._begun(text, said, talk)
                bare = text.rstrip()  # what follows the closing token is not the model's
                closed = len(bare) > begun and bare.endswith(self._encoder.special)
                spans = [(begun, len(bare) if closed else len(text))]
            learned = squeezed("".join(text[start:end] for start, end in spans))
            if not learned or squeezed(said[-1].get("content", "")) not in learned:
                raise Wrong(
                    f"the chat template leaves out or changes the answer in message {number + 1}, which another may "
                    "write as it is (--chat-template)"
                )
            earlier = found.pop()[1] if found and text[: spans[0][0]].startswith(found[-1][0]) else []
            found.append((text, [*earlier, *spans]))
        return found

    def _begun(self, text: str, said: list[dict[str, Any]], talk: Talk) -> int:
        """Where the last answer begins in a rendered text."""
        prompt = self._rendered(said[:-1], talk, asking=True)[0]
        if text.startswith(prompt):
            return len(prompt)
        prompt = self._rendered(said[:-1], talk)[0]  # it asks otherwise than it writes answers (DeepSeek R1)
        if not text.startswith(prompt):
            raise ValueError("an answer changes what stands before it")
        if not (content := said[-1].get("content")):
            return len(prompt)
        other = self._rendered([*said[:-1], {**said[-1], "content": START + content}], talk)[0]
        return next(place for place, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1])

    def _rendered(
        self, messages: list[dict[str, Any]], talk: Talk, asking: bool = False, spans: bool = False
    ) -> tuple[str, list[Span]]:
        texts, found = self._render(
            [messages],
            tools=talk.tools,
            chat_template=self._known.get_chat_template(tools=talk.tools),
            add_generation_prompt=asking,
            return_assistant_tokens_mask=spans,
            **{**self._words, **(talk.options or {})},
        )
        return texts[0], found[0] if found else []

    def _safe(self, value: Any) -> Any:
        """A copy of `value` with special tokens marked as text, and without other marks."""
        if isinstance(value, str):
            return self._encoder.safe(value)
        if isinstance(value, dict):
            return {key: self._safe(item) for key, item in value.items()}
        return [self._safe(item) for item in value] if isinstance(value, list) else value

    def encode(self, texts: list[str]) -> list[bytes]:
        """The little-endian bytes of each text's tokens, with their two bits.

        Raises UserError where the tokens do not say what the answers say: that is compared for every record, since
        one odd character is enough.
        """
        try:
            return self._encoder.encode(texts)
        except Undecodable as error:
            place = self._places.get(texts[error.number], lambda: "a record")
            raise UserError(
                f"--input {place()}: the tokenizer {error.why}, so another answer would be learned; mend or remove the "
                "record, or take another tokenizer"
            ) from None
        finally:
            for text in texts:
                self._places.pop(text, None)

    def asked(self, messages: list[dict[str, Any]]) -> list[int]:
        """The ids of a conversation and the template's generation prompt, as a training has them before an answer."""
        return self._encoder.ids(self._rendered(self._safe(messages), Talk(messages, []), asking=True)[0])


@cache
def _marks(template: str) -> bool:
    """Whether the template says itself what the answers are."""
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


def _shape(value: Any) -> Any:
    """What decides where a template writes a value: its kind, and the tags in a text."""
    if isinstance(value, str):
        return bool(value.strip()), sorted(set(re.findall(r"<[^<>\s]*>|\[/?[A-Z_]+\]", value)))
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return {key: _shape(item) for key, item in value.items()} if isinstance(value, dict) else type(value).__name__
