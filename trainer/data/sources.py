"""Find and read what `--input` names: files, folders, patterns and datasets, local or anywhere that fsspec reads.

A source is found and identified without reading it, so that a second run over terabytes ends at once. Every failure to
read becomes one clear line.
"""

import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.compression import compr
from fsspec.implementations.local import LocalFileSystem

from trainer.config.addresses import COMPRESSIONS, KINDS, LOST, REFUSED, address, kind_of, on_filesystem, passed_over
from trainer.config.paths import expanded
from trainer.data import hub
from trainer.errors import Passing, UserError, cause, in_stack, may_pass
from trainer.files import LFS, POINTER, Unfit, open_regular, require_listed
from trainer.log import event

SAMPLE = Path(__file__).parents[1] / "sample" / "opticks.txt"
CHUNK = 1 << 20
LONGEST_LINE = 64 << 20
"""Bytes of a line: a book has 1 MB, and a line is held in memory several times, of which the dataset Job has 2 GiB."""
HASHED_BYTES = 16 << 20
"""Local files up to this size are identified by their content, so a copy or a new image counts as the same; larger
ones by size and modification time."""
EXAMPLES = 'give text, JSONL or Parquet files, folders, patterns, URLs such as gs://bucket/folder, hf:NAME, or "sample"'
NAMED = 8
"""Configurations of a data set that a message names; some have hundreds."""
VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "crc32c",
    "generation",
    "mtime",
    "LastModified",
    "Last-Modified",
    "updated",
    "last_modified",
)
"""Where the file systems of fsspec say which version of a file they have."""


@dataclass(frozen=True)
class Source:
    """One file or one dataset on the hub."""

    name: str
    """As a person wrote it: a path, a URL, hf:NAME."""
    kind: str
    """text | json | parquet | hub"""
    compression: str = ""
    size: int = 0
    """Bytes as stored; 0: not known."""
    identity: str = ""
    """Changes when the content does."""
    seekable: bool = False
    """Whether several processes may each read a range of it."""


Place = Callable[[], str]
"""Names a file and the place of a record in it, for messages."""


def find(inputs: list[str]) -> list[Source]:
    """The sources that the inputs name; files of folders and patterns are sorted by name. Raises UserError.

    Files of folders that are not read are logged.
    """
    sources: list[Source] = []
    for given in inputs:
        try:
            name = address(expanded(given) if "://" not in given else given)
        except ValueError as error:
            raise UserError(f"--input {error}") from None
        if name.startswith(hub.PREFIX):
            sources.append(Source(name, "hub", identity=hub.identity(name)))
        elif name == "sample" and not Path(name).exists():
            sources += _files(str(SAMPLE), {})
        else:
            over: dict[str, list[str]] = {}
            sources += _files(name, over)
            for why, files in over.items():
                event("passed_over", folder=name, why=f"'{why}'", files=len(files), such_as=",".join(files[:5]))
    return sources


def _files(name: str, over: dict[str, list[str]]) -> list[Source]:
    try:
        fsspec.core.url_to_fs(name)
    except (ImportError, ValueError) as error:
        raise UserError(f"--input {name}: {cause(error)}; {EXAMPLES}") from None
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs the traceback of what it raises
    try:
        return on_filesystem(
            name, lambda system, path: [_source(system, info) for info in _listed(system, path, name, over)]
        )
    except UserError:
        raise
    except FileNotFoundError as error:
        if error.__cause__ is not None:  # fsspec's error for a server that does not answer
            raise _unreached(name, error.__cause__) from None
        fix = f"`trainyard upload` brings yours to the shared volume; {EXAMPLES}" if in_stack() else EXAMPLES
        raise UserError(f"--input {name}: no such file or folder; {fix}") from None
    except PermissionError as error:
        told = f"{error.filename or name}: cannot be read by user {os.getuid()} ({error.strerror or cause(error)})"
        raise UserError(f"--input {told}") from None
    except Exception as error:  # each file system raises its own kinds: no credentials, no route, no bucket
        raise _unreached(name, error) from None


def _unreached(name: str, error: BaseException) -> UserError:
    inner = ", and name a server on a private address in dataset.privateServers" if in_stack() and "://" in name else ""
    kind = Passing if may_pass(error) else UserError
    return kind(f"--input {name}: cannot be reached ({cause(error)}); check the name and the access{inner}")


def _listed(system: Any, path: str, name: str, over: dict[str, list[str]]) -> list[dict[str, Any]]:
    """fsspec's information about each file, sorted by name; adds what is not read to `over`, by the reason."""
    over.clear()
    pattern = any(character in path for character in "*?[") and not system.exists(path)
    if pattern:
        inside = [info for info in system.glob(path, detail=True).values() if info["type"] != "directory"]
    else:
        info = system.info(path)
        if info["type"] != "directory":
            return [info]
        inside = system.find(path, detail=True).values()
    if isinstance(system, LocalFileSystem):
        require_listed(path, pattern)
    # A FIFO or a device is not passed over: opening it says what it is.
    sizes = {each["name"]: each.get("size") if each["type"] == "file" else None for each in inside}
    if pattern:
        reasons = {file: "empty" if size == 0 else "" for file, size in sizes.items()}
    else:
        reasons = {file: passed_over(file, path, size) for file, size in sizes.items()}
        for file, why in reasons.items():
            if why != "hidden" and kind_of(file)[0] in LOST:
                raise UserError(
                    f"--input {name}: {file} is of a kind that is not read from a folder, and what it says would be "
                    f"lost; convert it to .txt or .jsonl, remove it, or give the files, as in {name.rstrip('/')}/*.txt"
                )
        cards = _cards(system, path, name, [file for file, why in reasons.items() if not why])
        reasons |= dict.fromkeys(cards, "card of a data set")
    for file, why in sorted(reasons.items()):
        if why:
            over.setdefault(why, []).append(PurePosixPath(file).name)
    if not (found := [each for each in inside if not reasons[each["name"]]]):
        raise UserError(
            f"--input {name}: no file with content matches the pattern"
            if pattern
            else f"--input {name}: the folder holds no file with content that ends in {', '.join(KINDS)} "
            f"(or these and {', '.join(COMPRESSIONS)}); for other text give a pattern, as in {name.rstrip('/')}/*.py"
        )
    return sorted(found, key=lambda each: each["name"])


def _cards(system: Any, path: str, name: str, files: list[str]) -> list[str]:
    """The README.md of a clone of a hub's data set, and what was its card before; empty where it is a text like others.

    Raises UserError for several configurations or splits: whoever trains on all of them trains on what is held out.
    """
    readme = f"{path.rstrip('/')}/{hub.CARD}"
    others = [file for file in files if file != readme]
    said = hub.card(system.cat_file(readme).decode("utf-8", "replace")) if others and readme in files else {}
    plain = {file for file in others if KINDS[kind_of(file)[0]] == "text"}
    pages = {file for file in plain if kind_of(file)[0] != ".txt"}  # of a manual: its test.md is no split
    splits = hub.splits(said, [file.removeprefix(path) for file in others if file not in pages])
    what, found, chosen = "configurations", hub.configurations(said), ""
    if len(found) > 1:
        chosen = f"{path}/{found[0]} for its {found[0]}" if said.get("configs") else ""
    elif len(splits) > 1 and (said or any(split.startswith("train") for split in splits)):
        what, found = "splits", splits
        train = next((split for split in hub.splits(said, []) if split.startswith("train")), "train")  # UltraChat's
        chosen = f"{path}{'' if train == 'train' else f':{train}'} for its split {train}"
    if len(found) > 1:
        rows = chosen and (said or plain != {*others})  # of text alone, `datasets` makes a row of each line
        hf = f"hf:{chosen}, or " if rows and isinstance(system, LocalFileSystem) else ""
        named = ", ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
        raise UserError(
            f"--input {name}: holds the {what} {named}, and all of them would be learned; give {hf}the files of one"
        )
    return [file for file in files if file == readme or file.endswith("/dataset_infos.json")] if said else []


def _source(system: Any, info: dict[str, Any]) -> Source:
    path = info["name"]
    local = isinstance(system, LocalFileSystem)
    name = path if local else system.unstrip_protocol(path)
    suffix, compression = kind_of(path)
    if suffix in REFUSED:
        raise UserError(f"--input {name}: {suffix} files are not read; unpack or convert it to .txt or .jsonl")
    kind = KINDS.get(suffix, "text")
    if name.startswith("http"):
        info = system.info(path)  # a listing says less
        if info.get("mimetype") == "text/html":
            raise UserError(
                f"--input {name}: the server answers with a web page (text/html), whose markup would be learned; give "
                "the address of the file itself (/raw/ or /resolve/ in place of /blob/), hf:NAME for a data set of the "
                "hub, or a file that you saved"
            )
    size = int(info.get("size") or 0)
    if local and size == 0 and info["type"] == "file":
        raise UserError(f"--input {name}: is empty; leave it out")
    # A web server says whether it answers requests for ranges.
    seekable = not compression and size > 0 and info.get("partial", True)
    version = next((f"{key}:{info[key]}" for key in VERSIONS if info.get(key)), "")
    try:
        identity = _local_identity(name) if local else f"{size} {version}".strip()
    except (Unfit, FileNotFoundError) as error:  # the second of a link to nothing
        raise UserError(f"--input {name}: {error.strerror}; leave it out, or put the file there") from None
    return Source(name, kind, compression, size, identity, seekable)


def _local_identity(name: str) -> str:
    with open_regular(Path(name)) as file:
        about = os.fstat(file.fileno())
        if about.st_size > HASHED_BYTES:
            return f"{about.st_size} mtime:{about.st_mtime}"
        return f"{about.st_size} sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """The decompressed content."""
    with reading(source), _stored(source) as stored:
        counted = io.BufferedReader(_Counted(stored), CHUNK)
        content = _decompressed(counted, source.compression) if source.compression else counted
        yield content if content is counted else cast(BinaryIO, io.BufferedReader(content, CHUNK))


class Progress:
    """Where this process tells how much it has read."""

    count: Callable[[int], None] = staticmethod(lambda _size: None)
    """Takes the bytes of each read, as they are stored; of the hub's rows, the characters of their texts."""


class _Counted(io.RawIOBase):
    """A file whose reading is counted."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = self._file.readinto(buffer)
        Progress.count(size)
        return size


def _decompressed(stored: Any, compression: str) -> Any:
    """What a compressed file holds."""
    openers: Any = compr
    if compression != "zstd":
        return openers[compression](stored, mode="rb")
    import pyarrow  # zstandard, which fsspec takes, reads a file that is cut short as a whole one

    return pyarrow.CompressedInputStream(stored, compression)


def _stored(source: Source) -> Any:
    if "://" not in source.name:
        return open_regular(Path(source.name))
    file = on_filesystem(source.name, lambda system, path: system.open(path, "rb"))
    if 0 < source.size < 1024:
        if file.read(len(LFS)) == LFS:
            raise Unfit(source.name, POINTER)
        file.seek(0)
    return file


@contextmanager
def reading(source: Source) -> Iterator[None]:
    """Turn failures to read `source` into a UserError that names it and what helps."""
    try:
        yield
    except UserError:
        raise
    except Unfit as error:
        raise UserError(f"--input {source.name}: {error.strerror}; name another file, or mend this one") from None
    except Exception as error:  # each file system and format has its own exceptions
        helps = "fetch or make it again: it is damaged, cut short, or of another kind"
        helps = "run the same command again: it goes on where it stopped" if may_pass(error) else helps
        raise UserError(f"--input {source.name}: reading failed ({cause(error)}); {helps}") from None


def align(file: BinaryIO, start: int) -> int:
    """Seek to the first line that begins at `start` or later; return its position."""
    if start == 0:
        return 0
    file.seek(start - 1)
    position = start - 1
    while True:
        part = file.readline(CHUNK)
        position += len(part)
        if not part or part.endswith(b"\n"):
            return position


def lines(source: Source, file: BinaryIO, start: int, end: int | None) -> Iterator[tuple[bytes, int, Place]]:
    """Each line that begins in [start, end), whole, with its position and its name for messages.

    Raises UserError for one over LONGEST_LINE.
    """
    position, count = align(file, start), 1
    while (end is None or position < end) and (line := file.readline(LONGEST_LINE + 1)):
        place = partial(line_name, source, position, 0 if start else count)
        if len(line) > LONGEST_LINE:
            raise UserError(
                f"--input {place()}: has more than {LONGEST_LINE >> 20} MiB, the most that a line may have; write one "
                "record a line (jq -c '.[]' FILE does it for a list), or split it"
            )
        yield line, position, place
        position, count = position + len(line), count + 1


def chunks(file: BinaryIO, start: int, end: int | None) -> Iterator[bytes]:
    """The lines that begin in [start, end) as chunks of bounded size, however long a line is."""
    position = align(file, start)
    last = b""
    while end is None or position < end:
        last = file.read(CHUNK if end is None else min(CHUNK, end - position))
        if not last:
            return
        position += len(last)
        yield last
    while last and not last.endswith(b"\n"):
        last = file.readline(CHUNK)
        if last:
            yield last


def line_name(source: Source, position: int, number: int = 0) -> str:
    """Names the line at `position`, whose number, from 1, is counted in an uncompressed source if it is not known."""
    if number or source.compression:
        return f"{source.name}, line {number}" if number else source.name
    number = 1
    with _stored(source) as file:
        while position > 0:
            part = cast(bytes, file.read(min(CHUNK, position)))
            if not part:
                break
            number += part.count(b"\n")
            position -= len(part)
    return f"{source.name}, line {number}"
