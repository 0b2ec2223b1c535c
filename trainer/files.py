"""Files of the volume: reads that say what a name stands for, writes that a kill leaves undone or complete."""

import contextlib
import errno
import fnmatch
import hashlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from trainer.errors import UserError

DESCRIPTION = (".json", ".txt", ".model", ".jinja")
"""Suffixes of a model's configuration, tokenizer and chat template. Pickled weights and programs can run code: they are
neither fetched nor exported."""
TEMPLATES = "additional_chat_templates"
"""The folder of further chat templates, where transformers looks for them."""
KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
LARGEST_JSON = 256 << 20
LFS = b"version https://git-lfs.github.com/spec/"
"""Begins a pointer of Git LFS (its specification, version 1), which has less than 1,024 bytes."""
POINTER = "is a Git LFS pointer, not the file itself; fetch that with git lfs pull"


class Unfit(OSError):
    """A name that stands for no regular file of its folder; strerror says what it is."""

    def __init__(self, path: str | Path, problem: str) -> None:
        super().__init__(errno.EINVAL, problem, str(path))


def open_regular(path: Path, inside: Path | None = None) -> BufferedReader:
    """Open a file for reading. Raises Unfit for what holds no data: a folder, a FIFO, a device, a pointer of Git LFS.

    inside: the folder that was listed for this file, which a link may not lead out of.
    """
    if inside is not None and not is_inside(path, inside):
        raise Unfit(path, "leads out of its folder; put the file itself there")
    kind = stat.S_IFMT(os.stat(str(path)).st_mode)
    if kind != stat.S_IFREG:
        raise Unfit(path, f"is {KINDS.get(kind, 'a device')}, no regular file")
    file = open(str(path), "rb")  # noqa: SIM115  # the caller closes it
    if os.fstat(file.fileno()).st_size < 1024 and file.peek(len(LFS)).startswith(LFS):
        file.close()
        raise Unfit(path, POINTER)
    return file


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path ends in a folder, whatever links it has; the Hugging Face cache's lead to its blobs."""
    root, real = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    blobs = [root.parents[1] / "blobs"] if root.parent.name == "snapshots" else []
    return any(real.is_relative_to(base) for base in (root, *blobs))


def require_regular(path: Path, inside: Path | None = None) -> None:
    """Raise UserError, in one line, for a file that a library would open by its name and must not."""
    try:
        open_regular(path, inside).close()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def is_plain_name(name: Any) -> bool:
    """Whether a name that others wrote stands for something in the folder that it is used in."""
    if not isinstance(name, str) or name in ("", ".", "..") or "\0" in name or name != os.path.basename(name):
        return False
    return not any("\ud800" <= letter <= "\udfff" for letter in name)  # half of a surrogate pair has no bytes


def read_text(path: Path, errors: str = "strict") -> str:
    """The UTF-8 text of a file. Raises OSError, and UnicodeDecodeError unless `errors` says otherwise."""
    with open_regular(path) as file:
        return file.read().decode("utf-8", errors)


def copy(source: Path, target: Path) -> None:
    """Copy the content of a regular file to a new file, or over one."""
    with open_regular(source) as read:
        target.unlink(missing_ok=True)
        with open(target, "xb") as written:
            shutil.copyfileobj(read, written, 1 << 20)


def fsync(path: Path) -> None:
    """Push a file's content, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which replaces `path` at the end: a reader sees the old content or the new, never a part.

    durable=False leaves out the fsyncs, for files that are rewritten every few seconds.
    """
    # The workers of several pods have the same process ids.
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # a link there would be followed
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        fsync(path.parent)


def write_atomic(path: Path, text: str, durable: bool = True) -> None:
    """Replace `path` by `text` as `replacing` does."""
    content = text.encode()
    with replacing(path, durable) as file:
        file.write(content)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    write_atomic(path, json.dumps(value, indent=1, sort_keys=True) + "\n", durable)


def list_names(folder: Path, pattern: str = "*") -> list[str]:
    """The names in a folder that match, in order; none where there is no folder.

    Raises PermissionError if it cannot be listed, where Path.glob finds nothing.
    """
    try:
        return fnmatch.filter(sorted(os.listdir(folder)), pattern)
    except (FileNotFoundError, NotADirectoryError):
        return []


def require_listed(path: str, pattern: bool = False) -> None:
    """Raise PermissionError for a folder that a folder or pattern takes in and that may not be listed.

    Libraries leave it out, with all that it holds. Not for lost+found, which a volume with ext4 has for itself.
    """
    top = re.split(r"[^/]*[*?\[]", path)[0] or "." if pattern else path
    deepest = path.removeprefix(top).count("/") if pattern and "**" not in path else sys.maxsize

    def failed(error: OSError) -> None:
        if isinstance(error, PermissionError) and os.path.basename(error.filename) != "lost+found":
            raise error

    for folder, folders, _ in os.walk(top, onerror=failed):
        if len(Path(folder).relative_to(top).parts) >= deepest:
            folders.clear()


def read_json(path: Path) -> dict[str, Any] | None:
    """The object that the file holds, or None if it is missing, no regular file or anything else."""
    try:
        with open_regular(path) as file:
            return parse_mapping(file.read(LARGEST_JSON))
    except (FileNotFoundError, NotADirectoryError, Unfit, ValueError):
        return None


def parse_mapping(content: bytes | str) -> dict[str, Any] | None:
    """The JSON object in `content`; None for another value. Raises ValueError for what is not JSON."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return found if isinstance(found, dict) else None


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when it is missing or holds anything else: others write to the volume."""
    return read_json(path) or {}


def sha256(path: Path, inside: Path | None = None) -> str:
    with open_regular(path, inside) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
