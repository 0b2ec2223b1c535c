"""Write the token shards of a piece of work, and record them with their checksums once all are on the disk.

Shards and records have the key of their dataset in their names and appear whole. So a piece that a kill interrupts is
written again, one with a record is kept if its shards match, and the dataset in the folder stays until the next is
complete.

A shard of conversations ends with a table: for each, its number of tokens and of those whose loss counts, as uint32.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tokenizers import Tokenizer

from trainer.data.batches import stored_bytes
from trainer.data.conversations import DOCUMENTS, Chat
from trainer.data.documents import EMPTY, Joins, Piece, Records, TextField, Unit, anywhere, units
from trainer.data.encoding import Differs, Encoder
from trainer.data.loss_mask import BEGINS, COUNTS, ID, MARKS
from trainer.data.tokenizer import FILE
from trainer.errors import panic
from trainer.files import fsync, read_json, sha256, write_json

SPLITS = ("train", "validation")
SHARD_TOKENS = 100_000_000
"""Most tokens in one file, which a large compressed source would make of many gigabytes."""
GROUP_CHARACTERS, GROUP_UNITS = 1 << 20, 512
"""Text encoded in one call."""
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
    by_document: bool
    """Whether whole documents are held out; otherwise passages, when there are only a few whole files."""

    @cached_property
    def ratio(self) -> Fraction:
        """The fraction as it was written: 0.05 is 1/20."""
        return Fraction(str(self.fraction))


@dataclass(frozen=True)
class Settings:
    """What a process needs besides its piece."""

    output: Path
    work: Path
    """The folder of the tokenizer and of the records, named by the dataset's key."""
    recipe: Recipe
    vocabulary: int
    between: list[int]
    """Ids between two documents: the end of one and, if the tokenizer has it, the beginning of the next."""
    exact: bool = False
    """Whether `tokenizers` encodes, though gigatoken would take the tokenizer."""

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """Of a token on disk: two bytes where they suffice, else four; conversations have two bits above the ids."""
        return np.uint16 if self.vocabulary <= 2**16 and self.recipe.documents != DOCUMENTS else np.uint32

    def recorded(self) -> list[Path]:
        return sorted(self.work.glob("[0-9]*.json"))


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


class Writer:
    """Turns pieces of work into shards, in one process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._records: Records
        self._encode: Callable[[list[Unit]], list[bytes]]
        self._joins: Joins = anywhere
        if settings.recipe.documents == DOCUMENTS:
            self._records = chat = Chat(settings.work)
            self._encode = lambda units: chat.encode([unit.text for unit in units], [unit.place for unit in units])
            self._separator = b""
        else:
            tokenizer = Tokenizer.from_file(str(settings.work / FILE))
            encoder = Encoder(tokenizer, settings.dtype, settings.exact)
            self._joins = encoder.joins
            self._encode = lambda units: encoder([unit.text for unit in units], [unit.continues for unit in units])
            self._records = TextField(settings.recipe.text_field)
            self._separator = np.array(settings.between, settings.dtype).tobytes()

    def write(self, piece: Piece) -> Part:
        """Write the shards of a piece unless its record is there; return the record.

        Raises Differs with the name of a document where two encoders differ.
        """
        file = self._settings.work / f"{piece.number:05d}.json"
        if (found := read_json(file)) is not None and self._has_shards(found):
            return found
        shards = _Shards(self._settings, piece.number)
        notes = self._records.notes
        notes.clear()
        try:
            for group in _groups(placed(piece, self._settings.recipe, self._records, self._joins)):
                try:
                    encoded = self._encode([unit for unit, *_ in group])
                except Differs as error:
                    raise Differs(group[error.args[0]][0].place()) from None
                for (unit, split, ends), ids in zip(group, encoded, strict=True):
                    shards.add(split, ids + self._separator if ends else ids, unit)
        except BaseException as error:  # reading a conversation encodes it too
            if (told := panic(error, f"a text of {piece.name}")) is not None:
                raise told from None
            raise
        shards.counts["unlearned"] += notes.pop(EMPTY, 0)
        part = shards.close() | {"notes": [[*note, count] for note, count in notes.items()]}
        write_json(file, part)
        return part

    def _has_shards(self, part: Part) -> bool:
        output, width = self._settings.output, np.dtype(self._settings.dtype).itemsize
        found = [(output / shard["file"], shard) for split in SPLITS for shard in part[split]]
        return all(
            path.exists() and path.stat().st_size == stored_bytes(shard, width) and sha256(path) == shard["sha256"]
            for path, shard in found
        )


def not_learned(parts: list[Part]) -> list[list[Any]]:
    """What the records of all pieces hold and is not learned: [what is counted, its name, how many]."""
    total: Counter[tuple[str, str]] = Counter()
    for part in parts:
        for counted, name, count in part["notes"]:
            total[counted, name] += count
    return [[*note, count] for note, count in sorted(total.items())]


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
    name: str
    path: Path
    """Where it is until it is whole."""
    file: BinaryIO
    digest: Any = field(default_factory=hashlib.sha256)
    bytes: int = 0
    largest: int = 0
    """The largest id in it."""
    table: list[np.ndarray] = field(default_factory=list)

    def write(self, content: Any) -> None:
        self.file.write(content)
        self.digest.update(content)


class _Shards:
    """The shards of a piece."""

    def __init__(self, settings: Settings, piece: int) -> None:
        self._settings, self._piece = settings, piece
        self._dtype = settings.dtype
        self._width = np.dtype(self._dtype).itemsize
        self._conversations = settings.recipe.documents == DOCUMENTS
        self.counts = dict.fromkeys(COUNTED, 0)
        self._open: dict[str, _Shard] = {}
        self._closed: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}

    def add(self, split: str, ids: bytes, unit: Unit) -> None:
        values = np.frombuffer(ids, self._dtype)
        if self._conversations and not (lines := table(values))[:, 1].any():
            self.counts["unlearned"] += 1  # its answer is the first token, which none before it predicts
            return
        shard = self._open.get(split)
        if shard is not None and shard.bytes + len(ids) > SHARD_TOKENS * self._width:
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
        fsync(self._settings.output)
        return {**self.counts, **self._closed}

    def _begin(self, split: str) -> _Shard:
        work = self._settings.work
        name = f"{split}-{work.name}-{self._piece:05d}-{len(self._closed[split]):04d}.bin"
        path = work / f"{name}.{os.uname().nodename}.{os.getpid()}"
        self._open[split] = shard = _Shard(name, path, open(path, "wb", buffering=1 << 20))  # noqa: SIM115
        return shard

    def _close(self, split: str) -> None:
        shard = self._open.pop(split)
        if self._conversations:
            shard.write(np.concatenate(shard.table).tobytes())
        shard.file.flush()
        os.fsync(shard.file.fileno())
        shard.file.close()
        shard.path.replace(self._settings.output / shard.name)  # a training may have the old one mapped
        about = {"file": shard.name, "tokens": shard.bytes // self._width, "sha256": shard.digest.hexdigest()}
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
