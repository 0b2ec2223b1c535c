"""Render conversations with the tokenizer's chat template; only the answers and their closing tokens count in the loss.

records.py reads a record; here it becomes a text with marks, which loss_mask.py turns into tokens. Each role, content,
call and tool of a record leaves a trace in that text, and each answer is whole in what is learned of it, or the record
is refused by file and line: a template that leaves something out teaches something else than the data say. Other text
without a trace is counted in `notes`.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trainer import patches
from trainer.data import coverage, records
from trainer.data.answer_spans import FAILURES, AnswerSpans
from trainer.data.chat_template import begins, known
from trainer.data.loss_mask import MARKS, START, Encoder, Span, Undecodable, marked, squeezed
from trainer.data.records import ANSWERS, REASONS, Plain, Talk, Wrong
from trainer.data.sentences import says_anything, sentences
from trainer.data.sources import Place
from trainer.data.tokenizer import FILE
from trainer.errors import UserError, one_line

DOCUMENTS = "conversations"
"""Value of Recipe.documents for conversations; other values say what a document is in a text file."""
NAMED = 100
"""Keys without a trace that are counted by name: data may have a new one in each record."""
RECORDS, SPOKEN = "records", "answers"
"""What notes count."""


class Chat:
    """Renders and encodes with the tokenizer and the template in a dataset's folder."""

    columns: tuple[str, ...] = ()

    def __init__(self, folder: Path, tokenizer: Tokenizer | None = None) -> None:
        """tokenizer: that of the folder, if it is not its tokenizer.json as it is."""
        from transformers.utils import chat_template_utils

        patches.fix_the_date_of_templates()
        tokenizer = tokenizer or Tokenizer.from_file(str(folder / FILE))
        self._known = known(folder, tokenizer)
        self._render: Any = chat_template_utils.render_jinja_template
        self._words: dict[str, Any] = dict(self._known.special_tokens_map)
        added = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
        special = {word for word, counts in added.items() if counts}
        self._spans = AnswerSpans(self._written, list(added), special, self._words.get("eos_token", ""))
        self._encoder = Encoder(tokenizer, self._spans.ends)
        self.notes: Counter[tuple[str, str]] = Counter()
        self._noted: list[tuple[str, str]] = []
        self._begin = begins(tokenizer, self._words.get("bos_token", ""))
        self.has_template = bool(self._known.chat_template)

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
        except (TemplateError, *FAILURES) as error:
            raise UserError(
                f"--input {place()}: the chat template does not take this conversation ({one_line(error)}); mend or "
                "remove the record, or give another template with --chat-template"
            ) from None
        for note in self._noted:
            self.notes[note if note in self.notes or len(self.notes) < NAMED else (note[0], "others")] += 1
        return text

    def _read(self, record: Any) -> str:
        from jinja2 import UndefinedError

        self._noted = []
        talk = records.read(record)
        if isinstance(talk, Plain):
            if not (says_anything(talk.completion) and says_anything(talk.prompt)):
                said = says_anything(talk.completion)
                self._noted = [(SPOKEN, "answers_before_a_question" if said else "empty_answers")]
                return ""
            prompt, completion = map(self._safe, talk[:2])
            written = coverage.flat(talk.prompt + talk.completion)
            self._noted = [(RECORDS, _name(key)) for key in coverage.beside(talk.beside, written)]
            begun = self._begin + prompt
            whole = begun + completion + self._words["eos_token"]
            return marked(whole, [(len(begun), len(whole))])
        error: Exception | None = None
        # As transformers takes it; else with empty contents for calls alone, or their arguments as text (DeepSeek V3).
        for wire, blank in ((False, False), (False, True), (True, False), (True, True)):
            try:
                again = records.read(record, wire, blank) if wire or blank else talk
                return self._text(again)  # pyrefly: ignore[bad-argument-type]
            except (TypeError, UndefinedError) as found:
                error = error or found
        assert error is not None
        raise error

    def _text(self, talk: Talk) -> str:
        self._noted = []
        talk = Talk(
            self._safe(talk.messages), self._taught(talk), self._safe(talk.tools), self._safe(talk.options), talk.beside
        )
        if not talk.learned:
            return ""
        self._require_roles(talk)
        found = self._conversation(talk)
        self._check(talk, "".join(text for text, _ in found))
        return "".join(marked(*part) for part in found)

    def _taught(self, talk: Talk) -> list[int]:
        """Numbers of the messages that are learned, without those that say nothing or answer nothing."""
        found, asked = [], False
        for number, message in enumerate(talk.messages):
            asked = asked or _asks(message)
            if number not in talk.learned:
                continue
            if not _spoken(message):
                self._noted.append((SPOKEN, "empty_answers"))
            elif not asked:
                self._noted.append((SPOKEN, "answers_before_a_question"))
            else:
                found.append(number)
        return found

    def _check(self, talk: Talk, text: str) -> None:
        """Raise Wrong where the template leaves out a part of a conversation, which it wrote as `text`.

        What the template does not have to write is counted, if it says something.
        """
        template = self._known.get_chat_template(tools=talk.tools)
        for number, key, sentence in coverage.unread(talk, template, coverage.flat(text)):
            role = talk.messages[number]["role"] + "." if number >= 0 else ""
            if sentence and number in talk.learned:
                raise Wrong(
                    f"message {number + 1} (assistant) says something as {_name(key)}, which the chat template does "
                    "not write: the answer would be learned without it; name it as the template does, give another "
                    "(--chat-template), or remove it"
                )
            if (note := (RECORDS, _name(role + key))) not in self._noted:
                self._noted.append(note)
        probe, wanted = coverage.probed(talk)
        for number in reversed(talk.learned):  # only the text of an answer may have its thoughts
            text = self._written(probe.messages[: number + 1], probe).lower()
            if coverage.PYTHON in text:
                raise TypeError("the arguments of a call are written as Python writes them")
            wanted = {word: what for word, what in wanted.items() if word not in text}
            if not wanted:
                return
        raise Wrong(
            f"the chat template leaves out {', '.join(list(wanted.values())[:3])}, which another may write "
            "(--chat-template)"
        )

    def _require_roles(self, talk: Talk) -> None:
        """Raise Wrong for a role that the template does not name."""
        template = self._known.get_chat_template(tools=talk.tools)
        for number, message in enumerate(talk.messages, 1):
            role = message["role"]
            if role not in records.ROLES.values() and not re.search(f"[\"']{re.escape(role)}[\"']", template):
                allowed = ", ".join(dict.fromkeys([*records.ROLES, *records.ROLES.values()]))
                raise Wrong(f"message {number} has role {role}, which the chat template does not know ({allowed})")

    def _conversation(self, talk: Talk) -> list[tuple[str, list[Span]]]:
        """Rendered texts, each with the spans of its answers: one text, unless the template changes earlier messages.

        Some templates drop the reasoning of earlier answers or move the system prompt to the last question. Such an
        answer is learned in its own text, rendered as it is when the model is used.
        """
        template = self._known.get_chat_template(tools=talk.tools)
        marks = _marks(template)
        found: list[tuple[str, list[Span]]] = []
        for number in talk.learned:
            said = talk.messages[: number + 1]
            text, spans = self._rendered(said, talk, spans=marks)
            if marks:  # the template's own spans, after those of earlier answers, which some mark in no longer text
                before = self._rendered(said[:-1], talk, spans=True)[1] if number else []
                spans = spans[len(before) :] or [span for span in spans[-1:] if span not in before]
                if spans:  # what stops the model is learned, and last: marks may be closed before it or behind it
                    begun, end = spans[-1]
                    if not (closed := self._spans.closed(text[:end])):
                        text, closed = self._spans.end(text, end, said, talk)
                    spans = [*spans[:-1], (begun, max(begun, closed))]
            else:
                begun = self._spans.begin(text, said, talk)
                text, end = self._spans.end(text, begun, said, talk)
                spans = [(begun, end)]
            self._require_said(said[-1], text, spans, number, template)
            earlier = []
            if found and text[: spans[0][0]].startswith(found[-1][0][: found[-1][1][-1][1]]):
                earlier = found.pop()[1]
            found.append((text, [*earlier, *spans]))
        return found

    def _require_said(self, message: dict[str, Any], text: str, spans: list[Span], number: int, template: str) -> None:
        """Raise Wrong where an answer is not whole in what is learned; note where it lost white space at its ends.

        Note thoughts and calls that a template writes outside of its marks.
        """
        learned, content = "".join(text[start:end] for start, end in spans), message.get("content", "")
        parts = [(key, message.get(key)) for key in REASONS]
        parts += [("tool_calls", call["function"]["name"]) for call in message.get("tool_calls", [])]
        for key, part in parts:
            said = squeezed(part) if isinstance(part, str) else ""
            if said and squeezed(learned).count(said) <= squeezed(content).count(said):
                self._noted.append((SPOKEN, f"{key}_outside_the_marks"))
        if learned and content in learned:
            return
        content, learned = (MARKS.sub("", each) for each in (content, learned))
        place, whole, lost = 0, bool(learned), False
        for part in _parts(content, template):
            at = learned.find(part.strip(), place)
            whole &= at >= 0
            lost |= part not in learned
            place = at + len(part.strip())
        if not whole:
            inside = squeezed(content) in squeezed(learned)
            raise Wrong(
                f"the chat template {'changes the white space inside' if inside else 'leaves out or changes'} the "
                f"answer in message {number + 1}, which another may write as it is (--chat-template)"
            )
        if lost:
            self._noted.append((SPOKEN, "white_space_at_the_ends"))

    def _written(self, messages: list[dict[str, Any]], talk: Talk, asking: bool = False) -> str:
        return self._rendered(messages, talk, asking)[0]

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

    def encode(self, texts: list[str], places: list[Place]) -> list[bytes]:
        """The little-endian bytes of each text's tokens, with their two bits.

        Raises UserError where the tokens do not say what the answers say: that is compared for every record, since
        one odd character is enough.
        """
        try:
            return self._encoder.encode(texts)
        except Undecodable as error:
            raise UserError(
                f"--input {places[error.number]()}: the tokenizer {error.why}, so another answer would be learned; "
                "mend or remove the record, or take another tokenizer"
            ) from None

    def asked(self, messages: list[dict[str, Any]]) -> list[int]:
        """The ids of a conversation and the template's generation prompt, as a training has them before an answer."""
        return self._encoder.ids(self._rendered(self._safe(messages), Talk(messages, []), asking=True)[0])


def _asks(message: dict[str, Any]) -> bool:
    """Whether a message can be answered; an empty result of a tool can, an empty question cannot."""
    if message["role"] == "user":
        return _spoken(message)
    return message["role"] not in ("system", "developer", "assistant")


def _spoken(message: dict[str, Any]) -> bool:
    """Whether a message says anything."""
    if message.get("tool_calls") or any(message.get(key) for key in ANSWERS):
        return True
    return says_anything(message.get("content", "")) or any(
        sentences(value) for key, value in message.items() if key not in ("role", "content")
    )


def _name(key: str) -> str:
    """A key of the data as one plain word of a log line."""
    return "_".join(re.sub(r"[^\w.-]+", " ", key).split())[:60]


_TAGS = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


def _parts(content: str, template: str) -> list[str]:
    """A text without marks between the tags that the template names: around them it writes white space of its own."""
    return _TAGS.sub(lambda tag: START if tag[0] in template else tag[0], content).split(START)


@cache
def _marks(template: str) -> bool:
    """Whether the template says itself what the answers are."""
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None
