"""The peers of bench/trainer/prepare.py, in an environment with tiktoken. Arguments: DOCUMENTS.jsonl FOLDER RANKS.

Prints CPU seconds by name as JSON.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tiktoken_ext.openai_public import r50k_pat_str
from tokenizers import Tokenizer
from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer

from trainer.data.encoding import by_words

END = 50256
PORTION = 7822
"""Documents in a portion of the copy: nanoGPT copies OpenWebText's 8.01 million in 1024 portions."""


def main(documents: Path, folder: Path, ranks: Path) -> dict[str, float]:
    merges = data_gym_to_mergeable_bpe_ranks(str(ranks / "vocab.bpe"), str(ranks / "encoder.json"))
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=r50k_pat_str, mergeable_ranks=merges, special_tokens={"<|endoftext|>": END}
    )
    shutil.rmtree(folder, ignore_errors=True)
    datasets.disable_progress_bars()
    loaded: Any = datasets.load_dataset("json", data_files={"train": str(documents)}, cache_dir=str(folder))
    found = usual(loaded["train"], encoding, folder)
    texts = [json.loads(line)["text"] for line in documents.read_text("utf-8").splitlines()]
    other = tokenizer(ranks)
    other.encode_special_tokens = True
    words = by_words(other, np.uint16)
    ways: dict[str, Callable[[list[str]], Iterable[bytes]]] = {
        "tiktoken": lambda batch: (np.array(encoding.encode_ordinary(text), np.uint16).tobytes() for text in batch),
        "tokenizers": lambda batch: (
            np.array(each.ids, np.uint16).tobytes() for each in other.encode_batch_fast(batch, add_special_tokens=False)
        ),
        "new": words,
        "known": words,
    }
    sums = set()
    for name, encode in ways.items():
        digest = hashlib.sha256()
        began = seconds()
        for first in range(0, len(texts), 256):
            for ids in encode(texts[first : first + 256]):
                digest.update(ids)
        found[name] = seconds() - began
        sums.add(digest.hexdigest())
    if len(sums) != 1:
        raise SystemExit("the encoders gave different ids")
    return found


def usual(texts: Any, encoding: Any, folder: Path) -> dict[str, float]:
    """Measure nanoGPT's way: a map over the documents, then a copy of the ids into one file of 16-bit numbers."""

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        ids = encoding.encode_ordinary(row["text"])
        ids.append(END)
        return {"ids": ids, "len": len(ids)}

    began = seconds()
    encoded = texts.map(encode, remove_columns=["text"], num_proc=1)
    mapped = seconds()
    total = int(np.sum(encoded["len"], dtype=np.uint64))
    target = np.memmap(folder / "train.bin", dtype=np.uint16, mode="w+", shape=(total,))
    place = 0
    portions = max(1, len(encoded) // PORTION)
    for number in range(portions):
        portion = encoded.shard(num_shards=portions, index=number, contiguous=True).with_format("numpy")
        ids = np.concatenate(portion["ids"])
        target[place : place + len(ids)] = ids
        place += len(ids)
    target.flush()
    return {"tokens": total, "map": mapped - began, "copy": seconds() - mapped}


def seconds() -> float:
    """Return the CPU seconds of this process and of those it waited for: the map has its own."""
    return sum(os.times()[:4])


def tokenizer(ranks: Path) -> Tokenizer:
    """Build GPT-2's tokenizer of the library tokenizers, from the same files."""
    merges: Any = [tuple(line.split()) for line in (ranks / "vocab.bpe").read_text("utf-8").splitlines()[1:] if line]
    vocabulary = json.loads((ranks / "encoder.json").read_text("utf-8"))
    built = ByteLevelBPETokenizer(vocab=vocabulary, merges=merges)
    return Tokenizer.from_str(built.to_str())


if __name__ == "__main__":
    print(json.dumps(main(*map(Path, sys.argv[1:4]))))
