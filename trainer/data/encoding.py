"""Encode text into token ids fast: merge each word once, then look it up.

GPT-2's encoding cuts text into words by a regular expression and merges the bytes of each word separately, so a word
has the same ids everywhere. Natural text repeats its words: with a dictionary from word to ids only the cutting is
left, and one core encodes three to five times as much as the tokenizer itself (bench/results/prepare.md).

The ids are the tokenizer's own: it encodes each new word, and it is probed for its character classes, since Unicode
versions differ between libraries. A tokenizer that does not work like this is used as it is.
"""

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

LETTERS = (range(0x4E00, 0xA000), range(0xAC00, 0xD7A4))
"""Chinese characters and Korean syllables are all letters: half of the basic plane needs no probe."""
ASKED = (range(0x4E00), range(0xA000, 0xAC00), range(0xF900, 0x10000), range(0x1F300, 0x1FB00))
"""Probed: the rest of the basic plane (without surrogates and private use), and emoji. A text with any other character
is rare: the tokenizer itself encodes all of it."""
CACHED_WORDS = 400_000
"""About 80 MB. Later words are rare: they are encoded each time."""
CACHED_LENGTH = 40
"""Most characters in a cached word: longer ones hardly ever repeat."""
TRICKY = (
    "I'll don't 'twas WE'RE  two\n\n three \t\n x1234,abc!?... Ünïcödé’s “quote”—½ ²\u00a0nbsp\u2003em\u3000 日本語 "
    "١٢٣ \x1c🙂🙂 \r\n "
)
"""Text on which the fast encoder must agree with the tokenizer before it is used."""

Encode = Callable[[list[str]], list[bytes]]
"""Texts to the little-endian bytes of their ids."""


def encoder(tokenizer: Tokenizer, dtype: type[np.unsignedinteger]) -> Encode:
    """The fastest exact encoder for `tokenizer`, without special tokens: text that looks like one stays text."""
    tokenizer.encode_special_tokens = True
    slow = plain(tokenizer, dtype)
    if not splits_like_gpt2(tokenizer):
        return slow
    fast = by_words(tokenizer, dtype)
    return fast if fast([TRICKY]) == slow([TRICKY]) else slow


def continuing(tokenizer: Tokenizer) -> Tokenizer | None:
    """A copy that puts no space before a text, for a passage within one; None where the tokenizer puts none."""
    parts = json.loads(tokenizer.to_str())

    def bare(part: dict[str, Any] | None) -> dict[str, Any] | None:
        if part is None or part["type"] == "Prepend":
            return None
        for key in ("normalizers", "pretokenizers"):
            if key in part:
                part = {**part, key: [kept for each in part[key] if (kept := bare(each)) is not None]}
        if part["type"] == "Metaspace":
            part = {**part, "prepend_scheme": "never"}
        return {**part, "add_prefix_space": False} if part.get("add_prefix_space") else part

    changed = {key: bare(parts[key]) for key in ("normalizer", "pre_tokenizer")}
    if all(parts[key] == value for key, value in changed.items()):
        return None
    return Tokenizer.from_str(json.dumps({**parts, **changed}))


def plain(tokenizer: Tokenizer, dtype: type[np.unsignedinteger]) -> Encode:
    """An encoder that calls the tokenizer."""

    def encode(texts: list[str]) -> list[bytes]:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=dtype).tobytes() for encoding in encodings]

    return encode


def splits_like_gpt2(tokenizer: Tokenizer) -> bool:
    """Whether text is cut into words by GPT-2's expression and nothing else touches it."""
    parts = json.loads(tokenizer.to_str())
    cutter, model = parts["pre_tokenizer"] or {}, parts["model"]
    return (
        parts["normalizer"] is None
        and cutter.get("type") == "ByteLevel"
        and cutter.get("use_regex", True)
        and not cutter["add_prefix_space"]
        and model["type"] == "BPE"
        and not model.get("dropout")
        and all(token["special"] for token in parts["added_tokens"])
    )


class _Unknown(Exception):
    """A character whose class was not probed."""


class _Words(dict[str, bytes]):
    """Ids by word; a new word is merged at its first lookup."""

    def __init__(self, tokenizer: Tokenizer, dtype: type[np.unsignedinteger], unknown: str) -> None:
        super().__init__()
        self._unknown = re.compile(unknown).match
        self._merge = tokenizer.model.tokenize
        self._letters = {byte: _letter(byte) for byte in range(256)}
        size = max(tokenizer.get_vocab().values()) + 1
        self._packed = [np.array(id, dtype=dtype).tobytes() for id in range(size)]

    def __missing__(self, word: str) -> bytes:
        if not word.isascii() and self._unknown(word):
            raise _Unknown
        # Spell each byte as one letter: first by its number (Latin-1), then as in the vocabulary.
        spelled = word.encode().decode("latin-1").translate(self._letters)
        ids = b"".join([self._packed[token.id] for token in self._merge(spelled)])
        if len(self) < CACHED_WORDS and len(word) <= CACHED_LENGTH:
            self[word] = ids
        return ids


def by_words(tokenizer: Tokenizer, dtype: type[np.unsignedinteger]) -> Encode:
    """An encoder that cuts by our own regular expression, looks the words up, and joins their ids."""
    pattern, unknown = word_pattern()
    cut = re.compile(pattern).findall
    words = _Words(tokenizer, dtype, unknown)
    slow = plain(tokenizer, dtype)

    def encode(texts: list[str]) -> list[bytes]:
        result = []
        for text in texts:
            try:
                result.append(b"".join(map(words.__getitem__, cut(text))))
            except _Unknown:
                result += slow([text])
        return result

    return encode


@functools.cache
def word_pattern() -> tuple[str, str]:
    """GPT-2's expression for Python's re, and one for the characters of unknown class.

    re has no \\p{L} and \\p{N}, and libraries differ in their version of Unicode, so the tokenizer is probed: each
    character is put between two letters, two digits and two marks, and belongs to the class where it makes no cut.
    """
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str
    points = [point for part in ASKED for point in part]
    kinds: list[set[int]] = []
    for neighbour in "a1!":
        probe = "".join([f"{neighbour}{chr(point)}{neighbour}\n" for point in points])
        # A probe has 4 characters; if its first 3 are one word, there was no cut.
        spans = [span for _, span in split(probe)]
        kinds.append({points[start // 4] for start, end in spans if end - start == 3 and start % 4 == 0})
    spaces = set(points).difference(*kinds)
    letters = kinds[0].union(*LETTERS)
    letter, digit, mark, space = map(_members, (letters, kinds[1], kinds[2], spaces))
    unknown = f"[^{letter}{digit}{mark}{space}]"
    # The alternatives begin with different characters, except for the apostrophe: the most common one comes first.
    pattern = (
        f" ?[{letter}]++|'(?:[sdmt]|ll|ve|re)| ?[{mark}]++| ?[{digit}]++|[{space}]+(?![^{space}])|[{space}]++|{unknown}"
    )
    return pattern, unknown


def _members(points: set[int]) -> str:
    """The inside of a character class: ranges of code points."""
    ranges: list[list[int]] = []
    for point in sorted(points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


def _letter(byte: int) -> str:
    """How byte-level vocabularies spell a byte: as itself if it is printable Latin-1, else from U+0100 on, in order."""
    hidden = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
    return chr(0x100 + hidden.index(byte)) if byte in hidden else chr(byte)
