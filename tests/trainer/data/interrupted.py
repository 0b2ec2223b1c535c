"""Preparations in processes of their own, of many small pieces, that may die in the middle."""

from __future__ import annotations

import os

from tests.trainer import processes
from trainer import prepare
from trainer.data import documents, shards


def prepare_in_pieces(arguments: list[str], size: int, die_after: int | None = None) -> int:
    """The exit code with pieces of `size` bytes. 9: it died before its shards of part `die_after` were recorded."""
    # Not a fork of this process, whose tokenizers may hold locks.
    child = processes.context().Process(target=_prepare, args=(arguments, size, die_after))
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def _prepare(arguments: list[str], size: int, die_after: int | None) -> None:
    documents.PIECE_BYTES = size
    if die_after is not None:
        real, calls = shards.fsync, iter(range(10_000))
        shards.fsync = lambda path: os._exit(9) if next(calls) == die_after else real(path)
    os._exit(prepare.main(arguments))
