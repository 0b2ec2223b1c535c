"""Pack conversations into windows when a dataset is opened: a pure function of the dataset and the window length.

Each conversation, in the order of the shards, goes into the open window that it fills best, or begins a new one (best
fit). A conversation longer than a window is truncated; one without an answer left is dropped. Positions restart at 0
for each conversation, by which attention stays within it (CausalModel), and for the unused rest of a window, which
counts in no loss.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from trainer.data.batches import Batches, Tokens
from trainer.data.loss_mask import COUNTS, ID
from trainer.errors import UserError
from trainer.log import event

IGNORED = -100
"""The target of a token without a loss, as in models/causal.py."""


@dataclass(frozen=True)
class Packed:
    """The windows of one split."""

    tokens: Tokens
    length: int
    starts: np.ndarray
    """First token of each conversation in `tokens`, in window order."""
    sizes: np.ndarray
    """Tokens of each conversation after truncation. It takes one place less: its last token is only a target."""
    firsts: np.ndarray
    """First conversation of each window, and at the end their number: [windows + 1]."""
    answers: np.ndarray
    """Tokens whose loss counts, of each window."""
    cut: int
    dropped: int

    def __len__(self) -> int:
        return len(self.answers)

    def gather(self, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs, targets and positions of these windows, each int64 [len(windows), length]. Raises UserError."""
        shape = len(windows), self.length
        inputs, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        targets = np.full(shape, IGNORED, np.int64)
        for row, window in enumerate(windows):
            place = 0
            for number in range(self.firsts[window], self.firsts[window + 1]):
                start, size = int(self.starts[number]), int(self.sizes[number])
                values = self.tokens.read(start, size)
                ids = (values & ID).astype(np.int64)
                self.tokens.require_known(ids, start)
                part = slice(place, place + size - 1)
                inputs[row, part] = ids[:-1]
                targets[row, part] = np.where(values[1:] & COUNTS, ids[1:], IGNORED)
                positions[row, part] = np.arange(size - 1)
                place += size - 1
            positions[row, place:] = np.arange(self.length - place)
        return inputs, targets, positions

    def answer(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens before the first answer of conversation `number`, and that answer."""
        values = self.tokens.read(int(self.starts[number]), int(self.sizes[number]))
        counts = (values & COUNTS) != 0
        begin = int(counts[1:].argmax()) + 1
        rest = np.flatnonzero(~counts[begin:])
        ids = (values & ID).astype(np.int64)
        return ids[:begin], ids[begin : begin + int(rest[0]) if len(rest) else len(ids)]

    def closing(self, most: int = 1000) -> list[int]:
        """The last tokens of answers, the most frequent first, in up to `most` conversations that were not cut."""
        whole = np.flatnonzero(self.sizes <= self.length)  # one that was cut may end with any token
        found: Counter[int] = Counter()
        for number in whole[:: max(1, len(whole) // most)]:
            values = self.tokens.read(int(self.starts[number]), int(self.sizes[number]))
            counts = (values & COUNTS) != 0
            found.update((values[counts & ~np.append(counts[1:], False)] & ID).tolist())
        return [token for token, _ in found.most_common()]


def pack(tokens: Tokens, length: int, split: str) -> Packed:
    """Pack a split of conversations into windows. Raises UserError when none would have an answer."""
    tables = [
        np.fromfile(path, np.uint32, offset=4 * size).reshape(-1, 2)
        for path, size in zip(tokens.paths, tokens.sizes, strict=True)
    ]
    # The tokens of each conversation, and of those the ones whose loss counts.
    sizes, answers = np.concatenate([np.empty((0, 2), np.int64), *tables]).T
    starts = np.cumsum(sizes) - sizes
    long = np.flatnonzero(sizes > length + 1)
    for number in long:
        sizes[number] = length + 1
        kept = tokens.read(int(starts[number]), length + 1)[1:]
        answers[number] = np.count_nonzero(kept & COUNTS)
    whole = np.flatnonzero(answers > 0)
    if not len(whole):
        raise UserError(
            f"the {split} split has no answer within the first sequence_length={length} tokens of its {len(sizes)} "
            "conversation(s); prepare more, or lengthen the windows"
        )
    windows = _fill(sizes[whole] - 1, length)
    placed = whole[np.argsort(windows, kind="stable")]
    firsts = np.concatenate([[0], np.cumsum(np.bincount(windows))]).astype(np.int64)
    per_window = np.bincount(windows, weights=answers[whole]).astype(np.int64)
    return Packed(tokens, length, starts[placed], sizes[placed], firsts, per_window, len(long), len(sizes) - len(whole))


def _fill(sizes: np.ndarray, length: int) -> np.ndarray:
    """The window of each item: the fullest that it fits, the latest of equals; else a new one."""
    waiting: list[list[int]] = [[] for _ in range(length + 1)]
    """Windows by the room left in them."""
    rooms = 0  # bit r: there is a window with room r
    windows = np.empty(len(sizes), np.int64)
    count = 0
    for number, size in enumerate(sizes.tolist()):
        if fitting := rooms >> size:
            room = size + (fitting & -fitting).bit_length() - 1
            window = waiting[room].pop()
            if not waiting[room]:
                rooms &= ~(1 << room)
        else:
            room, window, count = length, count, count + 1
        windows[number] = window
        if left := room - size:
            waiting[left].append(window)
            rooms |= 1 << left
    return windows


class PackedBatches(Batches):
    """Batches of packed conversations, whose steps have answers of different lengths."""

    def __init__(self, packed: Packed, micro_batch: int, windows_per_step: int, seed: int) -> None:
        super().__init__(len(packed), packed.gather, micro_batch, windows_per_step // micro_batch, seed)
        self.answers_per_step = max(1, round(float(packed.answers.mean()) * windows_per_step))
        """Mean over an epoch."""
        self._answers = lru_cache(maxsize=8)(
            lambda step: int(packed.answers[self.indices(step, 0, self.per_step)].sum())
        )

    def weight(self, step: int) -> float:
        """The mean answer tokens of a step, divided by those of this step."""
        return self.answers_per_step / self._answers(step)


def tell(packed: Packed, split: str) -> None:
    """Log how a split is packed."""
    event(
        "packed",
        split=split,
        conversations=len(packed.starts),
        windows=len(packed),
        filled=f"{(packed.sizes - 1).sum() / (len(packed) * packed.length):.1%}",
        answer_tokens=int(packed.answers.sum()),
        cut=packed.cut,
        dropped=packed.dropped,
    )
