"""One preparation at a time writes a folder.

A file that only one process can create (O_EXCL) is the lock, on NFS and EFS too, where one that dies leaves it behind.
So its holder touches it all the time, and who waits takes a lock that stands still. A clock is only compared with
itself, and a file is opened to be looked at, which asks its server anew.
"""

import errno
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from trainer.errors import Passing
from trainer.files import write_atomic
from trainer.log import event

LOCK = ".lock"
BEAT, DEAD = 3.0, 30.0
"""Seconds between two touches, and without any until a lock is taken: as long may a server of files stand still."""
GONE = ("", 0)


@contextmanager
def only_writer(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock of a folder; the value raises if another process has taken it, as from one that was stopped.

    Raises Passing while another holds it.
    """
    begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    me = f"process {os.getpid()} of {os.uname().nodename}, since {begun}, {uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    path, ended = folder / LOCK, threading.Event()
    _take(path, me)
    beating = threading.Thread(target=_beat, args=(path, me, ended), daemon=True)
    beating.start()
    try:
        yield partial(_require, path, me)
    except KeyboardInterrupt:
        _require(path, me)
        raise
    finally:
        ended.set()
        beating.join()
        if _look(path)[0] == me:
            path.unlink()


def _take(path: Path, me: str) -> None:
    while not _create(path, me):
        seen = now = _look(path)
        event("preparing", state="waits", until="'the lock stands still'", held_by=f"'{seen[0]}'")
        begun = time.monotonic()
        while now == seen != GONE and time.monotonic() < begun + DEAD:
            time.sleep(BEAT / 5)
            now = _look(path)
        if now == GONE:
            continue
        if now == seen:
            write_atomic(path, me, durable=False)
            time.sleep(BEAT)  # of several that waited, the last has it
        _require(path, me)
        break


def _create(path: Path, me: str) -> bool:
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(me)
    except FileExistsError:
        return False
    return True


def _beat(path: Path, me: str, ended: threading.Event) -> None:
    while not ended.wait(BEAT) and _look(path)[0] == me:
        with suppress(OSError):
            os.utime(path)
    if not ended.is_set():
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)


def _require(path: Path, me: str) -> None:
    if (holder := _look(path)[0]) != me:
        raise Passing(
            f"--output {path.parent}: another preparation writes it ({holder or 'which removed the lock'}); "
            "wait for its end, or give another folder"
        )


def _look(path: Path) -> tuple[str, int]:
    """The holder, and the time of its last touch."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(), os.fstat(file.fileno()).st_mtime_ns
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):  # the latter of a file that was replaced on NFS
            raise
        return GONE
