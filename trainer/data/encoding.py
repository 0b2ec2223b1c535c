"""Text into token ids, fast: a word is merged once and looked up ever after.

GPT-2's encoding cuts text into words by a regular expression and merges the bytes of each word on their own, so a word
has the same ids wherever it stands. Natural text repeats its words: a dictionary from word to ids leaves the cutting as
the only work, and one core then encodes three to five times what the tokenizer itself does (bench/results/prepare.md).

The ids are the tokenizer's own: it encodes each new word, its classes of characters are asked of it (Unicode versions
differ between libraries), and a tokenizer that does not work like this is used as it is.
"""

import functools
import json
import re
from collections.abc import Callable

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

LETTERS = (range(0x4E00, 0xA000), range(0xAC00, 0xD7A4))
"""Chinese characters and Korean syllables, letters all of them: half of the basic plane that need not be asked for."""
ASKED = (range(0x4E00), range(0xA000, 0xAC00), range(0xF900, 0x10000), range(0x1F300, 0x1FB00))
"""The rest of the basic plane (less surrogates and private use), and emoji. A text with any other character is rare:
it goes the slow way as a whole."""
CACHED_WORDS = 400_000
"""About 80 MB. The words that come after are the rare ones: they are encoded each time."""
CACHED_LENGTH = 40
"""Characters in a cached word: longer ones hardly ever come again."""
TRICKY = (
    "I'll don't 'twas WE'RE  two\n\n three \t\n x1234,abc!?... Ünïcödé’s “quote”—½ ²\u00a0nbsp\u2003em\u3000 日本語 "
    "١٢٣ \x1c🙂🙂 \r\n "
)
"""What the two ways are compared on before the fast one is trusted."""

Encode = Callable[[list[str]], list[bytes]]
"""Texts to the little-endian bytes of their ids."""


def encoder(tokenizer: Tokenizer, dtype: type[np.unsignedinteger]) -> Encode:
    """The fastest exact way to encode with `tokenizer`, without special tokens: text that looks like one is text."""
    tokenizer.encode_special_tokens = True
    slow = plain(tokenizer, dtype)
    if not splits_like_gpt2(tokenizer):
        return slow
    fast = by_words(tokenizer, dtype)
    return fast if fast([TRICKY]) == slow([TRICKY]) else slow


def plain(tokenizer: Tokenizer, dtype: type[np.unsignedinteger]) -> Encode:
    """The tokenizer as it is."""

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
    """A character whose class was not asked for."""


class _Words(dict[str, bytes]):
    """Ids by word; a new word is merged when it is first asked for."""

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
        # A byte is spelled as one letter: first as that of its number, then as the vocabulary has it.
        spelled = word.encode().decode("latin-1").translate(self._letters)
        ids = b"".join([self._packed[token.id] for token in self._merge(spelled)])
        if len(self) < CACHED_WORDS and len(word) <= CACHED_LENGTH:
            self[word] = ids
        return ids


def by_words(tokenizer: Tokenizer, dtype: type[np.unsignedinteger]) -> Encode:
    """Cut by a regular expression of our own, look the words up, and join."""
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
    """GPT-2's expression for Python's re, and one for the characters whose class is not known.

    re knows no \\p{L} and \\p{N}, and other libraries know other versions of Unicode: the members are asked of the
    tokenizer. Each character stands between two letters, two digits, two marks: where it makes no cut, it is one.
    """
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str
    points = [point for part in ASKED for point in part]
    kinds: list[set[int]] = []
    for neighbour in "a1!":
        probe = "".join([f"{neighbour}{chr(point)}{neighbour}\n" for point in points])
        # A probe takes 4 characters; a word that has 3 from the first on was not cut.
        spans = [span for _, span in split(probe)]
        kinds.append({points[start // 4] for start, end in spans if end - start == 3 and start % 4 == 0})
    spaces = set(points).difference(*kinds)
    letters = kinds[0].union(*LETTERS)
    letter, digit, mark, space = map(_members, (letters, kinds[1], kinds[2], spaces))
    unknown = f"[^{letter}{digit}{mark}{space}]"
    # The alternatives begin with different characters, but for the apostrophe: the commonest is tried first.
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
