"""Bits per byte count the exact bytes of the text, whatever the tokenizer does to letters and spaces."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from trainer import prepare
from trainer.data.text_size import TextSize, bits_per_byte

TEXTS = ["The rays of light é 漢字 differ", "A second 🙂 document.", " a space leads", "e"]


def sentencepiece() -> Tokenizer:
    """As Llama 2's: a space is ▁, each text gets one at its beginning, and what is unknown falls back to bytes."""
    built = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    built.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    built.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    built.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pieces = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "<s>", "</s>", *pieces], show_progress=False)
    built.train_from_iterator([prepare.SAMPLE.read_text("utf-8")[:20_000]], trainer)
    described = json.loads(built.to_str())
    described["added_tokens"] = [token for token in described["added_tokens"] if token["content"] not in pieces]
    return Tokenizer.from_str(json.dumps(described))


def byte_level(tokenizer: Path) -> Tokenizer:
    built = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    built.add_tokens(["rays"])  # a word of its own that is not special
    return built


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
def test_every_byte_counts_once_and_special_tokens_none(kind: str, tokenizer: Path, tmp_path: Path) -> None:
    built = byte_level(tokenizer) if kind == "byte level" else sentencepiece()
    built.save(str(tmp_path / "tokenizer.json"))
    stop = built.token_to_id("<|endoftext|>" if kind == "byte level" else "</s>")
    ids = [stop]
    for text in TEXTS:
        ids += [*built.encode(text, add_special_tokens=False).ids, stop]
    stream = np.array(ids)
    size = TextSize(tmp_path / "tokenizer.json")
    assert size.count(stream[1:], stream[:-1]) == len("".join(TEXTS).encode())
    # Windows may end inside a letter: together they still have all bytes.
    parts = [
        size.count(stream[first + 1 : first + 3], stream[first : first + 2][: len(stream) - first - 1])
        for first in range(0, len(stream) - 1, 2)
    ]
    assert sum(parts) == len("".join(TEXTS).encode())


def test_a_loss_of_ln_256_for_each_byte_is_eight_bits() -> None:
    assert bits_per_byte(math.log(256), 10, 10) == pytest.approx(8)
    assert bits_per_byte(math.log(256), 10, 40) == pytest.approx(2), "one token in four bytes"
    assert math.isfinite(bits_per_byte(1.0, 10, 0)), "answers of special tokens alone"
