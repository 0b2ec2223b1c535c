"""Bytes of the text that tokens stand for: bits per byte compares models with different tokenizers."""

import math
import re
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

BYTE = re.compile(r"<0x[0-9A-F]{2}>")
"""A token that is one byte, in tokenizers that fall back to bytes (Llama 2, Gemma)."""


class TextSize:
    """The bytes of each token of a tokenizer.json; special tokens have none."""

    def __init__(self, file: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(file))
        self._added = self._tokenizer.get_added_tokens_decoder()
        decoder = self._tokenizer.decoder
        # In a byte-level token one character is one byte, maybe part of a letter, so it may not decode on its own.
        self._byte_level = decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    def count(self, tokens: np.ndarray, before: np.ndarray) -> int:
        """UTF-8 bytes of the text of `tokens`; before: the token before each, of the same shape.

        After a special token a text begins; there some decoders drop the space that the encoder added.
        """
        ids, places = np.unique(tokens, return_inverse=True)
        names: list[str] = [self._tokenizer.id_to_token(int(id)) or "" for id in ids]
        inner = np.array(self._sizes(ids, names, begins=False))[places.ravel()]
        if self._byte_level:
            return int(inner.sum())
        special = [id for id, token in self._added.items() if token.special]
        first = np.array(self._sizes(ids, names, begins=True))[places.ravel()]
        return int(np.where(np.isin(before.ravel(), special), first, inner).sum())

    def _sizes(self, ids: np.ndarray, names: list[str], begins: bool) -> list[int]:
        added = self._added
        if self._byte_level:
            return [
                len(name) if (token := added.get(int(id))) is None else 0 if token.special else len(name.encode())
                for id, name in zip(ids, names, strict=True)
            ]
        leader: list[int] = [] if begins else self._tokenizer.encode("a", add_special_tokens=False).ids
        texts = self._tokenizer.decode_batch([[*leader, int(id)] for id in ids])
        lead = len(self._tokenizer.decode(leader).encode())
        return [
            1 if BYTE.fullmatch(name) else len(text.encode()) - lead for name, text in zip(names, texts, strict=True)
        ]


def bits_per_byte(loss: float, tokens: float, size: int) -> float:
    """loss: mean over `tokens` in nats; size: bytes of their text, counted as at least 1: special tokens have none."""
    return loss / math.log(2) * tokens / max(1, size)
