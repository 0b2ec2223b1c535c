"""Questions as windows of tokens, kept in the run directory: a restart and the other workers read what one has made.

SQuAD takes a processor a minute to tokenise and a second to read. The file is named by what it was made of, so changed
questions, another tokenizer or other lengths make another one.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer import log
from trainer.files import fsync
from trainer.tasks.squad_data import Question
from trainer.tasks.squad_features import Feature, features

FORMAT = 1
"""To be raised when features() makes something else of the same questions."""


def kept_features(
    questions: list[Question], tokenizer: Any, length: int, stride: int, question_tokens: int, folder: Path
) -> list[Feature]:
    """features(), read from `folder` where some worker has made them before. A storage that refuses costs time only."""
    shape = (length, stride, question_tokens)
    path = folder / f"{_name(questions, tokenizer, shape)}.npz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            if (found := _read(path)) is not None:
                return found
            made = features(questions, tokenizer, *shape)
            _write(path, made)
            return made
    except OSError as error:
        log.event("questions_not_kept", folder=str(folder), reason=repr(error.strerror), action="'training goes on'")
        return features(questions, tokenizer, *shape)


def _name(questions: list[Question], tokenizer: Any, shape: tuple[int, int, int]) -> str:
    asked = [(each.question, each.context, each.answers[:1], each.starts[:1]) for each in questions]
    words = json.loads(tokenizer.backend_tokenizer.to_str())
    del words["truncation"], words["padding"]  # what the latest call asked for
    names = (tokenizer.model_input_names, tokenizer.padding_side, tokenizer.truncation_side)
    content = json.dumps([FORMAT, shape, names, words, asked])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One worker at a time, so that the others wait for the first instead of doing the same. A killed one lets go.

    Storage without locks lets all of them in: each then writes the same file under a name of its own.
    """
    with open(path.with_suffix(".lock"), "w", encoding="utf-8") as file:
        with contextlib.suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, made: list[Feature]) -> None:
    """All windows end to end. Raises OSError."""
    arrays = {
        "lengths": np.array([len(each.ids) for each in made], np.int32),
        "places": np.array([(each.question, each.start, each.end) for each in made], np.int32),
        "ids": np.concatenate([each.ids for each in made]),
        "spans": np.concatenate([each.spans for each in made]),
    }
    kinds = [each.kinds for each in made if each.kinds is not None]
    if kinds:
        arrays["kinds"] = np.concatenate(kinds).astype(np.uint8)
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
        fsync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> list[Feature] | None:
    """None when there is no such file, or a damaged one: the archive has checksums."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        cuts = np.cumsum(arrays["lengths"])[:-1]
        ids, spans = np.split(arrays["ids"], cuts), np.split(arrays["spans"], cuts)
        kinds = np.split(arrays["kinds"].astype(np.int32), cuts) if "kinds" in arrays else [None] * len(ids)
        rows = zip(arrays["places"].tolist(), ids, kinds, spans, strict=True)
        return [Feature(place[0], words, kind, span, place[1], place[2]) for place, words, kind, span in rows]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.event("questions_damaged", file=str(path), reason=repr(str(error)), action="'made anew'")
        return None
