"""nanoGPT's way of bench/trainer/prepare.py, in an environment with tiktoken. Arguments: DOCUMENTS.jsonl FOLDER RANKS.

Prints CPU seconds by name as JSON.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tiktoken_ext.openai_public import r50k_pat_str

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
    began = seconds()
    for line in documents.read_text("utf-8").splitlines():
        encoding.encode_ordinary(json.loads(line)["text"])
    return found | {"tiktoken": seconds() - began}


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


if __name__ == "__main__":
    print(json.dumps(main(*map(Path, sys.argv[1:4]))))
