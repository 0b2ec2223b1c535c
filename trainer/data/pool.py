"""Spread pieces of work over processes, and log how far they are."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any

from trainer.config import container
from trainer.data.documents import Piece
from trainer.data.shards import Part, Settings, Writer
from trainer.data.sources import Progress
from trainer.errors import UserError
from trainer.log import event

WORKER_BYTES = 400 << 20
"""Memory that one process may need: cached words, text in progress, libraries."""
LOG_SECONDS = 10.0


def available_cpus() -> int:
    """Number of processes for the CPUs that this process may use, within its memory limit."""
    cpus = len(os.sched_getaffinity(0))
    limit = container.limit()
    return cpus if limit is None else max(1, min(cpus, limit // WORKER_BYTES))


def run(pieces: list[Piece], settings: Settings, workers: int) -> list[Part]:
    """The records of all pieces, in order. A thread logs every LOG_SECONDS how far it is.

    A piece may be one compressed file of many gigabytes, so the bytes read are told too.
    """
    parts: list[Part] = []
    read = multiprocessing.get_context("spawn").Value("Q")
    sizes = {segment.source: segment.source.size for piece in pieces for segment in piece.segments}
    of = f"/{sum(sizes.values()) >> 20}" if all(sizes.values()) else ""
    before, begun, ended = len(settings.recorded()), time.monotonic(), threading.Event()

    def tell() -> None:
        while not ended.wait(LOG_SECONDS):
            done, new = len(parts), len(parts) - before
            seconds = (time.monotonic() - begun) * (len(pieces) - done)
            left = {"eta_seconds": round(seconds / new)} if new > 0 else {}
            with suppress(OSError):  # nobody reads any more
                event("preparing", pieces=f"{done}/{len(pieces)}", read_mib=f"{read.value >> 20}{of}", **left)

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        for part in _parts(pieces, settings, workers, read):
            parts.append(part)
    finally:
        ended.set()
        telling.join()
    return parts


def _parts(pieces: list[Piece], settings: Settings, workers: int, read: Any) -> Iterator[Part]:
    """read: the bytes read, a number that all processes share."""
    if min(workers, len(pieces)) <= 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if workers > 1 else "false"
        _count(read)
        yield from map(Writer(settings).write, pieces)
        return
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")  # threads of file systems do not survive a fork
    pool = ProcessPoolExecutor(min(workers, len(pieces)), context, _start, (settings, read))
    try:
        yield from pool.map(_write, pieces)
    except BrokenProcessPool:
        raise UserError(
            f"a process of the preparation was killed, most likely for want of memory; give fewer than {workers} "
            "--workers and run the same command again: it goes on where it stopped"
        ) from None
    except BaseException:
        for child in set(multiprocessing.active_children()).difference(others):  # they would finish their pieces
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


_of_this_process: Writer | None = None


def _count(read: Any) -> None:
    def add(size: int) -> None:
        with read.get_lock():
            read.value += size

    Progress.count = add


def _start(settings: Settings, read: Any) -> None:
    """Initialise a process of the pool."""
    global _of_this_process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends the others
    threading.Thread(target=_follow_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _count(read)
    _of_this_process = Writer(settings)


def _write(piece: Piece) -> Part:
    assert _of_this_process is not None
    return _of_this_process.write(piece)


def _follow_parent() -> None:
    """End when the parent process ends, however it ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
