"""Spread pieces of work over processes, with a progress bar on a terminal and log lines elsewhere."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tqdm import tqdm

from trainer.config import container
from trainer.data.documents import Piece
from trainer.data.shards import Part, Settings, Writer
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
    """The records of all pieces, in order. Tells how far it is: as a bar on a terminal, elsewhere every LOG_SECONDS."""
    parts: list[Part] = []
    begun = told = time.monotonic()
    before = len(settings.recorded())
    with tqdm(total=len(pieces), desc="prepare", unit="piece", disable=not sys.stderr.isatty()) as bar:
        for part in _parts(pieces, settings, workers):
            parts.append(part)
            bar.update()
            now, new = time.monotonic(), len(parts) - before
            if bar.disable and now > told + LOG_SECONDS:
                left = {"eta_seconds": round((now - begun) * (len(pieces) - len(parts)) / new)} if new > 0 else {}
                event("preparing", pieces=f"{len(parts)}/{len(pieces)}", **left)
                told = now
    return parts


def _parts(pieces: list[Piece], settings: Settings, workers: int) -> Iterator[Part]:
    if min(workers, len(pieces)) <= 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if workers > 1 else "false"
        yield from map(Writer(settings).write, pieces)
        return
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")  # threads of file systems do not survive a fork
    pool = ProcessPoolExecutor(min(workers, len(pieces)), context, _start, (settings,))
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


def _start(settings: Settings) -> None:
    """Initialise a process of the pool."""
    global _of_this_process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends the others
    threading.Thread(target=_follow_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
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
