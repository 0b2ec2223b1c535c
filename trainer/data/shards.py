"""Write the token shards of one piece of work so that a kill loses only seconds of work.

A piece is written in parts: a shard of training text and one of validation text, closed together between two units and
then recorded in the piece's journal with their checksums. A later run verifies the recorded parts and continues after
them with the bytes that an uninterrupted run would have written.

A shard of conversations ends with a table: for each, its number of tokens and of those whose loss counts, as uint32.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainer.data.batches import stored_bytes
from trainer.data.conversations import BEGINS, COUNTS, DOCUMENTS, ID, MARKS
from trainer.data.documents import Advance, Joins, Piece, Place, Records, Unit, anywhere, units
from trainer.data.encoding import Differs, Encode
from trainer.errors import panic
from trainer.files import (
    Unfit,
    fsync,
    is_plain_name,
    open_append,
    open_regular,
    parse_mapping,
    read_text,
    write_atomic,
)

SPLITS = ("train", "validation")
GROUP_CHARACTERS, GROUP_UNITS = 1 << 20, 512
"""Text encoded in one call."""
Part = dict[str, Any]
"""A line of the journal: what COUNTED names so far in the piece, a shard (or None) for each split, whether the piece
ends with it, and in the last one what is not learned: [what is counted, its name, how many]."""


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


def held_out(recipe: Recipe, group: int, number: int) -> bool:
    """Whether item `number` of a group goes to the validation split: one of each 1/fraction items, chosen by hash.

    So the fraction holds for any few documents, and depends only on position and seed. The very first is from the
    first half of its items, so that little text has a validation split too.
    """
    ratio = Fraction(str(recipe.fraction))
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


class _Counted:
    """Records, and how many of them had no text to learn."""

    def __init__(self, records: Records) -> None:
        self._records, self.columns, self.notes, self.empty = records, records.columns, records.notes, 0

    def read(self, record: Any, place: Place) -> str:
        text = self._records.read(record, place)
        self.empty += not text
        return text


def process(piece: Piece, output: Path, recipe: Recipe, coder: Coder, advance: Advance, more: Callable) -> list[Part]:
    """Write the parts of a piece that its journal lacks; return all parts. Calls `more()` now and then.

    Raises Differs with the name of a document where two encoders differ.
    """
    journal = output / PROGRESS / f"{piece.number:05d}.jsonl"
    parts = recorded(journal, output, coder.width)
    if parts and parts[-1]["ends"]:
        for segment in piece.segments:
            advance(segment.bytes)
        return parts
    writer = _Writer(output, piece.number, coder.width, parts, journal, recipe.documents == DOCUMENTS)
    skip = writer.units
    coder.records.notes.clear()
    counted = _Counted(coder.records)  # after an interruption all records of a piece are read again
    at = piece.segments[0].source.name
    try:
        for group in _groups(placed(piece, recipe, counted, advance, coder.joins, skip)):
            more()
            at = _name(piece, group[0][0])
            try:
                encoded = coder.encode([unit.text for unit, _, _ in group], [unit.continues for unit, _, _ in group])
            except Differs as error:
                raise Differs(_name(piece, group[error.args[0]][0])) from None
            for (unit, split, ends), ids in zip(group, encoded, strict=True):
                writer.add(split, ids + coder.separator if ends else ids, unit, recipe.shard_tokens)
    except BaseException as error:  # reading a conversation encodes it too
        if (told := panic(error, f"this text, of {at} or the next")) is not None:
            raise told from None
        raise
    writer.unlearned += counted.empty
    writer.close(ends=True, notes=[[*note, count] for note, count in coder.records.notes.items()])
    return writer.parts


def not_learned(pieces: list[list[Part]]) -> list[list[Any]]:
    """What the records of all pieces hold and is not learned: [what is counted, its name, how many]."""
    total: Counter[tuple[str, str]] = Counter()
    for parts in pieces:
        for counted, name, count in parts[-1]["notes"] if parts else ():
            total[counted, name] += count
    return [[*note, count] for note, count in sorted(total.items())]


def _name(piece: Piece, unit: Unit) -> str:
    """What a document is called in messages."""
    files = [
        segment.source.name for segment in piece.segments if not unit.whole_file or segment.number == unit.document
    ]
    return files[0] if unit.whole_file else f"{unit.document + 1} of piece {piece.number} ({', '.join(files[:3])})"


COUNTED = ("units", "documents", "text_bytes", "unlearned")
"""The last: records that teach nothing, and of which nothing is written."""
PROGRESS = ".progress"
"""Folder of the journals in the dataset; removed when the dataset is complete."""


def recorded(journal: Path, output: Path, width: int) -> list[Part]:
    """The parts of a journal up to the first whose shards do not match; truncates the journal there."""
    parts: list[Part] = []
    try:
        lines = read_text(journal).splitlines()
    except FileNotFoundError:
        return parts
    except (UnicodeDecodeError, Unfit):
        journal.unlink()
        return parts
    for line in lines:
        try:
            part: Any = parse_mapping(line)
            sound = all(type(part[key]) is int for key in COUNTED)
            sound &= type(part["ends"]) is bool
            sound &= all(list(map(type, note)) == [str, str, int] for note in part["notes"])
            if not sound or not all(part[split] is None or _intact(output, part[split], width) for split in SPLITS):
                break
        except (ValueError, TypeError, KeyError, OSError):  # the line that a kill cut short, or no line of ours
            break
        parts.append(part)
    if len(parts) < len(lines):
        write_atomic(journal, "".join(json.dumps(part) + "\n" for part in parts))
    return parts


def _intact(output: Path, shard: dict[str, Any], width: int) -> bool:
    if not is_plain_name(shard["file"]):
        return False
    with open_regular(output / shard["file"]) as file:
        whole = os.fstat(file.fileno()).st_size == stored_bytes(shard, width)
        return whole and hashlib.file_digest(file, "sha256").hexdigest() == shard["sha256"]


Placed = tuple[Unit, str, bool]
"""A unit, its split, and whether an end-of-text token follows."""


def placed(
    piece: Piece, recipe: Recipe, records: Records, advance: Advance, joins: Joins = anywhere, skip: int = 0
) -> Iterator[Placed]:
    """Units after the first `skip`, with their split. End of text follows where a document ends or leaves the split."""
    previous: Unit | None = None
    number = -1
    for unit in units(piece, recipe.documents, records, advance, joins):
        if previous is not None:
            yield _place(piece, recipe, previous, number)
        previous, number = unit, number + 1
        if number < skip:
            previous = None
    if previous is not None:
        yield _place(piece, recipe, previous, number)


def _place(piece: Piece, recipe: Recipe, unit: Unit, number: int) -> Placed:
    if recipe.by_document:
        here = held_out(recipe, -1 if unit.whole_file else piece.number, unit.document)
        return unit, SPLITS[here], unit.ends
    here, after = (held_out(recipe, piece.number, place) for place in (number, number + 1))
    if number > 0 and held_out(recipe, piece.number, number - 1) != here:  # it begins a text in its split
        unit = replace(unit, continues=False)
    return unit, SPLITS[here], unit.ends or here != after


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


class _Writer:
    """Writes the open part of a piece."""

    def __init__(
        self, output: Path, piece: int, width: int, parts: list[Part], journal: Path, conversations: bool
    ) -> None:
        self._output, self._piece, self._width, self._journal = output, piece, width, journal
        self._conversations = conversations
        self.parts = parts
        last = parts[-1] if parts else dict.fromkeys(COUNTED, 0)
        self.units, self.documents, self.text_bytes, self.unlearned = (last[name] for name in COUNTED)
        self._open: dict[str, _Shard] = {}

    def add(self, split: str, ids: bytes, unit: Unit, limit: int) -> None:
        values = np.frombuffer(ids, np.dtype(f"uint{8 * self._width}"))
        lines = table(values) if self._conversations and ids else np.ones((1, 2))
        if not lines[:, 1].any():  # its answer is the first token, which none before it predicts
            self.units += 1
            self.unlearned += 1
            return
        shard = self._open.get(split)
        if shard is not None and shard.bytes + len(ids) > limit * self._width:
            self.close(ends=False)
            shard = None
        if ids:
            if shard is None:
                shard = self._open[split] = self._begin(split)
            shard.file.write(ids)
            shard.digest.update(ids)
            shard.bytes += len(ids)
            shard.largest = max(shard.largest, int((values & ID if self._conversations else values).max()))
            if self._conversations:
                shard.table.append(lines)
        self.units += 1
        self.documents += unit.ends
        text = MARKS.sub("", unit.text) if self._conversations else unit.text
        self.text_bytes += len(text) if text.isascii() else len(text.encode())

    def close(self, ends: bool, notes: list[list[Any]] | None = None) -> None:
        """Make the open shards durable, then record them."""
        part: Part = {**{name: getattr(self, name) for name in COUNTED}, "ends": ends, "notes": notes or []}
        for split in SPLITS:
            part[split] = None
            if shard := self._open.get(split):
                lines = np.concatenate(shard.table) if shard.table else np.zeros((0, 2), np.uint32)
                shard.file.write(lines.tobytes())
                shard.digest.update(lines.tobytes())
                shard.file.flush()
                os.fsync(shard.file.fileno())
                shard.file.close()
                tokens = shard.bytes // self._width
                part[split] = {"file": shard.path.name, "tokens": tokens, "sha256": shard.digest.hexdigest()}
                part[split]["largest"] = shard.largest
                part[split] |= {"conversations": len(lines)} if self._conversations else {}
        self._open = {}
        fsync(self._output)
        with open_append(self._journal) as file:
            file.write(json.dumps(part).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.parts.append(part)

    def _begin(self, split: str) -> _Shard:
        path = self._output / f"{split}-{self._piece:05d}-{len(self.parts):04d}.bin"
        # Always a new file: a training may have the old one mapped.
        path.unlink(missing_ok=True)
        return _Shard(path, open(path, "xb", buffering=1 << 20))


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
