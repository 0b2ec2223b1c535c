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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from trainer.config import container
from trainer.data.conversations import DOCUMENTS, Chat
from trainer.data.documents import Piece, TextField
from trainer.data.encoding import Encoder
from trainer.data.shards import PROGRESS, Coder, Part, Recipe, process, token_type
from trainer.data.tokenizer import FILE
from trainer.errors import UserError
from trainer.log import event

WORKER_BYTES = 400 << 20
"""Memory that one process may need: cached words, text in progress, libraries."""
LOG_SECONDS, BAR_SECONDS = 10.0, 0.5


@dataclass(frozen=True)
class Settings:
    """What a process needs besides its piece. The tokenizer is in the output folder."""

    output: Path
    recipe: Recipe
    vocabulary: int
    between: list[int]
    """Ids between two documents: the end of one and, if the tokenizer has it, the beginning of the next."""
    exact: bool = False
    """Whether `tokenizers` encodes, though gigatoken would take the tokenizer."""


def available_cpus() -> int:
    """Number of processes for the CPUs that this process may use, within its memory limit."""
    cpus = len(os.sched_getaffinity(0))
    limit = container.limit()
    return cpus if limit is None else max(1, min(cpus, limit // WORKER_BYTES))


def run(pieces: list[Piece], settings: Settings, workers: int) -> list[Part]:
    """The records of all pieces, in order."""
    # One process or one piece needs no pool, and memory:// sources exist only in this process.
    private = any(segment.source.name.startswith("memory://") for piece in pieces for segment in piece.segments)
    with _progress(settings.output, len(pieces)):
        if min(workers, len(pieces)) <= 1 or private:
            os.environ["TOKENIZERS_PARALLELISM"] = "true" if workers > 1 else "false"
            work = _work(settings)
            return [work(piece) for piece in pieces]
        others = multiprocessing.active_children()
        context = multiprocessing.get_context("spawn")  # threads of file systems do not survive a fork
        pool = ProcessPoolExecutor(min(workers, len(pieces)), context, _start, (settings,))
        try:
            return list(pool.map(_process, pieces))
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


_of_this_process: Any = None


def _start(settings: Settings) -> None:
    """Initialise a process of the pool."""
    global _of_this_process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends the others
    threading.Thread(target=_follow_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _of_this_process = _work(settings)


def _process(piece: Piece) -> Part:
    return _of_this_process(piece)


def _follow_parent() -> None:
    """End when the parent process ends, however it ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(settings: Settings) -> partial[Part]:
    return partial(process, output=settings.output, recipe=settings.recipe, coder=_coder(settings))


def _coder(settings: Settings) -> Coder:
    if settings.recipe.documents == DOCUMENTS:
        chat = Chat(settings.output)
        width = np.dtype(np.uint32).itemsize
        return Coder(chat, lambda texts, later: chat.encode(list(texts)), b"", width)
    dtype = token_type(settings.vocabulary)
    encoder = Encoder(Tokenizer.from_file(str(settings.output / FILE)), dtype, settings.exact)
    separator = np.array(settings.between, dtype=dtype).tobytes()
    fields = TextField(settings.recipe.text_field)
    return Coder(fields, encoder, separator, np.dtype(dtype).itemsize, encoder.joins)


@contextmanager
def _progress(output: Path, pieces: int) -> Iterator[None]:
    """Tell what is in the folder while it fills: as a bar on a terminal, elsewhere every LOG_SECONDS."""
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(output, pieces, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _done(output: Path) -> tuple[int, int]:
    """The pieces that are recorded, and the bytes in all shards."""
    size = 0
    for path in output.glob("*.bin"):
        with suppress(FileNotFoundError):  # that of an earlier dataset, which is being replaced
            size += path.stat().st_size
    return len(list((output / PROGRESS).glob("[0-9]*.json"))), size


def _follow(output: Path, pieces: int, ended: threading.Event) -> None:
    from tqdm import tqdm

    begun, (first, _) = time.monotonic(), _done(output)
    with tqdm(total=pieces, desc="prepare", unit="piece", disable=not sys.stderr.isatty()) as bar:
        last = False
        while not last:
            last = ended.wait(LOG_SECONDS if bar.disable else BAR_SECONDS)
            done, size = _done(output)
            bar.update(done - bar.n)
            bar.set_postfix_str(f"{size / 1e6:.0f} MB written")
            if bar.disable and not last:
                passed = time.monotonic() - begun
                left = {"eta_seconds": round(passed * (pieces - done) / (done - first))} if done > first else {}
                event("preparing", pieces=f"{done}/{pieces}", megabytes_written=round(size / 1e6), **left)
