"""Questions and texts as windows of tokens: what does not fit one window stands in several that overlap."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.data.batches import order
from trainer.tasks.squad_data import Question

ALIGNMENT = 32
"""Micro-batches are padded to a multiple of this, so that few different lengths occur."""
ENCODED = 256
"""Questions encoded in one call."""


@dataclass(frozen=True)
class Feature:
    """One window."""

    question: int
    """Its number among the questions."""
    ids: np.ndarray
    """int32 [length], without padding."""
    kinds: np.ndarray | None
    """token_type_ids of the same shape, for models that have them."""
    spans: np.ndarray
    """int32 [length, 2]: first and last character + 1 of each token in the text; (-1, -1) for other tokens."""
    start: int
    """First token of the answer; 0 (the first token of the window) when it is not in the window."""
    end: int


def features(
    questions: list[Question], tokenizer: Any, length: int, stride: int, question_tokens: int
) -> list[Feature]:
    """The windows of all questions, in order. The answer to learn is the first."""
    made: list[Feature] = []
    for first in range(0, len(questions), ENCODED):
        batch = questions[first : first + ENCODED]
        asked = [_cut(each.question.strip(), tokenizer, question_tokens) for each in batch]
        encoded = tokenizer(
            asked,
            [each.context for each in batch],
            truncation="only_second",
            max_length=length,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
        )
        owners = encoded["overflow_to_sample_mapping"]
        for row, owner in enumerate(owners):
            kinds = encoded["token_type_ids"][row] if "token_type_ids" in encoded else None
            spans = np.array(encoded["offset_mapping"][row], dtype=np.int32)
            spans[[place != 1 for place in encoded.sequence_ids(row)]] = -1
            ids = np.array(encoded["input_ids"][row], dtype=np.int32)
            start, end = _answer(batch[owner], spans)
            kinds = None if kinds is None else np.array(kinds, dtype=np.int32)
            made.append(Feature(first + owner, ids, kinds, spans, start, end))
    return made


def _cut(question: str, tokenizer: Any, most: int) -> str:
    spans = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return question if len(spans) <= most else question[: spans[most - 1][1]]


def _answer(question: Question, spans: np.ndarray) -> tuple[int, int]:
    """First and last token of the first answer, or (0, 0) when the window does not hold all of it."""
    if not question.answers:
        return 0, 0
    begin, end = question.starts[0], question.starts[0] + len(question.answers[0])
    inside = (spans[:, 0] >= 0) & (spans[:, 1] > begin) & (spans[:, 0] < end)
    tokens = np.flatnonzero(inside)
    if len(tokens) == 0 or spans[tokens[0], 0] > begin or spans[tokens[-1], 1] < end:
        return 0, 0
    return int(tokens[0]), int(tokens[-1])


def collate(chosen: list[Feature], padding: int, length: int | None = None) -> tuple[np.ndarray, ...]:
    """int64 ids, mask and kinds [windows, length], starts and ends [windows]. `length`: None for as few as fit."""
    longest = max(len(feature.ids) for feature in chosen)
    width = length or -(-longest // ALIGNMENT) * ALIGNMENT
    ids = np.full((len(chosen), width), padding, dtype=np.int64)
    mask, kinds = np.zeros_like(ids), np.zeros_like(ids)
    for row, feature in enumerate(chosen):
        ids[row, : len(feature.ids)] = feature.ids
        mask[row, : len(feature.ids)] = 1
        if feature.kinds is not None:
            kinds[row, : len(feature.ids)] = feature.kinds
    starts, ends = (np.array([getattr(each, name) for each in chosen], dtype=np.int64) for name in ("start", "end"))
    return ids, mask, kinds, starts, ends


class Batches:
    """Micro-batches of windows: each window once an epoch, in an order that (seed, step) gives."""

    def __init__(
        self, made: list[Feature], micro_batch: int, per_step: int, seed: int, padding: int, length: int | None
    ) -> None:
        self._features, self._micro_batch, self._seed = made, micro_batch, seed
        self._padding, self._length = padding, length
        self.per_step = per_step

    def get(self, step: int, number: int) -> tuple[np.ndarray, ...]:
        first = (step * self.per_step + number) * self._micro_batch
        places = np.arange(first, first + self._micro_batch, dtype=np.uint64)
        chosen = [self._features[index] for index in order(places, len(self._features), self._seed)]
        return collate(chosen, self._padding, self._length)

    def epoch(self, step: int) -> float:
        return step * self.per_step * self._micro_batch / len(self._features)
