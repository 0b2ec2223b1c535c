"""Turn text into token shards, once: `python -m trainer.prepare --input NAME... --output DIR`.

The inputs alone determine the pieces of work. Processes take pieces, write their shards and record these with their
checksums; the index is written last. So a killed preparation leaves no dataset that looks complete, the next one
writes the pieces that are not recorded, the bytes are the same for any number of processes, and a second run ends at
once. One preparation at a time writes a folder, and until its end it changes nothing of the dataset there.
"""

import argparse
import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from trainer.config.paths import folder, path_or_name
from trainer.config.vocabulary import TRAINABLE, words_to_train
from trainer.data import conversations
from trainer.data.batches import CONVERSATIONS, INDEX, VERSION, open_dataset
from trainer.data.chat_template import TEMPLATE, chat_files
from trainer.data.documents import DOCUMENTS, PIECE_BYTES, Piece, TextField, plan
from trainer.data.encoding import PASSAGE, Differs, unfit
from trainer.data.lock import only_writer
from trainer.data.pool import available_cpus, run
from trainer.data.shards import COUNTED, SPLITS, Part, Recipe, Settings, not_learned, placed
from trainer.data.sources import SAMPLE, Source, find
from trainer.data.tokenizer import (
    COMPANIONS,
    FILE,
    beginning,
    companions,
    digest,
    end_of_text,
    find_folder,
    load_tokenizer,
    train,
    write_companions,
)
from trainer.errors import UserError, one_line, usage
from trainer.files import fsync, read_json, write_atomic, write_json
from trainer.log import event

__all__ = ["SAMPLE", "main", "prepare"]

LISTED = 100
"""Sources that index.json lists; its digest covers all."""
PROGRESS = ".progress"
"""Folder of unfinished datasets, each by its key; removed when one is complete."""
DIFFERS = "differs.json"
"""There: why `tokenizers` encodes what gigatoken would take, also after an interruption."""
TRAINED_ON = 10_000_000
"""Bytes of text that a tokenizer is trained on. Each takes 110 bytes of memory where few words repeat, as in Chinese,
and the dataset Job has 2 GiB."""


@usage
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.prepare", description="Turn text into token shards.")
    parser.add_argument(
        "--input",
        dest="inputs",
        metavar="INPUT",
        nargs="+",
        required=True,
        type=path_or_name,
        help="text, JSONL (.gz, .zst) or Parquet files, folders, patterns, URLs (gs://, s3://, https://), "
        'hf:NAME[/CONFIG][:SPLIT], or "sample"',
    )
    parser.add_argument("--output", required=True, type=folder, help="folder for shards and index.json")
    parser.add_argument(
        "--tokenizer",
        dest="tokenizer_spec",
        metavar="TOKENIZER",
        default="gpt2",
        type=path_or_name,
        help="gpt2, a local folder, a Hugging Face name, or train:WORDS for one trained on the input",
    )
    parser.add_argument("--text-field", default="text", help="field or column that holds the text of a record")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--documents", default="file", choices=DOCUMENTS, help="what one document is in a text file (default: the file)"
    )
    kind.add_argument(
        "--conversations",
        dest="documents",
        action="store_const",
        const=conversations.DOCUMENTS,
        help="records are conversations (messages, or prompt and completion), of which the answers are learned",
    )
    parser.add_argument(
        "--chat-template", type=folder, metavar="FILE", help="a Jinja text, instead of the tokenizer's chat template"
    )
    parser.add_argument(
        "--validation-fraction", dest="fraction", type=float, default=0.05, help="part of the text that is held out"
    )
    parser.add_argument("--seed", type=int, default=0, help="chooses the documents that are held out")
    parser.add_argument("--workers", type=int, default=0, help="processes; default: the CPUs and memory allow")
    options = parser.parse_args(arguments)
    try:
        prepare(**vars(options))
    except OSError as error:
        raise UserError(
            f"--output {options.output}: {error.strerror or error} ({error.filename or options.output}); give a "
            "writable folder with free space and run the same command again: what is finished stays"
        ) from None
    except KeyboardInterrupt:
        print("interrupted; run the same command again: it goes on where it stopped", file=sys.stderr)
        return 130
    return 0


def prepare(
    inputs: list[str],
    output: Path,
    tokenizer_spec: str,
    fraction: float,
    documents: str = "file",
    text_field: str = "text",
    seed: int = 0,
    workers: int = 0,
    chat_template: Path | None = None,
) -> None:
    """Write the dataset, continue an interrupted preparation, or find the dataset complete."""
    if not 0 < fraction < 1:
        raise UserError(f"--validation-fraction {fraction}: give a number between 0 and 1, such as 0.05")
    if workers < 0:
        raise UserError(f"--workers {workers}: give a positive number, or 0 for as many as there are CPUs")
    words = words_to_train(tokenizer_spec)
    if words == 0:
        raise UserError(f"--tokenizer {tokenizer_spec}: {TRAINABLE}")
    if words and documents == conversations.DOCUMENTS:
        raise UserError(
            f"--tokenizer {tokenizer_spec}: is for text; with --conversations name the tokenizer of the model to "
            "fine-tune"
        )
    sources = find(inputs)
    # With too few files to hold out whole ones, passages are held out.
    texts = all(source.kind == "text" for source in sources) and documents == "file"
    recipe = Recipe(documents, text_field, fraction, seed, by_document=not texts or len(sources) >= 2 / fraction)
    identity = _identity(recipe, sources, tokenizer_spec)
    if words:
        tokenizer, folder = _trained_before(output, identity), None
        if tokenizer is None:
            tokenizer = train(words, _learned(sources, recipe))
            event("tokenizer", trained_words=tokenizer.get_vocab_size())
    else:
        tokenizer, folder = load_tokenizer(tokenizer_spec), find_folder(tokenizer_spec)
    end = end_of_text(tokenizer, folder)
    vocabulary = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    beside = companions(folder)
    identity |= {"tokenizer_sha256": digest(tokenizer, beside), "vocabulary": vocabulary}
    between = [end, *beginning(tokenizer)]
    if documents == conversations.DOCUMENTS:
        if text := next((source.name for source in sources if source.kind == "text"), None):
            raise UserError(f"--input {text}: holds no conversations; give JSON lines, Parquet or hf:NAME")
        beside.pop(TEMPLATE, None)
        beside |= chat_files(folder, tokenizer, chat_template)
        identity["chat_sha256"] = digest(tokenizer, beside)
    elif chat_template is not None:
        raise UserError(f"--chat-template {chat_template}: is for --conversations; add that or leave it out")
    elif len(between) > 1:
        identity["between"] = between

    def found() -> bool:
        if complete := _complete(output, identity):
            _tell(read_json(output / INDEX) or {})
            event("prepared", state="found", directory=output)
        return complete

    if found():
        return
    with only_writer(output) as require_lock:
        if found():  # made by another while this process waited
            return
        _require_same_words(output, identity)
        work = output / PROGRESS / hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
        _sweep(output, read_json(output / INDEX) or {}, work)
        work.mkdir(parents=True, exist_ok=True)
        for unfinished in work.glob("*.bin.*"):  # a kill left them
            unfinished.unlink()
        write_atomic(work / FILE, tokenizer.to_str(pretty=True))  # not save(), whose failures have one kind
        write_companions(beside, work)
        settings = Settings(output, work, recipe, vocabulary, between)
        parts = _encode(plan(sources, documents), settings, workers or available_cpus())
        index = _index(parts, settings, identity, end)
        require_lock()
        (output / INDEX).unlink(missing_ok=True)
        for name in (FILE, *COMPANIONS):
            (output / name).unlink(missing_ok=True)
            if (work / name).exists():
                (work / name).replace(output / name)
        fsync(output)
        write_json(output / INDEX, index)
        _sweep(output, index)
    tokens = sum(split["tokens"] for split in index["splits"].values())
    _tell(index)
    event(
        "prepared",
        state="written",
        directory=output,
        documents=index["documents"],
        **({"unlearned": index["unlearned"]} if index["unlearned"] else {}),
        **{f"{name}_tokens": split["tokens"] for name, split in index["splits"].items()},
        bytes_per_token=f"{index['text_bytes'] / tokens:.2f}",
    )


def _encode(pieces: list[Piece], settings: Settings, workers: int) -> list[Part]:
    """The records of all pieces, once their shards are written."""
    if settings.recipe.documents == conversations.DOCUMENTS:
        return run(pieces, settings, workers)
    differs = settings.work / DIFFERS
    exact = str((read_json(differs) or {}).get("because_of", ""))
    why = exact or unfit(json.loads((settings.work / FILE).read_text("utf-8")))
    event("encoder", library="tokenizers" if why else "gigatoken", **({"because_of": f"'{why}'"} if why else {}))
    try:
        return run(pieces, dataclasses.replace(settings, exact=bool(exact)), workers)
    except Differs as error:
        why = f"gigatoken gives other ids in {error}"
        event("encoder", library="tokenizers", because_of=f"'{why}'", state="begun_again")
        for record in settings.recorded():  # first: those of gigatoken are none of an exact dataset
            record.unlink()
        write_json(differs, {"because_of": why})
        return run(pieces, dataclasses.replace(settings, exact=True), workers)


def _trained_before(output: Path, identity: dict[str, Any]) -> Tokenizer | None:
    """The tokenizer in the folder, if it was trained for the same inputs and options."""
    there = (read_json(output / INDEX) or {}).get("recipe", {})
    if identity.items() <= there.items() and (output / FILE).is_file():
        with suppress(UserError):
            if digest(found := load_tokenizer(str(output)), {}) == there["tokenizer_sha256"]:
                return found
    return None


def _tell(index: dict[str, Any]) -> None:
    """Log what the records hold and no model learns from them."""
    for counted, name, count in index.get("not_learned", []):
        event("not_learned", what=name, **{counted: count})


def _learned(sources: list[Source], recipe: Recipe) -> Iterator[str]:
    """Yield text that is not held out, up to TRAINED_ON bytes."""
    size = 0
    for piece in plan(sources, recipe.documents):
        for unit, split, _ in placed(piece, recipe, TextField(recipe.text_field)):
            if split == SPLITS[0]:
                yield unit.text
                size += len(unit.text.encode())
            if size >= TRAINED_ON:
                return


def _identity(recipe: Recipe, sources: list[Source], spec: str) -> dict[str, Any]:
    """Everything that determines the dataset's bytes besides the tokenizer's content, as index.json keeps it."""
    listed = [{"name": Path(source.name).name or source.name, "identity": source.identity} for source in sources]
    return {
        **dataclasses.asdict(recipe),
        "tokenizer": spec,
        "piece_bytes": PIECE_BYTES,
        "source_count": len(sources),
        "sources_sha256": hashlib.sha256(json.dumps(listed).encode()).hexdigest(),
        "sources": listed[:LISTED],
    }


def _complete(output: Path, identity: dict[str, Any]) -> bool:
    """Whether `output` holds a finished dataset of this identity."""
    index = read_json(output / INDEX)
    if index is None or index.get("recipe") != identity or not (output / FILE).exists():
        return False
    try:
        open_dataset(str(output), conversations=identity["documents"] == conversations.DOCUMENTS)
    except UserError as error:
        print(f"event=prepare_again reason={one_line(error)}", file=sys.stderr)
        return False
    return True


def _require_same_words(output: Path, identity: dict[str, Any]) -> None:
    """Raise UserError where trainings that use the dataset in the folder could not read the new one."""
    there = (read_json(output / INDEX) or {}).get("recipe", identity)
    # A tokenizer trained on other text has other words.
    deciding = ("tokenizer_sha256",) if words_to_train(identity["tokenizer"]) else ("tokenizer", "tokenizer_sha256")
    other_words = all(there.get(key) != identity[key] for key in deciding)
    if other_words or ("chat_sha256" in there) != ("chat_sha256" in identity):
        form = "conversations" if "chat_sha256" in there else "text"
        raise UserError(
            f"--output {output}: holds {form} in the tokens of {there.get('tokenizer')}, which would be lost; give "
            "another folder (in a stack dataset.name), or remove this one first"
        )


def _index(parts: list[Part], settings: Settings, identity: dict[str, Any], end_of_text: int) -> dict[str, Any]:
    """The content of index.json. Raises UserError when a split would be empty."""
    recipe = settings.recipe
    splits: dict[str, Any] = {}
    documents, text_bytes, unlearned = (sum(part[name] for part in parts) for name in COUNTED)
    if unlearned and not documents:
        what = "an answer to learn" if recipe.documents == conversations.DOCUMENTS else "text"
        raise UserError(f"--input: none of the {unlearned} record(s) has {what}; give others")
    for name in SPLITS:
        shards = [shard for part in parts for shard in part[name]]
        splits[name] = {"tokens": sum(shard["tokens"] for shard in shards), "shards": shards}
        if not shards:
            least = round(1 / recipe.fraction)
            enough = f"{least} documents" if recipe.by_document else f"{least * PASSAGE // 1000} kB of text"
            raise UserError(
                f"--input: {documents} document(s) leave the {name} split empty with --validation-fraction "
                f"{recipe.fraction}; give more (about {enough}) or choose another fraction"
            )
    return {
        "version": CONVERSATIONS if recipe.documents == conversations.DOCUMENTS else VERSION,
        "recipe": identity,
        "vocabulary": settings.vocabulary,
        "largest": max(shard["largest"] for split in splits.values() for shard in split["shards"]),
        "end_of_text": end_of_text,
        "dtype": np.dtype(settings.dtype).name,
        "documents": documents,
        "unlearned": unlearned,
        "not_learned": not_learned(parts),
        "text_bytes": text_bytes,
        "splits": splits,
    }


def _sweep(output: Path, index: dict[str, Any], work: Path | None = None) -> None:
    """Remove what belongs neither to the dataset of this index nor to the unfinished one in `work`."""
    kept = {shard["file"] for split in index.get("splits", {}).values() for shard in split["shards"]}
    for path in (path for name in SPLITS for path in output.glob(f"{name}-*.bin")):
        if path.name not in kept and not (work and f"-{work.name}-" in path.name):
            path.unlink()
    unfinished = output / PROGRESS
    for path in [each for each in unfinished.glob("*") if each != work] if work else [unfinished]:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
