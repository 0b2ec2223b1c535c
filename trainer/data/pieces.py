"""Spread pieces of work over processes, with a progress bar on a terminal and log lines elsewhere."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from trainer.config import memory
from trainer.data.conversations import DOCUMENTS, Chat
from trainer.data.documents import Piece
from trainer.data.encoding import Encoder
from trainer.data.shards import Coder, Part, Recipe, process, token_type
from trainer.data.text_field import TextField
from trainer.data.tokenizer import FILE
from trainer.errors import UserError
from trainer.log import event

WORKER_BYTES = 400 << 20
"""Memory that one process may need: cached words, text in progress, libraries."""
LOG_SECONDS = 10.0


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


class Stopped(Exception):
    """Another process failed, so this one ends too."""


class _Counters:
    """Source bytes read by all processes, and whether they should stop."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.bytes, self.stop = context.Value("q", 0), context.Value("b", 0)

    def advance(self, size: int) -> None:
        with self.bytes.get_lock():
            self.bytes.value += size

    def more(self) -> None:
        if self.stop.value:
            raise Stopped


def available_cpus() -> int:
    """Number of processes for the CPUs that this process may use, within its memory limit."""
    cpus = len(os.sched_getaffinity(0))
    limit = memory.limit()
    return cpus if limit is None else max(1, min(cpus, limit // WORKER_BYTES))


def run(pieces: list[Piece], settings: Settings, workers: int, total: int | None) -> list[list[Part]]:
    """The parts of every piece, in order. `total`: bytes of all sources, where known."""
    counters = _Counters()
    progress = _Progress(len(pieces), total)
    # One process or one piece needs no pool, and memory:// sources exist only in this process.
    private = any(segment.source.name.startswith("memory://") for piece in pieces for segment in piece.segments)
    if min(workers, len(pieces)) <= 1 or private:
        return _here(pieces, settings, workers, counters, progress)
    context = multiprocessing.get_context("spawn")  # threads of file systems do not survive a fork
    pool = ProcessPoolExecutor(min(workers, len(pieces)), context, _start, (settings, counters))
    try:
        tasks: list[Future[list[Part]]] = [pool.submit(_process, piece) for piece in pieces]
        pending: set[Future[list[Part]]] = set(tasks)
        while pending:
            done, pending = wait(pending, timeout=0.5, return_when=FIRST_EXCEPTION)
            progress.show(len(tasks) - len(pending), counters.bytes.value)
            for task in done:
                task.result()
        return [task.result() for task in tasks]
    except BrokenProcessPool:
        raise UserError(
            f"a process of the preparation was killed, most likely for want of memory; give fewer than {workers} "
            "--workers and run the same command again: it goes on where it stopped"
        ) from None
    finally:
        counters.stop.value = 1
        pool.shutdown(cancel_futures=True)
        progress.close()


def _here(
    pieces: list[Piece], settings: Settings, workers: int, counters: _Counters, progress: "_Progress"
) -> list[list[Part]]:
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if workers > 1 else "false"
    coder = _coder(settings)
    results = []
    try:
        for piece in pieces:

            def more() -> None:
                progress.show(len(results), counters.bytes.value)

            results.append(process(piece, settings.output, settings.recipe, coder, counters.advance, more))
            more()
    finally:
        progress.close()
    return results


_of_this_process: Any = None


def _start(settings: Settings, counters: _Counters) -> None:
    """Initialise a process of the pool."""
    global _of_this_process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process tells the others to stop
    threading.Thread(target=_follow_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _of_this_process = partial(
        process,
        output=settings.output,
        recipe=settings.recipe,
        coder=_coder(settings),
        advance=counters.advance,
        more=counters.more,
    )


def _process(piece: Piece) -> list[Part]:
    return _of_this_process(piece)


def _follow_parent() -> None:
    """End when the parent process ends, however it ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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


class _Progress:
    """A progress bar on a terminal; elsewhere a log line every LOG_SECONDS."""

    def __init__(self, pieces: int, total: int | None) -> None:
        self._pieces, self._total = pieces, total
        self._begun = self._told = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            unit = "B" if total else "piece"
            self._bar = tqdm(total=total or pieces, desc="prepare", unit=unit, unit_scale=bool(total))

    def show(self, done: int, read: int) -> None:
        now = time.monotonic()
        if self._bar is not None and now - self._told > 0.2:
            self._told = now
            self._bar.n = min(read, self._total) if self._total else done
            self._bar.set_postfix_str(f"piece {done}/{self._pieces}")
        elif self._bar is None and now - self._told >= LOG_SECONDS:
            self._told = now
            part = read / self._total if self._total else done / self._pieces
            left = {"eta_seconds": round((now - self._begun) * (1 / part - 1))} if 0 < part <= 1 else {}
            event("preparing", pieces=f"{done}/{self._pieces}", megabytes_read=round(read / 1e6), **left)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
