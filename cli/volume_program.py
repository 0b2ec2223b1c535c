"""The program of the pod on the shared volume that `trainyard upload` and `trainyard fetch` use.

The command sends this file and what it imports along as the pod's program (PARTS in cli/reach.py), so both ends have
the same version whatever image the stack has. It needs only Python, rsync and, for buckets, fsspec. Others write on the
volume: each folder is opened without following a link, and only regular files are read and written.

    wait                           until nothing has run in the pod for 15 minutes
    list FOLDER                    one JSON line for each file, and a last one that says that these were all
    rsync FOLDER PARTIAL COMMAND   rsync's server in FOLDER; PARTIAL: where it keeps incomplete files, "" when it sends
    copy SOURCE FOLDER NAME        the file at SOURCE into FOLDER, a folder into FOLDER/NAME; one JSON line a step

A file appears under its name when it is whole and on the disk; until then it has a hidden name. A line on stderr that
begins with `refused: ` tells the command that another attempt would fail the same way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

PIECE = 4 << 20
"""Bytes that are read from a bucket at once, and that an interruption costs at most."""
COPIED = ".copied"
"""A note in a copied folder: the version of each file. Its hidden name keeps it out of data sets."""
WRITING = "writing"
"""In the folder of incomplete files: those that an rsync has open, as NAME.XXXXXX."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
PASS = FOLDER | getattr(os, "O_PATH", 0)  # a folder on the way need not be readable
REFUSED, BUSY = "refused: ", "busy: another command has these files"
FULL = (errno.ENOSPC, errno.EDQUOT)
KINDS = {stat.S_IFLNK: "link", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}


class RefusedError(Exception):
    """A request that fails the same way again, in one line."""


def enter(path: str | Path, create: bool = False) -> int:
    """Open a folder without following a link on the way; `create` makes what is missing. Raises RefusedError."""
    here = os.open("/", PASS)
    for part in Path(path).parts[1:]:
        above = here
        try:
            if part == "..":
                raise RefusedError(f"{path}: leads out of its folder")
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=above)
            here = os.open(part, PASS, dir_fd=above)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise RefusedError(f"{path}: {part} there is a link or a file, no folder; remove it") from None
        finally:
            os.close(above)
    try:
        return os.open(".", FOLDER, dir_fd=here)
    finally:
        os.close(here)


def files(folder: str) -> Iterator[dict[str, Any]]:
    """What is under a folder, by name: size and allocated bytes of files, the kind of anything odd.

    Hidden names are incomplete files or notes. Nothing is yielded for a folder that is not there.
    """
    try:
        top = enter(folder)
    except FileNotFoundError:
        return

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # a checkpoint that is deleted meanwhile
            raise error

    for here, folders, names, opened in os.fwalk(".", dir_fd=top, onerror=failed):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in [*folders, *sorted(names)]:
            if name.startswith("."):
                continue
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=opened, follow_symlinks=False)
                found: dict[str, Any] = {"path": os.path.normpath(os.path.join(here, name))}
                if stat.S_ISREG(status.st_mode):
                    yield found | {"size": status.st_size, "allocated": status.st_blocks * 512}
                elif not stat.S_ISDIR(status.st_mode):
                    yield found | {"odd": KINDS.get(stat.S_IFMT(status.st_mode), "device")}
    os.close(top)


def prepare(top: int, partial: str) -> int:
    """Make the folder `partial` in the open folder `top` ready for rsync; return its lock, which is held while open.

    A killed rsync leaves what it was writing under a name of its own: give it the name under which the next one goes
    on. Whatever is no regular file was planted there. Raises BlockingIOError when another rsync uses the folder.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(partial, dir_fd=top, follow_symlinks=False).st_mode):
            os.unlink(partial, dir_fd=top)
    here = _subfolder(partial, top)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=here)
    _lock(lock)
    if not os.path.samestat(os.fstat(lock), os.stat(f"{partial}/lock", dir_fd=top, follow_symlinks=False)):
        raise BlockingIOError  # the one who had it has removed the folder
    for name in os.listdir(here):
        status = os.stat(name, dir_fd=here, follow_symlinks=False)
        # A hard link is a file of somebody else's as well, and rsync writes into it.
        if name != WRITING and not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
            remove(name, here)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        writing = os.open(WRITING, FOLDER, dir_fd=here)
        for name in os.listdir(writing):
            status = os.stat(name, dir_fd=writing, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size:
                os.replace(name, name[: -len(".XXXXXX")] or name, src_dir_fd=writing, dst_dir_fd=here)
        os.close(writing)
    with contextlib.suppress(FileNotFoundError):
        remove(WRITING, here)
    os.close(_subfolder(WRITING, here))
    os.close(here)
    return lock


def drop(top: int, partial: str) -> None:
    """Remove the folder that `prepare` made, unless another command takes it over as soon as the lock is gone."""
    here = os.open(partial, FOLDER, dir_fd=top)
    for name in sorted(os.listdir(here), key="lock".__eq__):  # the lock last
        remove(name, here)
    os.close(here)
    with contextlib.suppress(OSError):
        os.rmdir(partial, dir_fd=top)


def _lock(opened: int) -> None:
    """Lock an open file against another process. Raises BlockingIOError when one has it."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # storage without locks
            raise


def _subfolder(name: str, above: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=above)
    return os.open(name, FOLDER, dir_fd=above)


def remove(name: str, above: int) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
        shutil.rmtree(name, dir_fd=above)
    else:
        os.unlink(name, dir_fd=above)


def serve(folder: str, partial: str, command: list[str]) -> int:
    """Run rsync's server in a folder, and drop the folder of incomplete files once all have come."""
    top = enter(folder, create=bool(partial))
    kept = (prepare(top, partial),) if partial else ()
    os.fchdir(top)
    if not shutil.which(command[0]):
        raise RefusedError("the stack's image has no rsync; `pulumi up` builds one that has it")
    code = subprocess.run(command, check=False, pass_fds=kept).returncode
    if partial and code == 0:
        drop(top, partial)
    return code


def copy(source: str, folder: str, own: str = "") -> Iterator[dict[str, Any]]:
    """Copy what `source` names into `folder`, or a folder into its subfolder `own`; yield progress after each piece.

    A file that is there in the source's current version stays; an interrupted one continues where it stopped.
    """
    system, root, found = _found(source)
    wanted = sorted((_below(info["name"], root), info) for info in found if not info["name"].endswith("/"))
    if not wanted:
        raise RefusedError(f"{source}: holds no file")
    one = len(wanted) == 1 and wanted[0][1]["name"] == root
    target = Path(folder) if one else Path(folder, own)
    top = enter(target, create=True)
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, RefusedError), open_regular(COPIED, "rb", top) as note:
        known.update(json.load(note))
    inside = str(target / wanted[0][0] if one else target)
    yield {"files": len(wanted), "bytes": sum(info.get("size") or 0 for _, info in wanted), "inside": inside}
    for name, info in wanted:
        version, place = _version(info), enter((target / name).parent, create=True)
        try:
            if known.get(name) == version and (size := _size(Path(name).name, place)) is not None:
                yield {"name": name, "done": size, "found": True}
                continue
            for done in _stream(system, info, Path(name).name, version, place):
                yield {"name": name, "done": done}
        except Exception as error:  # each storage has exceptions of its own
            if isinstance(error, RefusedError | BlockingIOError) or getattr(error, "errno", None) in FULL:
                raise
            raise RefusedError(
                f"{source}: {name}: reading failed ({type(error).__name__}: {error}); run it again"
            ) from None
        finally:
            os.close(place)
        known[name] = version
        with open_regular(f"{COPIED}.part", "wb", top) as note:
            note.write(json.dumps(known, indent=1, sort_keys=True).encode())
        os.replace(f"{COPIED}.part", COPIED, src_dir_fd=top, dst_dir_fd=top)


def _size(name: str, folder: int) -> int | None:
    """Bytes of a regular file in an open folder; None: there is none."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return status.st_size if stat.S_ISREG(status.st_mode) else None


def open_regular(name: str, mode: str, folder: int) -> BinaryIO:
    """Open a regular file of a folder, which a FIFO, a link or somebody's other name for a file is not."""

    def opener(path: str, flags: int) -> int:
        opened = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=folder)
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(opened)
            raise OSError(errno.ELOOP, "no regular file")
        if flags & os.O_TRUNC:
            os.ftruncate(opened, 0)
        return opened

    try:
        return open(name, mode, opener=opener)  # pyrefly: ignore[bad-return]
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
        raise RefusedError(f"{name}: is a link or no regular file on the volume; remove it") from None


def _found(source: str) -> tuple[Any, str, list[dict[str, Any]]]:
    """File system, path and files of a source, as the dataset Job would find it. Raises RefusedError."""
    if __name__ == "__main__":
        from addresses import reach  # sent along (cli/reach.py)
    else:
        from trainer.config.addresses import reach

    def look(system: Any, root: str) -> tuple[Any, str, list[dict[str, Any]]]:
        info = system.info(root)
        return system, root, [info] if info["type"] == "file" else list(system.find(root, detail=True).values())

    try:
        return reach(source, look)
    except FileNotFoundError:
        raise RefusedError(f"{source}: does not exist, or this cluster may not read it; check both") from None
    except Exception as error:  # each storage has exceptions of its own
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise RefusedError(f"{source}: cannot be read ({told}); check the name and the access") from None


def _below(name: str, root: str) -> str:
    """The path of a found file inside the target folder."""
    inside = name[len(root) :].strip("/") if name.startswith(root) else ""
    below = inside or Path(urlsplit(name).path).name
    if ".." in Path(below).parts:
        raise RefusedError(f"{name}: leads out of the folder")
    return below


def _version(info: dict[str, Any]) -> str:
    """A value that changes with the content: from the storage's checksum or version, size and time of change."""
    keys = ("ETag", "etag", "md5Hash", "crc32c", "generation", "LastModified", "mtime", "size")
    return hashlib.sha256(repr([str(info.get(key)) for key in keys]).encode()).hexdigest()[:12]


def _stream(system: Any, info: dict[str, Any], name: str, version: str, folder: int) -> Iterator[int]:
    """Copy a file into an open folder; yield the bytes so far after each piece. Pieces of its version are kept."""
    whole = f".{name}.{version}.part"
    with system.open(info["name"], "rb", block_size=PIECE) as stored, open_regular(whole, "ab", folder) as written:
        _lock(written.fileno())
        start = written.tell() // PIECE * PIECE
        try:
            stored.seek(start)
        except (OSError, ValueError):  # the server does not support ranges
            start = 0
        written.truncate(start)
        while piece := stored.read(PIECE):
            written.write(piece)
            start += len(piece)
            yield start
        if info.get("size") not in (None, start):
            raise RefusedError(f"{info['name']}: gave {start} of {info['size']} bytes; run it again")
        written.flush()
        os.fsync(written.fileno())
        os.replace(whole, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)
    yield start


def wait(idle_seconds: float = 900) -> None:
    """Return when a forgotten pod has had no process but the first ones for a while."""
    first = {name for name in os.listdir("/proc") if name.isdigit()}
    last = time.monotonic()
    while time.monotonic() - last < idle_seconds:
        time.sleep(min(15.0, idle_seconds / 4))
        if any(name.isdigit() and name not in first for name in os.listdir("/proc")):
            last = time.monotonic()


def _end_with_the_command() -> None:
    """End the process when the command that started it is gone: the next one could meet it at the same file."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main(call: str, *arguments: str, calls: Mapping[str, Callable[..., Iterator[Any]]] | None = None) -> int:
    try:
        if call == "wait":
            wait()
            return 0
        if call == "rsync":
            return serve(arguments[0], arguments[1], list(arguments[2:]))
        if call == "copy":
            threading.Thread(target=_end_with_the_command, daemon=True).start()
        for step in (calls or {"list": files, "copy": copy})[call](*arguments):
            print(json.dumps(step), flush=call == "copy")
        print(json.dumps({"complete": True}), flush=True)
    except BlockingIOError:
        sys.exit(BUSY)
    except RefusedError as error:
        sys.exit(f"{REFUSED}{error}")
    except OSError as error:
        sys.exit(f"{REFUSED}{error.filename or ' '.join(arguments[:1])}: {error.strerror or error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
