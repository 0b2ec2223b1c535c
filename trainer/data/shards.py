"""Write the token shards of one piece of work, and record them with their checksums once all are on the disk.

A piece that a kill interrupts is written again, to the same bytes; one with a record is kept if its shards match.

A shard of conversations ends with a table: for each, its number of tokens and of those whose loss counts, as uint32.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainer.data.batches import stored_bytes
from trainer.data.conversations import BEGINS, COUNTS, DOCUMENTS, ID, MARKS
from trainer.data.documents import EMPTY, WHOLE_FILES, Joins, Piece, Records, Unit, anywhere, units
from trainer.data.encoding import Differs, Encode
from trainer.errors import panic
from trainer.files import Unfit, fsync, read_json, sha256, write_json

SPLITS = ("train", "validation")
GROUP_CHARACTERS, GROUP_UNITS = 1 << 20, 512
"""Text encoded in one call."""
PROGRESS = ".progress"
"""Folder of the records in the dataset; removed when the dataset is complete."""
Part = dict[str, Any]
"""The record of a piece: what COUNTED names, the shards of each split, and `notes`: what is not learned, each as [what
is counted, its name, how many]."""
COUNTED = ("documents", "text_bytes", "unlearned")
"""The last: records that teach nothing, and of which nothing is written."""


@dataclass(frozen=True)
class Recipe:
    """The settings that determine a dataset's bytes, besides its sources and its tokenizer."""

    documents: str
    """What a document is in a text file; conversations.DOCUMENTS: records are rendered as conversations."""
    text_field: str
    fraction: float
    seed: int
    shard_tokens: int
    by_document: bool
    """Whether whole documents are held out; otherwise passages, when there are only a few whole files."""

    @cached_property
    def ratio(self) -> Fraction:
        """The fraction as it was written: 0.05 is 1/20."""
        return Fraction(str(self.fraction))


def held_out(recipe: Recipe, group: int, number: int) -> bool:
    """Whether item `number` of a group goes to the validation split: one of each 1/fraction items, chosen by hash.

    So the fraction holds for any few documents, and depends only on position and seed. The very first is from the
    first half of its items, so that little text has a validation split too.
    """
    ratio = recipe.ratio
    run = number * ratio.numerator // ratio.denominator
    return number == _chosen(ratio, recipe.seed, group, run)


@lru_cache(maxsize=64)
def _chosen(ratio: Fraction, seed: int, group: int, run: int) -> int:
    first, end = (-(-place * ratio.denominator // ratio.numerator) for place in (run, run + 1))
    digest = hashlib.blake2b(f"{seed}/{group}/{run}".encode(), digest_size=8).digest()
    among = -(-end // 2) if run == 0 and group <= 0 else end - first
    return first + int.from_bytes(digest, "little") % among


@dataclass(frozen=True)
class Coder:
    """Turns records into bytes."""

    records: Records
    encode: Encode
    separator: bytes
    """Bytes after each document."""
    width: int
    """Bytes of a token."""
    joins: Joins = anywhere


def process(piece: Piece, output: Path, recipe: Recipe, coder: Coder) -> Part:
    """Write the shards of a piece unless its record is there; return the record.

    Raises Differs with the name of a document where two encoders differ.
    """
    file = output / PROGRESS / f"{piece.number:05d}.json"
    if (found := _recorded(file, output, coder.width)) is not None:
        return found
    writer = _Writer(output, piece.number, coder.width, recipe)
    notes = coder.records.notes
    notes.clear()
    try:
        for group in _groups(placed(piece, recipe, coder.records, coder.joins)):
            try:
                encoded = coder.encode([unit.text for unit, _, _ in group], [unit.continues for unit, _, _ in group])
            except Differs as error:
                raise Differs(_name(piece, group[error.args[0]][0])) from None
            for (unit, split, ends), ids in zip(group, encoded, strict=True):
                writer.add(split, ids + coder.separator if ends else ids, unit)
    except BaseException as error:  # reading a conversation encodes it too
        if (told := panic(error, f"a text of {piece.name}")) is not None:
            raise told from None
        raise
    writer.counts["unlearned"] += notes.pop(EMPTY, 0)
    part = writer.close() | {"notes": [[*note, count] for note, count in notes.items()]}
    write_json(file, part)
    return part


def _name(piece: Piece, unit: Unit) -> str:
    """What a document is called in messages."""
    if unit.group == WHOLE_FILES:
        return next(segment.source.name for segment in piece.segments if segment.number == unit.document)
    return f"{unit.document + 1} of {piece.name}"


def not_learned(parts: list[Part]) -> list[list[Any]]:
    """What the records of all pieces hold and is not learned: [what is counted, its name, how many]."""
    total: Counter[tuple[str, str]] = Counter()
    for part in parts:
        for counted, name, count in part["notes"]:
            total[counted, name] += count
    return [[*note, count] for note, count in sorted(total.items())]


def _recorded(file: Path, output: Path, width: int) -> Part | None:
    """The record of a piece, if its shards are what it says."""
    part = read_json(file)
    shards = [shard for split in SPLITS for shard in part[split]] if part is not None else []
    return part if all(_is_intact(output / shard["file"], shard, width) for shard in shards) else None


def _is_intact(path: Path, shard: dict[str, Any], width: int) -> bool:
    try:
        return path.stat().st_size == stored_bytes(shard, width) and sha256(path) == shard["sha256"]
    except (FileNotFoundError, Unfit):
        return False


Placed = tuple[Unit, str, bool]
"""A unit, its split, and whether an end-of-text token follows."""


def placed(piece: Piece, recipe: Recipe, records: Records, joins: Joins = anywhere) -> Iterator[Placed]:
    """Each unit with its split. End of text follows where a document ends or leaves the split."""
    found = units(piece, recipe.documents, records, joins)
    if recipe.by_document:
        for unit in found:
            yield unit, SPLITS[held_out(recipe, unit.group, unit.document)], unit.ends
        return
    before = None
    for number, unit in enumerate(found):
        here, after = (held_out(recipe, piece.number, place) for place in (number, number + 1))
        if before not in (None, here):  # it begins a text in its split
            unit = replace(unit, continues=False)
        yield unit, SPLITS[here], unit.ends or here != after
        before = here


def _groups(items: Iterator[Placed]) -> Iterator[list[Placed]]:
    group: list[Placed] = []
    size = 0
    for item in items:
        group.append(item)
        size += len(item[0].text)
        if size >= GROUP_CHARACTERS or len(group) >= GROUP_UNITS:
            yield group
            group, size = [], 0
    if group:
        yield group


@dataclass
class _Shard:
    path: Path
    file: BinaryIO
    digest: Any = field(default_factory=hashlib.sha256)
    bytes: int = 0
    largest: int = 0
    """The largest id in it."""
    table: list[np.ndarray] = field(default_factory=list)

    def write(self, content: Any) -> None:
        self.file.write(content)
        self.digest.update(content)


class _Writer:
    """Writes the shards of a piece."""

    def __init__(self, output: Path, piece: int, width: int, recipe: Recipe) -> None:
        self._output, self._piece, self._width = output, piece, width
        self._most = recipe.shard_tokens * width
        self._conversations = recipe.documents == DOCUMENTS
        self.counts = dict.fromkeys(COUNTED, 0)
        self._open: dict[str, _Shard] = {}
        self._closed: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}

    def add(self, split: str, ids: bytes, unit: Unit) -> None:
        values = np.frombuffer(ids, np.dtype(f"uint{8 * self._width}"))
        if self._conversations and not (lines := table(values))[:, 1].any():
            self.counts["unlearned"] += 1  # its answer is the first token, which none before it predicts
            return
        shard = self._open.get(split)
        if shard is not None and shard.bytes + len(ids) > self._most:
            self._close(split)
            shard = None
        if ids:
            shard = shard or self._begin(split)
            shard.write(ids)
            shard.bytes += len(ids)
            shard.largest = max(shard.largest, int((values & ID if self._conversations else values).max()))
            if self._conversations:
                shard.table.append(lines)
        self.counts["documents"] += unit.ends
        text = MARKS.sub("", unit.text) if self._conversations else unit.text
        self.counts["text_bytes"] += len(text) if text.isascii() else len(text.encode())

    def close(self) -> Part:
        """Make all shards durable; return their record."""
        for split in list(self._open):
            self._close(split)
        fsync(self._output)
        return {**self.counts, **self._closed}

    def _begin(self, split: str) -> _Shard:
        path = self._output / f"{split}-{self._piece:05d}-{len(self._closed[split]):04d}.bin"
        # Always a new file: a training may have the old one mapped.
        path.unlink(missing_ok=True)
        self._open[split] = shard = _Shard(path, open(path, "xb", buffering=1 << 20))  # noqa: SIM115
        return shard

    def _close(self, split: str) -> None:
        shard = self._open.pop(split)
        if self._conversations:
            shard.write(np.concatenate(shard.table).tobytes())
        shard.file.flush()
        os.fsync(shard.file.fileno())
        shard.file.close()
        about = {"file": shard.path.name, "tokens": shard.bytes // self._width, "sha256": shard.digest.hexdigest()}
        more = {"conversations": sum(map(len, shard.table))} if self._conversations else {}
        self._closed[split].append({**about, "largest": shard.largest, **more})


def table(tokens: np.ndarray) -> np.ndarray:
    """Number of tokens of each conversation, and of those whose loss counts: uint32 [conversations, 2].

    The first token never counts: no token before it could predict it.
    """
    starts = np.flatnonzero(tokens & BEGINS)
    counts = (tokens & COUNTS) != 0
    counts[starts] = False
    sizes = np.diff(starts, append=len(tokens))
    return np.stack([sizes, np.add.reduceat(counts, starts, dtype=np.int64)], axis=1).astype(np.uint32)


def token_type(vocabulary: int) -> type[np.unsignedinteger]:
    """The type of a token on disk: two bytes where they suffice, else four."""
    return np.uint16 if vocabulary <= 2**16 else np.uint32
