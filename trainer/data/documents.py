"""Split sources into documents: the pieces of work that processes share, and the units of text in each.

A document is a row of Parquet, a record of JSON lines or a row of a dataset. In a text file `--documents` decides: the
whole file, each line, each block between blank lines, or the text between lines of <|endoftext|>. For conversations,
each record is a document, and `records` makes its text.
"""

import codecs
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO, Protocol

from trainer.config.values import unique_keys
from trainer.data import hub
from trainer.data.encoding import cut
from trainer.data.records import present
from trainer.data.sources import Source, chunks, line_number, lines, opened, reading
from trainer.data.tokenizer import END_OF_TEXT
from trainer.errors import UserError, one_line

DOCUMENTS = ("file", "lines", "blank-lines", "end-of-text")
PIECE_BYTES = 32 << 20
"""Source bytes in one piece of work: seconds of work, so a killed preparation loses seconds."""


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
    last: bool = True
    """Whether the source ends with it."""

    @property
    def bytes(self) -> int:
        """Stored bytes of the source in this segment; 0 when unknown."""
        if self.source.kind in ("text", "json") and self.end is not None:
            return self.end - self.start
        return self.source.size if self.last else 0


@dataclass(frozen=True)
class Piece:
    """Work that one process takes at a time. The inputs determine it, so any number of processes writes the same."""

    number: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Unit:
    """A stretch of text that is encoded on its own."""

    text: str
    document: int
    """Number of its document within the piece; of whole files: the source's number."""
    ends: bool
    """Whether the document ends with it."""
    whole_file: bool = False
    """Whether the document is a file."""
    continues: bool = False
    """Whether the text before it in the document is another unit."""


Advance = Callable[[int], None]
"""Called with the number of source bytes read since the last call."""
Place = Callable[[], str]
"""Names the file and line of a record, for messages."""


class Records(Protocol):
    """Makes the text of a document out of a whole record."""

    columns: tuple[str, ...]
    """Columns of a table that it reads, all of which may be missing; empty: all that the table has."""
    notes: Counter[tuple[str, str]]
    """How many records or answers, by these words, have what is not learned, by its name."""

    def read(self, record: Any, place: Place) -> str:
        """The text; empty where there is none. Raises UserError for a record of the wrong form."""
        ...


def plan(sources: list[Source]) -> list[Piece]:
    """Cut large sources into ranges where possible, and group small ones."""
    pieces: list[Piece] = []
    waiting: list[Segment] = []

    def close() -> None:
        nonlocal waiting
        if waiting:
            pieces.append(Piece(len(pieces), tuple(waiting)))
        waiting = []

    for number, source in enumerate(sources):
        for segment in _segments(source, number):
            whole = segment.start == 0 and segment.last and source.kind != "hub"
            if not whole or sum(other.source.size for other in waiting) + source.size > PIECE_BYTES:
                close()
            waiting.append(segment)
            if not whole or source.size == 0:
                close()
    close()
    return pieces


def _segments(source: Source, number: int) -> Iterator[Segment]:
    if source.kind == "hub":
        cuts = list(range(hub.parts(source.name) + 1))
    elif source.size <= 2 * PIECE_BYTES or not source.seekable:
        yield Segment(source, number)
        return
    elif source.kind == "parquet":
        cuts = _row_groups(source)
    else:
        cuts = [*range(0, source.size - PIECE_BYTES // 2, PIECE_BYTES), source.size]
    for start, end in pairwise(cuts):
        yield Segment(source, number, start, end, end == cuts[-1])


def _row_groups(source: Source) -> list[int]:
    """The row groups at which to cut a Parquet file into ranges of about PIECE_BYTES."""
    from pyarrow import parquet

    with reading(source), opened(source) as (file, _):
        about = parquet.ParquetFile(file).metadata
        cuts, size = [0], 0
        for group in range(about.num_row_groups):
            size += about.row_group(group).total_byte_size
            if size >= PIECE_BYTES:
                cuts.append(group + 1)
                size = 0
    return cuts if cuts[-1] == about.num_row_groups else [*cuts, about.num_row_groups]


Joins = Callable[[str, int], bool]
"""Whether a text may be cut at a place without a change of its ids."""


def anywhere(_text: str, _place: int) -> bool:
    """Joins, where nothing is encoded."""
    return True


def units(piece: Piece, documents: str, records: Records, advance: Advance, joins: Joins = anywhere) -> Iterator[Unit]:
    """Every unit of a piece, always the same ones in the same order. Raises UserError for text that cannot be read."""
    count = 0
    for segment in piece.segments:
        told = 0

        def tell(size: int) -> None:
            nonlocal told
            told += size
            advance(size)

        if segment.source.kind == "text" and documents == "file":
            yield from _whole_file(segment, tell, joins)
        else:
            for text in _texts(segment, documents, records, tell):
                if text:
                    yield Unit(text, count, True)
                    count += 1
        advance(segment.bytes - told)


def _texts(segment: Segment, documents: str, records: Records, advance: Advance) -> Iterator[str]:
    source = segment.source
    if source.kind == "hub":
        for number, row in enumerate(hub.rows(source.name, segment.start, records.columns)):
            place = lambda number=number: f"{source.name}, row {number + 1} of part {segment.start}"  # noqa: E731
            yield records.read(present(row), place)
    elif source.kind == "parquet":
        yield from _parquet(segment, records, advance)
    else:
        with opened(source) as (file, stored):
            follow = _followed(stored, segment, advance)
            if source.kind == "json":
                yield from _json(segment, file, records, follow)
            elif documents == "lines":
                for position, line in lines(source, file, segment.start, segment.end):
                    follow()
                    yield _decoded(line, segment, position).rstrip("\r\n")
            else:
                yield from _blocks(segment, file, documents, follow)


def _followed(stored: BinaryIO, segment: Segment, advance: Advance, every: int = 64) -> Callable[[], None]:
    """Return a function that reports, every `every` calls, the stored bytes read since its last report."""
    before, calls = segment.start, 0

    def follow() -> None:
        nonlocal before, calls
        calls += 1
        if calls % every == 0:
            now = stored.tell()
            advance(max(0, now - before))
            before = max(before, now)

    return follow


def _whole_file(segment: Segment, advance: Advance, joins: Joins) -> Iterator[Unit]:
    """A file as one document, in passages of whole paragraphs, whose ids are those of the whole text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, read, carry, continues = "", segment.start, "", segment.start > 0
    with opened(segment.source) as (file, stored):
        follow = _followed(stored, segment, advance, every=1)
        for chunk in chunks(file, segment.start, segment.end):
            follow()
            try:
                decoded = carry + decoder.decode(chunk)
            except UnicodeDecodeError as error:
                raise _not_utf8(segment, read, error) from None
            read += len(chunk)
            carry = "\r" if decoded.endswith("\r") else ""  # may be half of a line ending
            text += decoded.removesuffix("\r").replace("\r\n", "\n")
            if segment.start == 0 and read == len(chunk):
                text = text.removeprefix("\ufeff")
            start = 0
            while (end := cut(text, start, joins)) is not None:
                yield Unit(text[start:end], segment.number, False, True, continues)
                start, continues = end, True
            text = text[start:]
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise _not_utf8(segment, read, error) from None
    text += carry
    if text or segment.last:
        yield Unit(text, segment.number, segment.last, True, continues)


def _blocks(segment: Segment, file: BinaryIO, documents: str, follow: Callable[[], None]) -> Iterator[str]:
    """Documents between separator lines. Each belongs to the range in which the separator before it begins."""
    block: list[bytes] = []
    begun, first = segment.start == 0, 0
    separator = 0
    for position, line in lines(segment.source, file, segment.start, None):
        follow()
        bare = line.strip()
        if bare == (END_OF_TEXT.encode() if documents == "end-of-text" else b""):
            if block:
                yield _decoded(b"".join(block), segment, first).strip("\r\n")
            block, begun, separator = [], True, position
        elif begun:
            if not block:
                if segment.end is not None and separator >= segment.end:
                    return
                first = position
            block.append(line)
        elif segment.end is not None and position >= segment.end:
            return
    if block:
        yield _decoded(b"".join(block), segment, first).strip("\r\n")


def _json(segment: Segment, file: BinaryIO, records: Records, follow: Callable[[], None]) -> Iterator[str]:
    number = 0
    for position, line in lines(segment.source, file, segment.start, segment.end):
        follow()
        number += 1
        if not line.strip():
            continue

        def place(number: int = number, position: int = position) -> str:
            return f"{segment.source.name}, line {line_number(segment.source, position) if segment.start else number}"

        if number == 1 and not segment.start and line.lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
            raise UserError(
                f"--input {place()}: the file is a list, not one JSON object per line; "
                "jq -c '.[]' FILE > NEW.jsonl makes one that is read"
            )
        try:
            record = json.loads(line, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:  # beside what is not JSON: long integers, deep nesting
            hint = " (the file must hold one JSON object per line)" if number == 1 else ""
            kind = "not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else "cannot be read"
            raise UserError(f"--input {place()}: {kind}: {one_line(error)}{hint}; mend or remove the line") from None
        text = records.read(record, place)
        # JSON can hold halves of surrogate pairs, which are not characters.
        if b"\\ud" in line or b"\\uD" in line:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        yield text


def _parquet(segment: Segment, records: Records, advance: Advance) -> Iterator[str]:
    from pyarrow import parquet

    source = segment.source
    with reading(source), opened(source) as (file, _):
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        # Without any of them, read all columns, so that the message can name them.
        columns = [name for name in records.columns if name in names] or names
        groups = range(segment.start, table.num_row_groups if segment.end is None else segment.end)
        for group in groups:
            number = 0
            for batch in table.iter_batches(batch_size=256, row_groups=[group], columns=columns):
                for record in batch.to_pylist():
                    number += 1

                    def place(number: int = number, group: int = group) -> str:
                        return f"{source.name}, row {number} of group {group}"

                    yield records.read(present(record), place)
            advance(source.size // max(1, table.num_row_groups))


def _decoded(content: bytes, segment: Segment, position: int) -> str:
    try:
        return content.decode("utf-8-sig" if position == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(segment, position, error) from None


def _not_utf8(segment: Segment, position: int, error: UnicodeDecodeError) -> UserError:
    source, byte = segment.source, position + error.start
    place = source.name if source.compression else f"{source.name}, line {line_number(source, byte)}"
    return UserError(
        f"--input {place}: not UTF-8 text ({error.reason} near byte {byte}); convert it, for example with iconv"
    )
