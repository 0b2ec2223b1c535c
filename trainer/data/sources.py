"""Find and read what `--input` names: files, folders, patterns and datasets, local or anywhere that fsspec reads.

A source is found and identified without reading it, so that a second run over terabytes ends at once. Every failure to
read becomes one clear line.
"""

import gzip
import hashlib
import io
import logging
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import fsspec
import zstandard
from fsspec.compression import compr
from fsspec.implementations.local import LocalFileSystem

from trainer.config.addresses import COMPRESSIONS, KINDS, REFUSED, TABLES, address, kind_of, passed_over, reach
from trainer.config.paths import expanded
from trainer.data import hub
from trainer.data.zstd import WINDOW, Zstandard
from trainer.errors import Passing, UserError, cause, in_stack
from trainer.files import LFS, POINTER, Unfit, open_regular, require_listed
from trainer.log import event

SAMPLE = Path(__file__).parents[1] / "sample" / "opticks.txt"
CHUNK = 1 << 20
LONGEST_LINE = 64 << 20
"""Bytes of a line: a book has 1 MB, and a line is held in memory several times, of which the dataset Job has 2 GiB."""
HEAD = 1 << 14
"""Bytes in which a web page shows itself: a licence may stand before its first tag."""
PAGE = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\s|<!--(?s:.*?)-->|<\?xml[^>]*>)*+<(?:!doctype\s+html|html|head|title|body|meta)[\s>/]", re.I
)
HASHED_BYTES = 16 << 20
"""Local files up to this size are identified by their content, so a copy or a new image counts as the same; larger
ones by size and modification time."""
EXAMPLES = 'give text, JSONL or Parquet files, folders, patterns, URLs such as gs://bucket/folder, hf:NAME, or "sample"'


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
    inside: str = ""
    """For a file that a folder or a pattern names: the folder that it must lie in, since others may put links there."""


def find(inputs: list[str], passed: dict[str, list[str]] | None = None) -> list[Source]:
    """The sources that the inputs name; files of folders and patterns are sorted by name. Raises UserError.

    Files of folders that are not read are logged, and added to `passed` by the reason.
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
                if passed is not None:
                    passed.setdefault(why, []).extend(files)
    return sources


def counts(sources: list[Source], passed: dict[str, list[str]]) -> dict[str, Any]:
    """For a log line: how many files were read, and how many of the folders were not."""
    over = sum(map(len, passed.values()))
    return {"files": len(sources), "passed_over": f"'{over} ({', '.join(passed)})'"} if over else {}


def _files(name: str, over: dict[str, list[str]]) -> list[Source]:
    try:
        fsspec.core.url_to_fs(name)
    except (ImportError, ValueError) as error:
        raise UserError(f"--input {name}: {cause(error)}; {EXAMPLES}") from None
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it logs the traceback of what it raises

    def listed(system: Any, path: str) -> list[Source]:
        found = _listed(system, path, name, over)
        # A person chose a folder or the beginning of a pattern, and perhaps linked it, but none of the files inside.
        inside = "" if [info["name"] for info in found] == [path] else re.split(r"[^/]*[*?\[]", path)[0] or "."
        return [_source(system, info, inside) for info in found]

    try:
        return reach(name, listed)
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


#: What a message says of a failure that may pass; a name that no server answers to, or a refusal, does not.
_PASSES = re.compile(r"Connect|[Tt]ime(d )?[Oo]ut|Unavailable|[Rr]eset|SlowDown|TooMany|\b(429|5\d\d)\b")
_STAYS = re.compile(r"Name or service|nodename|gaierror|Credentials|Denied|Forbidden|\b40[134]\b")


def _unreached(name: str, error: BaseException) -> UserError:
    told = cause(error)
    kind = Passing if _PASSES.search(told) and not _STAYS.search(told) else UserError
    inner = ", and name a server on a private address in dataset.privateServers" if in_stack() and "://" in name else ""
    return kind(f"--input {name}: cannot be reached ({told}); check the name and the access{inner}")


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
    found: list[dict[str, Any]] = []
    about = "" if pattern else _card(system, path, inside)
    for info in sorted(inside, key=lambda info: info["name"]):
        suffix = kind_of(info["name"])[0]
        # A link, a FIFO or a device is not passed over: opening it says what it is.
        size = info.get("size") if info["type"] == "file" else None
        why = ("empty" if size == 0 else "") if pattern else passed_over(info["name"], path, size)
        if info["name"] == about:
            why = "card of a data set"
        if not pattern and why != "hidden" and suffix in (*REFUSED, *TABLES):
            raise UserError(
                f"--input {name}: {info['name']} is of a kind that is not read from a folder, and what it says would "
                f"be lost; convert it to .txt or .jsonl, remove it, or give the files, as in {name.rstrip('/')}/*.txt"
            )
        if why:
            over.setdefault(why, []).append(PurePosixPath(info["name"]).name)
        else:
            found.append(info)
    if not found:
        raise UserError(
            f"--input {name}: no file with content matches the pattern"
            if pattern
            else f"--input {name}: the folder holds no file with content that ends in {', '.join(KINDS)} "
            f"(or these and {', '.join(COMPRESSIONS)}); for other text give a pattern, as in {name.rstrip('/')}/*.py"
        )
    return found


_SPLIT = re.compile(
    r"(?:^|[^a-z0-9])(train(?:ing)?|test(?:ing)?|val(?:id(?:ation)?)?|dev|eval(?:uation)?)(?![a-z0-9])", re.I
)
"""As `datasets` finds the split of a file in its path (KEYWORDS_IN_PATH_NAME_BASE_PATTERNS of its data_files.py)."""
_CARD = {"configs", "dataset_info", "task_categories", "size_categories", "pretty_name", "license"}
"""Keys of a data set's card, of which one tells it from another README.md with a head."""


def _card(system: Any, path: str, inside: Iterable[dict[str, Any]]) -> str:
    """The README.md of a clone of a hub's data set, empty where it is a text like others. Raises UserError for splits.

    Whoever trains on a clone as a whole trains on what is held out.
    """
    here = {info["name"].removeprefix(path).lstrip("/"): info for info in inside}
    names = sorted(name for name in here if not any(part.startswith(".") for part in PurePosixPath(name).parts))
    about = here.get("README.md", {})
    head = system.cat_file(about["name"]).decode("utf-8", "replace") if about.get("type") == "file" else ""
    said = hub.card(head)
    is_card = isinstance(said, dict) and not _CARD.isdisjoint(said)
    splits: dict[str, str] = {}
    for name in names:
        kind = KINDS.get(kind_of(name)[0])
        if kind and name != "README.md" and (is_card or kind != "text"):
            for split in _SPLIT.findall(name)[-1:]:
                splits.setdefault(split.lower(), name)
    for each in _listed_in(said, "configs") if is_card else ():
        for files in _listed_in(each, "data_files"):
            if isinstance(files, dict) and isinstance(files.get("split"), str):
                splits.setdefault(files["split"], str(files.get("path")))
    if len(splits) > 1 and (is_card or any(split.startswith("train") for split in splits)):
        named = ", ".join(f"{split} ({name})" for split, name in splits.items())
        ways = f"hf:{path} for its split train, or the files of one" if isinstance(system, LocalFileSystem) else "one"
        raise UserError(
            f"--input {path}: holds the splits {named}, and all of them would be learned; give {ways}, as in "
            f"{path.rstrip('/')}/{next(iter(splits.values()))}"
        )
    return about["name"] if is_card and len(names) > 1 else ""


def _listed_in(part: Any, key: str) -> list[Any]:
    found = part.get(key) if isinstance(part, dict) else None
    return found if isinstance(found, list) else []


def _source(system: Any, info: dict[str, Any], inside: str) -> Source:
    path = info["name"]
    local = isinstance(system, LocalFileSystem)
    name = path if local else system.unstrip_protocol(path)
    suffix, compression = kind_of(path)
    if suffix in REFUSED:
        raise UserError(f"--input {name}: {suffix} files are not read; unpack or convert it to .txt or .jsonl")
    kind = KINDS.get(suffix, "text")
    if kind == "parquet" and compression:
        raise UserError(f"--input {name}: a Parquet file is compressed inside; unpack it")
    size = int(info.get("size") or 0)
    if local and size == 0 and info["type"] == "file":
        raise UserError(f"--input {name}: is empty; leave it out")
    # A web server says whether it answers requests for ranges.
    seekable = not compression and size > 0 and info.get("partial", True)
    found = Source(name, kind, compression, size, seekable=seekable, inside=inside if local else "")
    if name.startswith("http") and _is_page(system, path):
        raise UserError(
            f"--input {name}: the server answers with a web page (HTML), whose markup would be learned; give the "
            "address of the file itself, hf:NAME for a data set of the hub, or a file that you saved"
        )
    try:
        return replace(found, identity=_identity(found, info, local))
    except (Unfit, FileNotFoundError) as error:  # the second of a link to nothing
        raise UserError(f"--input {name}: {error.strerror}; leave it out, or put the file there") from None


def _is_page(system: Any, path: str) -> bool:
    """Whether what a web server sends begins as HTML: a page about data, a login, an error without its status."""
    head = b""
    with system.open(path, "rb", block_size=0) as file:  # streamed: no range that some servers answer with all of it
        while len(head) < HEAD and (part := file.read(HEAD - len(head))):
            head += part
    return PAGE.match(head) is not None


def _identity(source: Source, info: dict[str, Any], local: bool) -> str:
    """Size and the storage's version of the content: a hash, an ETag, or the time of the last change."""
    size = source.size
    if local:
        file = _local(source)
        size = os.fstat(file.fileno()).st_size
        with file:
            if size > HASHED_BYTES:
                return f"{size} mtime:{os.fstat(file.fileno()).st_mtime}"
            return f"{size} sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    keys = ("ETag", "etag", "md5Hash", "crc32c", "generation", "mtime", "LastModified", "updated", "last_modified")
    known = next((f"{key}:{info[key]}" for key in keys if info.get(key)), "")
    return f"{size} {known}".strip()


@contextmanager
def opened(source: Source) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The decompressed content, and the stored file under it, whose position shows the progress."""
    with reading(source), _stored(source) as stored:
        openers: dict[Any, Any] = compr | {"zstd": Zstandard}
        decompress = openers[source.compression or None]
        content = decompress(stored, mode="rb")
        # Remote files have no readlines(hint); local ones are buffered already.
        plain = isinstance(stored, io.BufferedReader) and not source.compression
        yield (content if plain else io.BufferedReader(content, CHUNK)), stored


def _stored(source: Source) -> Any:
    if "://" not in source.name:
        return _local(source)
    file = reach(source.name, lambda system, path: system.open(path, "rb"))
    if 0 < source.size < 1024:
        if file.read(len(LFS)) == LFS:
            raise Unfit(source.name, POINTER)
        file.seek(0)
    return file


def _local(source: Source) -> io.BufferedReader:
    """The file; one that a person named may be a link, one that a folder holds only to another file inside."""
    if not source.inside:
        return open_regular(Path(os.path.realpath(source.name)))
    return open_regular(Path(source.name), Path(source.inside))


@contextmanager
def reading(source: Source) -> Iterator[None]:
    """Turn failures to read `source` into a UserError that names it and what helps."""
    again = "run the same command again: it goes on where it stopped"
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each file system and format has its own exceptions
        reason, helps = f"reading failed ({cause(error)})", again
        if isinstance(error, Unfit):
            reason, helps = str(error.strerror), "name another file, or mend this one"
        elif isinstance(error, FileNotFoundError):
            reason, helps = "disappeared during the preparation", "put it back"
        elif isinstance(error, zstandard.ZstdError) and "too much memory" in str(error):
            reason = f"needs a zstd window of more than the {WINDOW >> 20} MiB that are read"
            helps = "compress it with a smaller one: zstd -d --long=31 -c FILE | zstd --long=28 -o NEW.zst"
        elif isinstance(error, (*DAMAGE, *_arrow())) or (
            (source.compression or source.kind == "parquet")  # bz2 and pyarrow have none of their own
            and isinstance(error, OSError)
            and error.errno is None
            and not isinstance(error, (ConnectionError, TimeoutError))
        ):
            reason, helps = f"is damaged or cut short ({cause(error)})", "fetch or make it again"
        elif isinstance(error, (ValueError, TypeError, LookupError, NotImplementedError)):
            reason, helps = f"cannot be read ({cause(error)})", "convert it, or make it again"
        raise UserError(f"--input {source.name}: {reason}; {helps}") from None


DAMAGE = (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)


def _arrow() -> tuple[type[Exception], ...]:
    """pyarrow's errors for the content of a file; those of its storage are OSErrors with a number."""
    arrow = sys.modules.get("pyarrow")
    return (arrow.ArrowInvalid, arrow.ArrowSerializationError) if arrow else ()


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


def lines(source: Source, file: BinaryIO, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Each line that begins in [start, end), whole, with its position. Raises UserError for one over LONGEST_LINE."""
    position, count = align(file, start), 1
    while (end is None or position < end) and (line := file.readline(LONGEST_LINE + 1)):
        if len(line) > LONGEST_LINE:
            place = f"{source.name}, line {line_number(source, position) if start else count}"
            raise UserError(
                f"--input {place}: has more than {LONGEST_LINE >> 20} MiB, the most that a line may have; write one "
                "record a line (jq -c '.[]' FILE does it for a list), or split it"
            )
        yield position, line
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


def line_number(source: Source, position: int) -> int:
    """The number, from 1, of the line at `position` of an uncompressed source."""
    number = 1
    with _stored(source) as file:
        while position > 0:
            part = cast(bytes, file.read(min(CHUNK, position)))
            if not part:
                break
            number += part.count(b"\n")
            position -= len(part)
    return number
