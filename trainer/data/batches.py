"""Token shards on disk, and batches that are a function of (seed, step) alone.

The training stream is cut into windows of T tokens (plus the next one, as the last target). Each epoch visits every
window once, in an order that a keyed permutation gives in O(1): nothing is shuffled, kept or saved. So a run resumes
from one integer, and workers that come or go do not change the data of a step.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import UserError
from trainer.files import read_json, sha256

INDEX = "index.json"
VERSION, CONVERSATIONS = 2, 3
"""Formats of text, and of conversations (conversations.py, packing.py)."""
VERIFIED_BYTES = 1 << 30
"""Datasets up to this size are read and verified at each start, in about a second."""

Gather = Callable[[np.ndarray], tuple[np.ndarray, ...]]
"""The arrays of the windows with these numbers."""


class Tokens:
    """The shards of one split as one array that is never loaded whole."""

    def __init__(
        self, paths: list[Path], dtype: str = "uint16", vocabulary: int = 1 << 32, sizes: list[int] | None = None
    ) -> None:
        """sizes: tokens in each shard, if its file holds more than tokens."""
        self.paths, self.vocabulary = paths, vocabulary
        wanted: list[Any] = list(sizes) if sizes is not None else [None] * len(paths)
        self._shards: list[np.ndarray] = [
            np.memmap(path, dtype, "r", shape=size) for path, size in zip(paths, wanted, strict=True)
        ]
        self._starts = np.cumsum([0] + [len(shard) for shard in self._shards])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def sizes(self) -> list[int]:
        """Tokens in each shard."""
        return [len(shard) for shard in self._shards]

    def _parts(self, start: int, length: int) -> Iterator[tuple[np.ndarray, int, int]]:
        """The shards of `length` tokens from position `start`, each with the place and the number of its own."""
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while length > 0:
            values, offset = self._shards[shard], start - int(self._starts[shard])
            count = min(length, len(values) - offset)
            yield values, offset, count
            start, length, shard = start + count, length - count, shard + 1

    def read(self, start: int, length: int) -> np.ndarray:
        """`length` tokens from position `start`, across shard borders."""
        parts = [values[offset : offset + count] for values, offset, count in self._parts(start, length)]
        return np.concatenate(parts) if len(parts) > 1 else np.asarray(parts[0])

    def announce(self, start: int, length: int) -> None:
        """Ask the kernel to prefetch these tokens without a wait: network storage then serves many windows at once."""
        for values, offset, count in self._parts(start, length):
            pages: mmap.mmap | None = getattr(values, "_mmap", None)
            if pages is not None and count > 0:
                first = offset * values.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
                pages.madvise(mmap.MADV_WILLNEED, first, (offset + count) * values.itemsize - first)

    def require_known(self, ids: np.ndarray, start: int) -> None:
        """Raise UserError for an id outside the vocabulary: an accelerator would only fail an unnamed assertion.

        start: the position of the first of `ids`, which are as they are in the shards.
        """
        if ids[highest := int(ids.argmax())] >= self.vocabulary:
            position = start + highest
            shard = int(np.searchsorted(self._starts, position, side="right")) - 1
            file = self.paths[shard] if self.paths else "the data"
            raise UserError(
                f"data.directory: {file}, token {position - int(self._starts[shard])} is {ids[highest]}, outside the "
                f"vocabulary of {self.vocabulary}: the shards do not belong to their {INDEX}; prepare the data again"
            )


@dataclass(frozen=True)
class Dataset:
    """What `python -m trainer.prepare` wrote."""

    directory: Path
    train: Tokens
    validation: Tokens
    vocabulary: int
    end_of_text: int
    largest: int
    """The largest id in the shards: a tokenizer may have tokens that no data use and the model has no row for."""
    digest: str = ""
    """Of the sizes and checksums of all shards in their order: the same for the same tokens in any folder."""


def stored_bytes(shard: dict[str, Any], width: int) -> int:
    """Size of a shard's file: its tokens, and the table of its conversations (shards.py)."""
    return width * shard["tokens"] + 8 * shard.get("conversations", 0)


def open_dataset(directory: str, verify: bool | str = False, conversations: bool = False) -> Dataset:
    """Open a prepared dataset: of text, or of conversations.

    verify (always or True): read every shard and compare its checksum; "auto" does so up to VERIFIED_BYTES. Raises
    UserError when the dataset is missing, incomplete or damaged.
    """
    path = Path(directory)
    index = read_json(path / INDEX)
    again = f"run python -m trainer.prepare --output {path} again"
    if index is None:
        raise UserError(f"data.directory: {path} holds no {INDEX}, so no finished dataset; {again}")
    if index.get("version") not in (VERSION, CONVERSATIONS):
        raise UserError(
            f"data.directory: {path} has format {index.get('version')}, this trainer reads {VERSION} and "
            f"{CONVERSATIONS}; {again}"
        )
    if conversations and index["version"] != CONVERSATIONS:
        raise UserError(f"data.directory: {path} holds text; for task=finetune prepare the data with --conversations")
    if not conversations and index["version"] == CONVERSATIONS:
        raise UserError(f"data.directory: {path} holds conversations; set task=finetune, or prepare text")
    try:
        dtype, vocabulary, end, largest = (index[key] for key in ("dtype", "vocabulary", "end_of_text", "largest"))
        width = np.dtype(dtype).itemsize
        splits = {name: index["splits"][name]["shards"] for name in ("train", "validation")}
        content = [[name, shard["tokens"], shard["sha256"]] for name, split in splits.items() for shard in split]
        shards = [shard for split in splits.values() for shard in split]
        files = [(path / shard["file"], stored_bytes(shard, width)) for shard in shards]
    except (KeyError, TypeError):
        raise UserError(f"data.directory: {path / INDEX} is damaged or of another program; prepare it again") from None
    for file, wanted in files:
        if not file.exists() or file.stat().st_size != wanted:
            raise UserError(f"data.directory: {file} is missing, or does not have {wanted} bytes; {again}")
    total = width * sum(shard["tokens"] for shard in shards)
    if verify in (True, "always") or (verify == "auto" and total <= VERIFIED_BYTES):
        with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
            sums = pool.map(lambda shard: sha256(path / shard["file"]), shards)
            for shard, found in zip(shards, sums, strict=True):
                if found != shard["sha256"]:
                    raise UserError(
                        f"data.directory: {path / shard['file']} does not match its checksum in {INDEX}; {again}"
                    )
    train, validation = (
        Tokens([path / shard["file"] for shard in split], dtype, vocabulary, [each["tokens"] for each in split])
        for split in splits.values()
    )
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return Dataset(path, train, validation, vocabulary, end, largest, digest)


def windows(tokens: int, length: int) -> int:
    """How many windows of `length` inputs, each with its last target, a stream of `tokens` has."""
    return max(0, (tokens - 1) // length)


class Batches:
    """The micro-batches of every step: `per_step` of them, numbered from 0. Each epoch visits every window once."""

    def __init__(self, windows: int, gather: Gather, micro_batch: int, per_step: int, seed: int) -> None:
        """windows: how many there are, of which `gather` gives some."""
        self._windows, self._gather, self._micro_batch, self._seed = windows, gather, micro_batch, seed
        self.per_step = per_step

    def indices(self, step: int, number: int, count: int = 1) -> np.ndarray:
        """The windows of `count` micro-batches of `step`, from `number` on."""
        first = (step * self.per_step + number) * self._micro_batch
        positions = np.arange(first, first + count * self._micro_batch, dtype=np.uint64)
        epochs, places = np.divmod(positions, np.uint64(self._windows))
        result = np.empty(len(places), dtype=np.int64)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            result[chosen] = permute(places[chosen], self._windows, self._seed, int(epoch))
        return result

    def get(self, step: int, number: int) -> tuple[np.ndarray, ...]:
        """The arrays of one micro-batch, as `gather` gives them: of text its inputs and targets."""
        return self._gather(self.indices(step, number))

    def epoch(self, step: int) -> float:
        """Passes over the training windows before `step`."""
        return step * self.per_step * self._micro_batch / self._windows


def text_batches(tokens: Tokens, length: int, micro_batch: int, tokens_per_step: int, seed: int) -> Batches:
    """Batches of a stream of text, in windows of `length` tokens. Raises UserError where it has none."""
    if (count := windows(len(tokens), length)) == 0:
        raise UserError(
            f"the training split has {len(tokens)} tokens: too few for one window of "
            f"sequence_length={length}; prepare more text or lower sequence_length"
        )
    per_step = tokens_per_step // (length * micro_batch)
    return Batches(count, partial(gather, tokens, length=length), micro_batch, per_step, seed)


def share(per_step: int, rank: int, world: int) -> range:
    """The micro-batches that `rank` computes: dealt round-robin, so shares differ by at most one."""
    return range(rank, per_step, world)


def gather(tokens: Tokens, indices: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of the given windows, each int64 [len(indices), length]. Raises UserError."""
    for index in indices:
        tokens.announce(int(index) * length, length + 1)
    rows = np.stack([tokens.read(int(index) * length, length + 1) for index in indices]).astype(np.int64)
    if rows.max() >= tokens.vocabulary:
        for index, row in zip(indices, rows, strict=True):
            tokens.require_known(row, int(index) * length)
    return rows[:, :-1], rows[:, 1:]


def permute(places: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """A bijection of 0..size-1 chosen by (seed, epoch), applied to `places` (uint64).

    A balanced Feistel network over the next even power of two, walked until it falls below `size` ("cycle walking",
    Black and Rogaway 2002): at most four walks on average. numpy does not promise that its shuffles stay the same
    from release to release (NEP 19); this one does.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    start = ((seed << 24) ^ (epoch << 4)) & (2**64 - 1)
    keys = [_mix(np.array([start ^ number], dtype=np.uint64))[0] for number in range(6)]
    values = places.astype(np.uint64)
    pending = np.ones(len(values), dtype=bool)
    while pending.any():
        left, right = values[pending] >> shift, values[pending] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        values[pending] = (left << shift) | right
        pending = values >= np.uint64(size)
    return values.astype(np.int64)


def _mix(values: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser (Steele, Lea and Flood 2014): 64 well-mixed bits from 64."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
