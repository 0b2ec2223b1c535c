"""Encode text into token ids: by gigatoken where it honours every part of the tokenizer, by `tokenizers` elsewhere.

gigatoken passes over parts of a tokenizer.json that it does not know, so `unfit` accepts only parts that were compared
with `tokenizers` (tests/trainer/data/test_encoding.py), and while it runs a sample of the texts is encoded by both.
Special tokens that stand in a text are text; other added tokens are tokens, as with `encode_special_tokens`.
"""

import itertools
import json
import mmap
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gigatoken.gigatoken_rs import load_hf_json
from tokenizers import Tokenizer, pre_tokenizers

from trainer.data.text_size import BYTE

GROWTH = 128 << 20
"""Bytes by which the process may grow before gigatoken, which keeps each word that it has seen, is made anew."""
SAMPLED = 1000
"""One text in so many is encoded by both."""
PASSAGE, LONGEST, ENDLESS = 1 << 12, 1 << 17, 1 << 20
"""Characters of a piece of a long text: at least PASSAGE. It ends at a paragraph; without one, after LONGEST, at a line
or a word; without those anywhere, after ENDLESS."""
AROUND, TRIED = 64, 8
"""Characters on each side of a place where text may be cut, encoded whole and in parts; places tried of each kind."""
PLACES = [
    re.compile(form) for form in (r"(?<=\S)\n\n(?=\S)", r"(?<=\S)\n(?=\S)", r"(?<=\w)[ ,.;:!?，。、；：！？](?=\w)")
]

_LETTER = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CUTTINGS = {
    "GPT-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Qwen2": rf"{_SHORT}|{_LETTER}|\p{{N}}|{_MARKS}|{_REST}",
    "Llama 3": rf"{_SHORT}|{_LETTER}|\p{{N}}{{1,3}}|{_MARKS}|{_REST}",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}?|"
    rf"\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}",
}
"""Expressions that cut text into words, as tokenizer.json files have them; gigatoken has its own code for each."""
CUTTERS = "pretokenizers"


def _split(pattern: dict[str, str], behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": False}


_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
BYTE_LEVEL = [
    *([{**_BYTES, "add_prefix_space": space}] for space in (False, True)),
    *([_split({"Regex": form}, "Isolated"), {**_BYTES, "use_regex": False}] for form in CUTTINGS.values()),
]
"""Steps that cut text for a vocabulary of bytes, known to be honoured, behind any number of NFC."""
_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
SENTENCEPIECE = [
    ([_SPACE], []),
    ([{"type": "Prepend", "prepend": "▁"}, _SPACE], []),
    ([_SPACE], [_split({"String": " "}, "MergedWithPrevious")]),  # Gemma's
    *(
        ([], [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}])
        for scheme in ("never", "always", "first")
        for split in (False, True)
    ),
]
"""Normalizers, and steps that cut text, for a vocabulary that falls back to bytes."""


class Differs(Exception):
    """gigatoken gave other ids than `tokenizers`. Arguments: the number of the text in the batch, or its name."""


class Encoder:
    """Encodes as `tokenizer` does, without the tokens that it puts around a text."""

    def __init__(self, tokenizer: Tokenizer, dtype: type[np.unsignedinteger], exact: bool = False) -> None:
        """exact: by `tokenizers` alone."""
        parts = json.loads(tokenizer.to_str())
        rest = continuing(parts)
        self._begin = self._later = _Tokens(tokenizer, parts, exact)
        if rest is not None:
            self._later = _Tokens(Tokenizer.from_str(json.dumps(rest)), rest, exact)
        # After an added token, a space is put before the text again.
        self._added = _added(tokenizer) if rest is not None else None
        self._dtype, self._count = dtype, 0

    def __call__(self, texts: Sequence[str], later: Sequence[bool] = ()) -> list[bytes]:
        """Raises Differs. later: whether each text continues another, so that no space is put before it."""
        found = []
        for number, text in enumerate(texts):
            sampled = self._count % SAMPLED == 0
            self._count += 1
            parts, start, continues = [], 0, bool(later) and later[number]
            while start < len(text):
                end = cut(text, start, self.joins) if len(text) - start > LONGEST else None
                part, start = text[start:end], end or len(text)
                parts.append(self._encode(part, continues))
                if sampled and not np.array_equal(parts[-1], self._encode(part, continues, exact=True)):
                    raise Differs(number)
                sampled, continues = False, True
            found.append(b"".join([ids.astype(self._dtype).tobytes() for ids in parts]))
        self._begin.bound()
        self._later.bound()
        return found

    def joins(self, text: str, place: int) -> bool:
        """Whether the text around `place` has the same ids in one part as in two."""
        before, after = text[max(0, place - AROUND) : place], text[place : place + AROUND]
        parts = [self._encode(part, True) for part in (before, after, before + after)]
        return np.array_equal(np.concatenate(parts[:2]), parts[2])

    def _encode(self, text: str, later: bool, exact: bool = False) -> np.ndarray:
        if not later:
            return self._begin.encode(text, exact)
        if self._added is None or (token := self._added.search(text)) is None:
            return self._later.encode(text, exact)
        parts = (self._later.encode(text[: token.start()], exact), self._begin.encode(text[token.start() :], exact))
        return np.concatenate(parts)


class _Tokens:
    """One tokenizer in one or both libraries."""

    def __init__(self, tokenizer: Tokenizer, parts: dict[str, Any], exact: bool) -> None:
        """parts: its tokenizer.json."""
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._made_of = "" if exact or unfit(parts) else json.dumps(plain(parts))
        self._fast = load_hf_json(self._made_of) if self._made_of else None
        self._size = resident()

    def encode(self, text: str, exact: bool) -> np.ndarray:
        if self._fast is not None and not exact:
            return self._fast.encode(text)
        return np.array(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, np.uint32)

    def bound(self) -> None:
        """Forget the words that gigatoken keeps, once they take GROWTH bytes."""
        if self._fast is not None and resident() > self._size + GROWTH:
            self._fast = None
            self._fast = load_hf_json(self._made_of)
            self._size = resident()


def _added(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Finds the added tokens that are not special, with the space that they take; None where there are none."""
    tokens = [token for token in tokenizer.get_added_tokens_decoder().values() if not token.special]
    tokens.sort(key=lambda token: len(token.content), reverse=True)
    forms = []
    for token in tokens:
        form = re.escape(token.content)
        form = rf"(?<!\w){form}(?!\w)" if token.single_word else form
        forms.append(rf"\s*{form}" if token.lstrip else form)
    return re.compile("|".join(forms)) if forms else None


def resident() -> int:
    """Bytes of memory of this process; 0 where no /proc says so."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def cut(text: str, start: int, joins: Callable[[str, int], bool]) -> int | None:
    """Where the piece of a long text that begins at `start` ends; None when that needs more text.

    joins: whether a text may be cut at a place without a change of its ids.
    """
    for form in PLACES:
        found = form.finditer(text, start + PASSAGE, min(start + LONGEST, len(text) - AROUND))
        for match in itertools.islice(found, TRIED):
            for place in dict.fromkeys((match.start() + 1, match.end(), match.start())):
                if joins(text, place):
                    return place
        if len(text) - start < LONGEST + AROUND:
            return None
    return start + ENDLESS if len(text) - start > ENDLESS else None


def continuing(parts: dict[str, Any]) -> dict[str, Any] | None:
    """A tokenizer.json that puts no space before a text, for a passage within one; None where `parts` puts none."""

    def bare(part: dict[str, Any] | None) -> dict[str, Any] | None:
        if part is None or part["type"] == "Prepend":
            return None
        if "normalizers" in part:
            part = {**part, "normalizers": [kept for each in part["normalizers"] if (kept := bare(each)) is not None]}
        if steps := part.get(CUTTERS):  # the others put a space before each word
            part = {**part, CUTTERS: [bare(steps[0]), *steps[1:]]}
        if part["type"] == "Metaspace":
            part = {**part, "prepend_scheme": "never"}
        return {**part, "add_prefix_space": False} if part.get("add_prefix_space") else part

    changed = {key: bare(parts[key]) for key in ("normalizer", "pre_tokenizer")}
    return None if all(parts[key] == value for key, value in changed.items()) else {**parts, **changed}


def unfit(parts: dict[str, Any]) -> str:
    """Which part of a tokenizer.json, read, gigatoken is not known to honour; empty if it honours all."""
    model, normal, cutter = parts["model"], parts["normalizer"], parts["pre_tokenizer"]
    if model["type"] != "BPE":
        return f"the model {model['type']}"
    if odd := [key for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix") if model.get(key)]:
        return f"model.{odd[0]}"
    vocabulary, merges = model["vocab"], [tuple(pair) for pair in model["merges"]]
    if len(set(merges)) < len(merges):
        return "merges that stand twice"
    steps = _steps(normal, "normalizers")
    cuts = [{key: value for key, value in step.items() if key != "trim_offsets"} for step in _steps(cutter, CUTTERS)]
    if model["byte_fallback"]:
        known = SENTENCEPIECE
        lacking = {b for b in range(256) if f"<0x{b:02X}>" not in vocabulary and (b > 127 or chr(b) not in vocabulary)}
        whole = not lacking and not any("<0x" in one + two and BYTE.search(one + two) for one, two in merges)
    else:
        known = [([], cut) for cut in BYTE_LEVEL]
        steps = [step for step in steps if step != {"type": "NFC"}]
        whole = vocabulary.keys() >= set(pre_tokenizers.ByteLevel.alphabet())
    if steps not in [normalizers for normalizers, _ in known]:
        return "its normalizer"
    if (steps, cuts) not in known:
        return "how it cuts text into words"
    if model["ignore_merges"] and model["byte_fallback"]:
        return "model.ignore_merges beside byte_fallback"
    return _unfit_added(parts["added_tokens"], normal) if whole else "a vocabulary without all bytes"


def _steps(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The parts of a Sequence, or the one part."""
    if part is None:
        return []
    return [step for each in part[key] for step in _steps(each, key)] if part["type"] == "Sequence" else [part]


def _unfit_added(added: list[dict[str, Any]], normal: Any) -> str:
    """Added tokens that are not special are found in a text; the special ones are text, and must not hide others."""
    found = [token for token in added if not token["special"]]
    odd = any(token[key] for token in found for key in ("single_word", "lstrip", "rstrip"))
    if odd or {token["normalized"] for token in found} not in (set(), {False}, {normal is None}):
        return "an added token that is found in normalized text, or by what stands beside it"
    special = [token for token in added if token["special"]]
    for token, other in itertools.product(found, special):
        if _overlap(token["content"], other["content"]):
            return f"the added token {token['content']}, which overlaps with {other['content']}"
    return ""


def _overlap(one: str, two: str) -> bool:
    ends = any(a.endswith(b[:size]) for a, b in ((one, two), (two, one)) for size in range(1, min(len(a), len(b)) + 1))
    return ends or one in two or two in one


def plain(parts: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json for gigatoken: without special tokens and what else would mislead it."""
    model, byte_level = parts["model"], not parts["model"]["byte_fallback"]
    vocabulary, merges = model["vocab"], list(model["merges"])
    if byte_level:  # other words cannot come of text; gigatoken would take them for bytes
        letters = set(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {word: id for word, id in vocabulary.items() if letters.issuperset(word)}
    made = [vocabulary.get("".join(pair), -1) for pair in merges]
    if any(one == two for one, two in itertools.pairwise(made)):
        merges.append(merges[0])  # the order of ids is not that of the merges: this makes gigatoken keep to the list
    added = [token for token in parts["added_tokens"] if not token["special"]]
    return {**parts, "added_tokens": added, "model": {**model, "vocab": vocabulary, "merges": merges}}
