"""Text into token shards, once: `python -m trainer.prepare --input PATH... --output DIR --tokenizer SPEC`.

Reads in constant memory, writes uint16 shards and their index last, so a killed preparation leaves no dataset that
looks finished. A second run with the same input finds the index and ends at once.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data import INDEX, VERSION, open_dataset
from trainer.errors import EXIT_USAGE, UserError
from trainer.files import fsync, read_json, sha256, write_json
from trainer.tokenizer import FILE, end_of_text, load

SAMPLE = Path(__file__).parent / "sample" / "opticks.txt"
PASSAGE = 4096
"""Characters in a passage: with few documents, every k-th passage is held out, not every k-th document."""
GROUP = 64
"""Units encoded in one call: the tokenizer spreads them over the cores."""


@dataclass(frozen=True)
class Unit:
    """A piece of text that goes to one split as a whole."""

    text: str
    starts_document: bool


@dataclass
class Writer:
    """Appends tokens to the shards of one split, and remembers what stands in the index."""

    directory: Path
    split: str
    shard_tokens: int
    shards: list[dict[str, Any]] = field(default_factory=list)
    _pending: list[np.ndarray] = field(default_factory=list)
    _count: int = 0

    def add(self, ids: np.ndarray) -> None:
        while len(ids):
            part = ids[: self.shard_tokens - self._count]
            self._pending.append(part)
            self._count += len(part)
            ids = ids[len(part) :]
            if self._count == self.shard_tokens:
                self.flush()

    def flush(self) -> None:
        if self._count == 0:
            return
        path = self.directory / f"{self.split}-{len(self.shards):05d}.bin"
        with open(path, "wb") as file:
            for part in self._pending:
                file.write(part.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.shards.append({"file": path.name, "tokens": self._count, "sha256": sha256(path)})
        self._pending, self._count = [], 0

    @property
    def tokens(self) -> int:
        return sum(shard["tokens"] for shard in self.shards)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.prepare", description="Turn text into token shards.")
    parser.add_argument("--input", nargs="+", required=True, help='text files or folders, or "sample"')
    parser.add_argument("--output", required=True, type=Path, help="folder for shards and index.json")
    parser.add_argument("--tokenizer", default="gpt2", help="gpt2, a local folder, or a Hugging Face name")
    parser.add_argument("--validation-fraction", type=float, default=0.05, help="part of the text that is held out")
    parser.add_argument("--shard-tokens", type=int, default=100_000_000, help="tokens in one shard file")
    options = parser.parse_args(arguments)
    try:
        prepare(options.input, options.output, options.tokenizer, options.validation_fraction, options.shard_tokens)
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(
            f"--output {options.output}: {error.strerror} ({error.filename}); give a writable folder", file=sys.stderr
        )
        return EXIT_USAGE
    return 0


def prepare(inputs: list[str], output: Path, tokenizer_spec: str, fraction: float, shard_tokens: int) -> None:
    """Write the dataset, or find that it is there already."""
    if not 0 < fraction < 1:
        raise UserError(f"--validation-fraction {fraction}: give a number between 0 and 1, such as 0.05")
    if shard_tokens < 1:
        raise UserError(f"--shard-tokens {shard_tokens}: give a positive number")
    files = find_files(inputs)
    tokenizer = load(tokenizer_spec)
    vocabulary = tokenizer.get_vocab_size()
    if vocabulary > 2**16:
        raise UserError(f"--tokenizer {tokenizer_spec}: {vocabulary} tokens do not fit 16 bits; at most 65536")
    recipe = {
        "tokenizer": tokenizer_spec,
        "vocabulary": vocabulary,
        "validation_fraction": fraction,
        "shard_tokens": shard_tokens,
        "sources": [{"name": file.name, "bytes": file.stat().st_size, "sha256": sha256(file)} for file in files],
    }
    if _complete(output, recipe):
        print(f"event=prepared state=found directory={output}", flush=True)
        return
    output.mkdir(parents=True, exist_ok=True)
    (output / INDEX).unlink(missing_ok=True)
    splits = write_shards(files, output, tokenizer, fraction, shard_tokens)
    tokenizer.save(str(output / FILE))
    index = {
        "version": VERSION,
        "recipe": recipe,
        "vocabulary": vocabulary,
        "end_of_text": end_of_text(tokenizer),
        "splits": {writer.split: {"tokens": writer.tokens, "shards": writer.shards} for writer in splits},
    }
    fsync(output)
    write_json(output / INDEX, index)
    size = sum(file.stat().st_size for file in files)
    total = sum(writer.tokens for writer in splits)
    print(
        f"event=prepared state=written directory={output} documents={len(files)} "
        + " ".join(f"{writer.split}_tokens={writer.tokens}" for writer in splits)
        + f" bytes_per_token={size / total:.2f}",
        flush=True,
    )


def find_files(inputs: list[str]) -> list[Path]:
    """The text files that the inputs name, folders walked in order of name."""
    files: list[Path] = []
    for name in inputs:
        path = SAMPLE if name == "sample" and not Path(name).exists() else Path(name)
        if path.is_file():
            files.append(path)
        elif path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix in (".txt", ".md") and file.is_file())
            if not found:
                raise UserError(f"--input {path}: the folder holds no .txt or .md file")
            files += found
        else:
            raise UserError(f'--input {path}: no such file or folder; give text files, folders, or "sample"')
    for file in files:
        if not os.access(file, os.R_OK):
            raise UserError(f"--input {file}: cannot be read by user {os.getuid()}")
        if file.stat().st_size == 0:
            raise UserError(f"--input {file}: is empty; leave it out")
    return files


def write_shards(files: list[Path], output: Path, tokenizer: Any, fraction: float, shard_tokens: int) -> list[Writer]:
    """Encode every unit into its split, with an end-of-text token wherever the text does not simply go on."""
    every = max(2, round(1 / fraction))
    by_document = len(files) >= 2 * every
    writers = {name: Writer(output, name, shard_tokens) for name in ("train", "validation")}
    separator = np.array([end_of_text(tokenizer)], dtype=np.uint16)
    last: dict[str, int] = {}
    number = 0
    for group in _grouped(units(files, by_document)):
        for unit, encoding in zip(group, tokenizer.encode_batch([unit.text for unit in group]), strict=True):
            split = "validation" if number % every == every // 2 else "train"
            if split in last and (unit.starts_document or last[split] != number - 1):
                writers[split].add(separator)
            writers[split].add(np.array(encoding.ids, dtype=np.uint16))
            last[split] = number
            number += 1
    for writer in writers.values():
        writer.flush()
        if writer.tokens == 0:
            raise UserError(
                f"--input: {number} passage(s) of text leave the {writer.split} split empty with "
                f"--validation-fraction {fraction}; give more text (about {every * PASSAGE // 1000} kB)"
            )
    return list(writers.values())


def units(files: list[Path], by_document: bool) -> Iterator[Unit]:
    """The text in pieces: whole files, or passages of whole paragraphs."""
    for path in files:
        first, lines, length = True, [], 0
        try:
            with open(path, encoding="utf-8") as file:
                for line in file:
                    lines.append(line)
                    length += len(line)
                    if not by_document and length >= PASSAGE and not line.strip():
                        yield Unit("".join(lines), first)
                        first, lines, length = False, [], 0
        except UnicodeDecodeError as error:
            raise UserError(
                f"--input {path}: not UTF-8 text ({error.reason} near byte {error.start}); convert it"
            ) from None
        if lines:
            yield Unit("".join(lines), first)


def _grouped(pieces: Iterator[Unit]) -> Iterator[list[Unit]]:
    group: list[Unit] = []
    for piece in pieces:
        group.append(piece)
        if len(group) == GROUP:
            yield group
            group = []
    if group:
        yield group


def _complete(output: Path, recipe: dict[str, Any]) -> bool:
    """Whether `output` holds a finished dataset of the same recipe."""
    index = read_json(output / INDEX)
    if index is None or index.get("recipe") != recipe:
        return False
    try:
        open_dataset(str(output))
    except UserError as error:
        print(f"event=prepare_again reason={error!s:.200}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
