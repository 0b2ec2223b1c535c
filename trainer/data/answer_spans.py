"""Where an answer begins and ends in what a chat template writes; both follow from what it writes of other answers.

Most templates write a token behind each answer. Some let the next role's token end it (GLM-4.5): it is learned too,
since generation stops there.
"""

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from trainer.data.loss_mask import START
from trainer.data.records import Talk, Wrong

FAILURES = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What a template of others raises, beside jinja2's TemplateError, on a conversation that it does not take."""
KEPT = 100
"""Templates and their variables of which the ends are kept."""
Render = Callable[..., str]
"""Renders messages of a talk; asking: with the prompt for an answer."""


class AnswerSpans:
    def __init__(self, render: Render, added: list[str], special: set[str], end_of_text: str) -> None:
        """added: the tokenizer's added tokens; special: those that it calls so."""
        self._render, self._end_of_text = render, end_of_text
        longest = sorted(added, key=len, reverse=True)
        self._longest = tuple(longest)
        self._added = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        self._behind: dict[Any, str | None] = {}
        self.ends = self._found(special)
        """Tokens that end answers and that the tokenizer does not call special."""
        self._closing = tuple(word for word in longest if word in special | self.ends)

    def _found(self, special: set[str]) -> set[str]:
        tool = {"type": "function", "function": {"name": "x", "description": "x", "parameters": {}}}
        found = set()
        for talk in (Talk([], []), Talk([], [], [tool])):
            own = self._added.findall(self.behind(talk) or "")
            if not own:
                own = [mark.strip() for role in ("user", "tool") if (mark := self._next(talk, role))]
            if not special.intersection(own):
                found.update(own[-1:])
        return found

    def behind(self, talk: Talk, role: str = "") -> str | None:
        """What the template writes behind any answer, up to a next message of this role; None where it takes none."""
        from jinja2 import TemplateError

        key = bool(talk.tools), repr(talk.options), role
        if key not in self._behind:
            while len(self._behind) >= KEPT:
                del self._behind[next(iter(self._behind))]
            said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": START}]
            said += [{"role": role, "content": "x"}] if role else []
            try:
                text = self._render(said, talk)
            except (TemplateError, *FAILURES):
                text = ""
            self._behind[key] = text.rpartition(START)[2] if START in text else None
        return self._behind[key]

    def _next(self, talk: Talk, role: str) -> str:
        """The token of the next role, with white space before it, where it ends answers; else empty."""
        own, after = self.behind(talk) or "", self.behind(talk, role) or ""
        rest = after.removeprefix(own) if after.startswith(own) else after
        space = len(rest) - len(rest.lstrip())
        found = self._added.match(rest, space)
        return rest[: found.end()] if found else ""

    def begin(self, text: str, said: list[dict[str, Any]], talk: Talk) -> int:
        """Where the last answer begins in a text: behind the prompt for it, or where any other would differ."""
        asked = self._render(said[:-1], talk, asking=True)
        if text.startswith(asked) and (said[-2]["role"] == "user" or not self._asks_nothing(said[:-1], asked, talk)):
            return len(asked)
        before = self._render(said[:-1], talk)  # it asks otherwise than it writes answers (DeepSeek R1, Nemotron)
        if not text.startswith(before):
            raise ValueError("an answer changes what stands before it")
        others = [{"role": "assistant", "content": START}]
        if content := said[-1].get("content"):
            others.append({**said[-1], "content": START + content})
        ends = [_common(text, self._render([*said[:-1], other], talk)) for other in others]
        return max(len(before), min(ends))

    def _asks_nothing(self, said: list[dict[str, Any]], asked: str, talk: Talk) -> bool:
        """Whether a template that asks for answers does not ask for this one (Gemma 4, behind the result of a call)."""
        question = [{"role": "user", "content": "x"}]
        asks = self._render(question, talk, asking=True) != self._render(question, talk)
        return asks and self._render(said, talk) == asked

    def end(self, text: str, begun: int, said: list[dict[str, Any]], talk: Talk) -> tuple[str, int]:
        """The text with the token that ends its last answer, and where that token ends. Raises Wrong without one.

        begun: where the text is the answer's for certain.
        """
        own = self.behind(talk)
        if own is None or self._added.search(own):
            if (end := self.closed(text)) > begun:
                return text, end
            bare = text.rstrip()
            if said[-1].get("tool_calls") and bare.endswith(self._longest):  # calls may have an end of their own
                return text, len(bare)
        elif mark := self._next(talk, "tool" if said[-1].get("tool_calls") else "user"):
            return text + mark, len(text + mark)
        raise Wrong(
            f"the chat template ends the answer in message {len(said)} with no token of its own, so the model would "
            "not stop there; another may, as with {{ eos_token }} behind each answer (--chat-template)"
        )

    def closed(self, text: str) -> int:
        """Where the special tokens at the end of a text end; 0 without any.

        Behind its end of text, a template may write what begins the next turn (Command R7B).
        """
        bare = rest = text.rstrip()
        while word := next((word for word in self._closing if rest.endswith(word)), ""):
            if word == self._end_of_text:
                return len(rest)
            rest = rest[: -len(word)].rstrip()
        return len(bare) if rest != bare else 0


def _common(one: str, other: str) -> int:
    """The length of the beginning that two texts share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
