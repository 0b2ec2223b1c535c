"""The prompt of the sample that ends a training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from trainer.data.batches import Tokens
from trainer.tasks.pretrain import PROMPT_TOKENS, beginning


@pytest.mark.parametrize("count", [5, 40])
def test_without_a_prompt_the_sample_begins_as_the_text_that_was_held_out(count: int, tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(count)]
    encoding = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="word0"))
    encoding.pre_tokenizer = pre_tokenizers.Whitespace()
    shard = tmp_path / "validation.bin"
    np.arange(count, dtype=np.uint16).tofile(shard)
    assert beginning(Tokens([shard]), encoding) == " ".join(words[:PROMPT_TOKENS])
