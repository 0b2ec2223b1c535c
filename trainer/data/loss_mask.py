"""Tokens of rendered conversations, with two bits above the ids: a token counts in the loss, a conversation begins.

A rendered text marks with characters of a private use plane where an answer begins and ends, and which text only looks
like a special token. It is encoded in one call, as transformers does, since many tokenizers put a space before a text
or treat its beginning in another way. So that text stays text, the encoder calls the special tokens by other names,
which no text can hold.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

COUNTS, BEGINS = np.uint32(1 << 31), np.uint32(1 << 30)
"""Bits of a token on disk: its loss counts; it begins a conversation. The rest is its id."""
ID = BEGINS - np.uint32(1)
START, ANSWER, END, LITERAL, PLAIN, SPECIAL = map(chr, range(0xF0000, 0xF0006))
"""Marks: a conversation begins; an answer begins, ends; text that looks like a special token begins, ends; a special
token follows."""
MARKS = re.compile(f"[{START}-{SPECIAL}]")
_SPAN = re.compile(f"([{ANSWER}{END}])")
Span = tuple[int, int]


class Undecodable(Exception):
    """The tokens of an answer do not say what it says: the number of the text, and why."""

    def __init__(self, number: int, why: str) -> None:
        self.number, self.why = number, why


def marked(text: str, spans: list[Span]) -> str:
    """The text of a conversation with marks at its answers."""
    parts, position = [START], 0
    for start, end in spans:
        parts += [text[position:start], ANSWER, text[start:end], END]
        position = end
    return "".join([*parts, text[position:]])


class Encoder:
    """Turns marked texts into tokens."""

    def __init__(self, tokenizer: Tokenizer, ends: Iterable[str] = ()) -> None:
        """ends: added tokens that end answers and count as special although the tokenizer's file says otherwise."""
        parts = json.loads(tokenizer.to_str())
        model = parts["model"]
        for token in parts["added_tokens"]:
            token["special"] |= token["content"] in ends
        added: dict[str, bool] = {token["content"]: token["special"] for token in parts["added_tokens"]}
        longest = sorted(added, key=len, reverse=True)  # wins at its place, as in the tokenizer
        self.special = tuple(word for word in longest if added[word])
        self._unknown = model.get("unk_id", tokenizer.token_to_id(model.get("unk_token") or ""))
        words, either = ("|".join(map(re.escape, each)) or "(?!)" for each in (self.special, longest))
        self._like = re.compile(words)
        # A template may change what stands between two marks (it splits at a letter), or lose one of them.
        near = f"[^{LITERAL}{PLAIN}]{{1,{2 * len(longest[0]) if longest else 1}}}"
        self._written = re.compile(f"{LITERAL}({near}){PLAIN}|{either}|[{LITERAL}{PLAIN}]")
        self._between = re.compile(f"{SPECIAL}(?:{words})")
        self._ids = {tokenizer.token_to_id(word) for word in self.special} - {self._unknown}
        self._tokenizer, self._renamed = tokenizer, _renamed(tokenizer, parts)
        normalizer = tokenizer.normalizer
        self._normal: Callable[[str], str] = normalizer.normalize_str if normalizer is not None else str

    def safe(self, text: str) -> str:
        """The text without marks, but for those of what looks like a special token."""
        text = MARKS.sub("", text)
        if not text.isascii():  # halves of surrogate pairs are no characters
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return self._like.sub(f"{LITERAL}\\g<0>{PLAIN}", text)

    def encode(self, texts: list[str]) -> list[bytes]:
        """The little-endian bytes of each text's tokens, with their two bits. Raises Undecodable."""
        parts = [(number, *self._split(part)) for number, text in enumerate(texts) for part in text.split(START)[1:]]
        encoded = self._renamed.encode_batch([text for _, text, _ in parts], add_special_tokens=False)
        result, answers = [b""] * len(texts), []
        for (number, text, spans), encoding in zip(parts, encoded, strict=True):
            if not self._found(encoding, text):
                raise Undecodable(number, "finds some of its special tokens only behind a space")
            ids, chosen = _flagged(encoding, spans)
            result[number] += ids.tobytes()
            answers += [(number, text[slice(*span)], part) for span, part in zip(spans, chosen, strict=True)]
        decoded = self._tokenizer.decode_batch([ids for _, _, ids in answers], skip_special_tokens=False)
        for (number, text, ids), found in zip(answers, decoded, strict=True):
            if why := self._lost(text, ids, found):
                raise Undecodable(number, why)
        return result

    def ids(self, text: str) -> list[int]:
        """The ids of a rendered text without answers; where special tokens are not found, those of transformers."""
        text = self._split(text)[0]
        encoding = self._renamed.encode(text, add_special_tokens=False)
        if not self._found(encoding, text):
            encoding = self._tokenizer.encode(text.replace(SPECIAL, ""), add_special_tokens=False)
        return encoding.ids

    def _found(self, encoding: Encoding, text: str) -> bool:
        """Whether each special token was found: the first Llama 2's tokenizer finds some only behind a space."""
        return sum(id in self._ids for id in encoding.ids) == text.count(SPECIAL)

    def _split(self, text: str) -> tuple[str, list[Span]]:
        """The text as the encoder takes it, and the spans of its answers in it."""
        text = self._written.sub(self._named, text)
        plain, spans, counting = "", [], False
        for piece in _SPAN.split(text):
            if piece in (ANSWER, END):
                counting = piece == ANSWER
            else:
                if counting and piece:
                    spans.append((len(plain), len(plain) + len(piece)))
                plain += piece
        return plain, spans

    def _named(self, found: re.Match[str]) -> str:
        whole = found[0]
        return found[1] or (
            SPECIAL + whole if whole in self.special else whole if whole[0] not in LITERAL + PLAIN else ""
        )

    def _lost(self, text: str, ids: list[int], found: str) -> str:
        """What the tokens do not say of the text, but for what the tokenizer's normaliser changes; empty: nothing.

        Special tokens may take the white space beside them, so the texts between them are compared.
        """
        between = [part for part in map(self._canonical, self._between.split(text)) if part]
        have = self._canonical(found)
        if self._unknown not in ids and _holds(have, between):
            return ""
        # Some tokenizers never keep white space (BERT's): then it is theirs, not a change that we made.
        self._tokenizer.encode_special_tokens = True
        alone = [self._tokenizer.decode(self._tokenizer.encode(part, add_special_tokens=False).ids) for part in between]
        self._tokenizer.encode_special_tokens = False
        if (
            self._unknown not in ids
            and _holds(squeezed(have), map(squeezed, between))
            and _holds(have, map(self._canonical, alone))
        ):
            return ""
        lost = next((each for part in between for each in part if each not in have), "")
        return f"has no token for {lost!r}" if lost else f"turns {between[0][:80]!r} into {have[:80]!r}"

    def _canonical(self, text: str) -> str:
        return self._normal(text).replace("\u2581", " ").strip()


def _holds(text: str, parts: Iterable[str]) -> bool:
    """Whether the text holds the parts in their order."""
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


def squeezed(text: str) -> str:
    """The text without white space and marks."""
    return MARKS.sub("", "".join(text.split()))


def _renamed(tokenizer: Tokenizer, parts: dict[str, Any]) -> Tokenizer:
    """A copy, made of `parts`, in which a special token is called SPECIAL and its name; its name alone is text."""
    words = {token["content"] for token in parts["added_tokens"] if token["special"]}

    def named(word: str) -> str:
        return SPECIAL + word if word in words else word

    for token in parts["added_tokens"]:
        token["content"] = named(token["content"])
    model = parts["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {named(word): id for word, id in model["vocab"].items()}
    else:
        model["vocab"] = [[named(word), *rest] for word, *rest in model["vocab"]]
    if model.get("unk_token"):
        model["unk_token"] = named(model["unk_token"])
    if "merges" in model:  # none makes a special token of text
        pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
        model["merges"] = [pair for pair in pairs if not words.intersection((*pair, "".join(pair)))]
    # A post-processor would cut white space off the tokens' places in the text.
    copy = Tokenizer.from_str(json.dumps({**parts, "post_processor": None}))
    assert all(copy.token_to_id(SPECIAL + word) == tokenizer.token_to_id(word) for word in words)
    return copy


def _flagged(encoding: Encoding, spans: list[Span]) -> tuple[np.ndarray, list[list[int]]]:
    """The tokens of a conversation with their two bits, as uint32, and the ids of each answer."""
    ids = np.array(encoding.ids, dtype=np.uint32)
    counts, answers = np.zeros(len(ids), bool), []
    if spans:
        first, last = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
        for start, end in spans:
            chosen = (last > start) & (first < end)
            answers.append(ids[chosen].tolist())
            counts |= chosen
    ids[counts] |= COUNTS
    ids[:1] |= BEGINS
    return ids, answers
