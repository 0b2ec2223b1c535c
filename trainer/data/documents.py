"""Split sources into documents: the pieces of work that processes share, and the units of text in each.

A document is a row of Parquet, a record of JSON lines or a row of a dataset. In a text file `--documents` decides: the
whole file, each line, each block between blank lines, or the text between lines of <|endoftext|>. For conversations,
each record is a document, and `records` makes its text.
"""

import codecs
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Protocol

from trainer.config.values import kind, unique_keys
from trainer.data import hub
from trainer.data.encoding import cut
from trainer.data.records import present
from trainer.data.sources import Place, Progress, Source, chunks, line_name, lines, opened, reading
from trainer.data.tokenizer import END_OF_TEXT
from trainer.errors import UserError, one_line

DOCUMENTS = ("file", "lines", "blank-lines", "end-of-text")
SEPARATORS = {"blank-lines": b"", "end-of-text": END_OF_TEXT.encode()}
"""The line that stands between two documents."""
PIECE_BYTES = 32 << 20
"""Source bytes in one piece of work: about a second of work."""
EMPTY = ("records", "empty")
"""What notes count beside what is not learned: records without a text."""
WHOLE_FILES = -1
"""The group of the documents that are whole files."""


@dataclass(frozen=True)
class Segment:
    """A part of one source."""

    source: Source
    number: int
    """The source's place among the inputs."""
    start: int = 0
    """Bytes (text, json), row groups (parquet) or parts (hub)."""
    end: int | None = None
    """None: to the end."""


@dataclass(frozen=True)
class Piece:
    """Work that one process takes at a time. The inputs determine it, so any number of processes writes the same."""

    number: int
    segments: tuple[Segment, ...]

    @property
    def name(self) -> str:
        """The files in it, for messages."""
        return ", ".join(segment.source.name for segment in self.segments[:3])


@dataclass(frozen=True)
class Unit:
    """A stretch of text that is encoded on its own."""

    text: str
    place: Place
    group: int
    """The documents that are numbered together: those of a piece, or WHOLE_FILES."""
    document: int
    ends: bool = True
    """Whether the document ends with it."""
    continues: bool = False
    """Whether the text before it in the document is another unit."""


Joins = Callable[[str, int], bool]
"""Whether a text may be cut at a place without a change of its ids."""


class Records(Protocol):
    """Makes the text of a document out of a whole record."""

    columns: tuple[str, ...]
    """Columns of a table that it reads, all of which may be missing; empty: all that the table has."""
    notes: Counter[tuple[str, str]]
    """How many records or answers, by these words, have what is not learned, by its name."""

    def read(self, record: Any, place: Place) -> str:
        """The text; empty where there is none. Raises UserError for a record of the wrong form."""
        ...


class TextField:
    """Takes a record's text from one of its fields; null and empty text make no document."""

    def __init__(self, name: str) -> None:
        self.columns: tuple[str, ...] = (name,)
        self.notes: Counter[tuple[str, str]] = Counter()

    def read(self, record: Any, place: Place) -> str:
        (name,) = self.columns
        if not isinstance(record, dict) or name not in record:
            have = f"it has {', '.join(map(str, record))}" if isinstance(record, dict) else "it is not a JSON object"
            raise UserError(f"--input {place()}: no field '{name}'; {have}: give one with --text-field")
        text = record[name]
        if text is not None and not isinstance(text, str):
            raise UserError(f"--input {place()}: field '{name}' holds {kind(text)}, not text")
        return text or ""


def plan(sources: list[Source], documents: str) -> list[Piece]:
    """Cut large sources into ranges where possible, and group small ones."""
    groups: list[list[Segment]] = []
    room = 0  # bytes that the last group may still take
    for number, source in enumerate(sources):
        cuts = _cuts(source, documents)
        if cuts is None and 0 < source.size <= room:
            groups[-1].append(Segment(source, number))
            room -= source.size
        elif cuts is None:
            groups.append([Segment(source, number)])
            room = PIECE_BYTES - source.size if source.size else 0
        else:
            groups += [[Segment(source, number, start, end)] for start, end in itertools.pairwise(cuts)]
            room = 0
    return [Piece(number, tuple(group)) for number, group in enumerate(groups)]


def _cuts(source: Source, documents: str) -> list[int] | None:
    """Where to cut a source into ranges; None where it stays whole."""
    if source.kind == "hub":
        return list(range(hub.parts(source.name) + 1))
    if source.size <= 2 * PIECE_BYTES or not source.seekable or documents in SEPARATORS:
        return None
    if source.kind == "parquet":
        return _row_groups(source)
    return [*range(0, source.size - PIECE_BYTES // 2, PIECE_BYTES), source.size]


def _row_groups(source: Source) -> list[int]:
    """The row groups at which to cut a Parquet file into ranges of about PIECE_BYTES."""
    from pyarrow import parquet

    with reading(source), opened(source) as file:
        about = parquet.ParquetFile(file).metadata
        cuts, size = [0], 0
        for group in range(about.num_row_groups):
            size += about.row_group(group).total_byte_size
            if size >= PIECE_BYTES:
                cuts.append(group + 1)
                size = 0
    return cuts if cuts[-1] == about.num_row_groups else [*cuts, about.num_row_groups]


def anywhere(_text: str, _place: int) -> bool:
    """Joins, where nothing is encoded."""
    return True


def units(piece: Piece, documents: str, records: Records, joins: Joins = anywhere) -> Iterator[Unit]:
    """Every unit of a piece, always the same ones in the same order. Raises UserError for text that cannot be read."""
    count = 0
    for segment in piece.segments:
        if segment.source.kind == "text" and documents == "file":
            yield from _whole_file(segment, joins)
            continue
        for text, place in _texts(segment, documents, records):
            if text:
                yield Unit(text, place, piece.number, count)
                count += 1
            elif segment.source.kind != "text":
                records.notes[EMPTY] += 1


def _texts(segment: Segment, documents: str, records: Records) -> Iterator[tuple[str, Place]]:
    source = segment.source
    if source.kind == "hub":
        with reading(source):
            for number, row in enumerate(hub.rows(source.name, segment.start, records.columns), 1):
                place = partial(_row, source, number, f"part {segment.start}")
                text = records.read(present(row), place)
                Progress.count(len(text))
                yield text, place
        return
    with opened(source) as file:
        if source.kind == "parquet":
            yield from _parquet(segment, file, records)
        elif source.kind == "json":
            yield from _json(segment, file, records)
        elif documents == "lines":
            for line, position, place in lines(source, file, segment.start, segment.end):
                yield _decoded(line, position, place).strip("\r\n"), place
        else:
            yield from _blocks(source, file, SEPARATORS[documents])


def _row(source: Source, number: int, of: str) -> str:
    return f"{source.name}, row {number} of {of}"


def _whole_file(segment: Segment, joins: Joins) -> Iterator[Unit]:
    """A file as one document, in passages of whole paragraphs, whose ids are those of the whole text."""
    source = segment.source
    decoder = codecs.getincrementaldecoder("utf-8" if segment.start else "utf-8-sig")()
    ends = segment.end in (None, source.size)
    text, read, continues, name = "", segment.start, segment.start > 0, partial(getattr, source, "name")
    with opened(source) as file:
        for chunk in itertools.chain(chunks(file, segment.start, segment.end), [b""]):
            try:
                decoded = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise _not_utf8(line_name(source, read + error.start), read, error) from None
            read += len(chunk)
            half = text.endswith("\r") and decoded.startswith("\n")  # of a line ending
            text = (text[:-1] if half else text) + decoded.replace("\r\n", "\n")
            start = 0
            while (end := cut(text, start, joins)) is not None:
                yield Unit(text[start:end], name, WHOLE_FILES, segment.number, False, continues)
                start, continues = end, True
            text = text[start:]
    if text or ends:
        yield Unit(text, name, WHOLE_FILES, segment.number, ends, continues)


def _blocks(source: Source, file: BinaryIO, separator: bytes) -> Iterator[tuple[str, Place]]:
    """Documents between lines that hold nothing but the separator."""
    for between, block in itertools.groupby(lines(source, file, 0, None), lambda line: line[0].strip() == separator):
        if not between:
            found = list(block)
            yield "".join(_decoded(*line) for line in found).strip("\r\n"), found[0][2]


def _json(segment: Segment, file: BinaryIO, records: Records) -> Iterator[tuple[str, Place]]:
    for line, position, place in lines(segment.source, file, segment.start, segment.end):
        if not line.strip():
            continue
        if position == 0 and line.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
            raise UserError(
                f"--input {place()}: the file is a list, not one JSON object per line; "
                "jq -c '.[]' FILE > NEW.jsonl makes one that is read"
            )
        try:
            record = json.loads(line, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:  # beside what is not JSON: long integers, deep nesting
            hint = " (the file must hold one JSON object per line)" if position == 0 else ""
            what = "not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else "cannot be read"
            raise UserError(f"--input {place()}: {what}: {one_line(error)}{hint}; mend or remove the line") from None
        text = records.read(record, place)
        # JSON can hold halves of surrogate pairs, which are not characters.
        if b"\\ud" in line or b"\\uD" in line:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        yield text, place


def _parquet(segment: Segment, file: BinaryIO, records: Records) -> Iterator[tuple[str, Place]]:
    from pyarrow import parquet

    with reading(segment.source):
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        if twice := next((name for name, count in Counter(names).items() if count > 1), ""):
            raise UserError(f"--input {segment.source.name}: has two columns {twice}; rename or remove one of them")
        # Without any of them, read all columns, so that the message can name them.
        columns = [name for name in records.columns if name in names] or names
        groups = range(segment.start, table.num_row_groups if segment.end is None else segment.end)
        for group in groups:
            batches = table.iter_batches(batch_size=256, row_groups=[group], columns=columns)
            rows = itertools.chain.from_iterable(batch.to_pylist(maps_as_pydicts="strict") for batch in batches)
            for number, record in enumerate(rows, 1):
                place = partial(_row, segment.source, number, f"group {group}")
                yield records.read(present(record), place), place


def _decoded(line: bytes, position: int, place: Place) -> str:
    try:
        return line.decode("utf-8" if position else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(place(), position, error) from None


def _not_utf8(place: str, position: int, error: UnicodeDecodeError) -> UserError:
    where = f"{error.reason} near byte {position + error.start}"
    return UserError(f"--input {place}: not UTF-8 text ({where}); convert it, for example with iconv")
