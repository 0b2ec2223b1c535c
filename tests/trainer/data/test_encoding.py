"""The fast way to encode gives the ids of the tokenizer, for any text."""

from __future__ import annotations

from itertools import chain, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from tests.trainer.data.test_answers import TOKENIZERS
from trainer import prepare
from trainer.data.batches import open_dataset
from trainer.data.documents import PASSAGE
from trainer.data.encoding import Encode, by_words, encoder, plain, splits_like_gpt2
from trainer.data.sources import SAMPLE
from trainer.data.tokenizer import load_tokenizer

Both = tuple[Encode, Encode]


@pytest.fixture(scope="module")
def both() -> Both:
    tokenizer = load_tokenizer("gpt2")
    tokenizer.encode_special_tokens = True
    return by_words(tokenizer, np.uint16), plain(tokenizer, np.uint16)


pieces = st.one_of(
    st.text(max_size=6),
    st.text(alphabet=" \t\n\r\x0b\x0c\x1c\x85\xa0\u2003\u200b\u3000'", max_size=5),
    st.sampled_from(
        ["I'll", "don't", "'S", " the", "Zürich", "日本", "½", "٣", "🙂", "🄀", "𝔘", "﷽", "<|endoftext|>", "x" * 60]
    ),
)


@hypothesis_settings(max_examples=400)
@given(text=st.lists(pieces, max_size=12).map("".join))
def test_any_text_has_the_tokenizers_own_ids(both: Both, text: str) -> None:
    fast, slow = both
    assert fast([text]) == slow([text])


def test_every_character_of_the_basic_plane_is_cut_as_the_tokenizer_cuts_it(both: Both) -> None:
    fast, slow = both
    points = [point for point in range(0x10000) if not 0xD800 <= point < 0xE000]
    texts = [
        "".join(f"a{chr(point)}1{chr(point)} {chr(point)}!" for point in points[at : at + 512])
        for at in range(0, len(points), 512)
    ]
    assert fast(texts) == slow(texts)


def test_real_text_and_its_second_reading_agree(both: Both) -> None:
    fast, slow = both
    texts = SAMPLE.read_text("utf-8")[:200_000].split("\n\n")
    expected = slow(texts)
    assert fast(texts) == expected
    assert fast(texts) == expected  # now from the cached words


def test_text_that_looks_like_a_special_token_is_text() -> None:
    tokenizer = load_tokenizer("gpt2")
    ids = np.frombuffer(encoder(tokenizer, np.uint16)(["a<|endoftext|>b"])[0], np.uint16)
    assert 50256 not in ids
    assert tokenizer.decode(ids.tolist()) == "a<|endoftext|>b"


def test_a_tokenizer_of_another_kind_is_used_as_it_is(tokenizer: Path) -> None:
    other = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    assert splits_like_gpt2(other)
    other.normalizer = normalizers.Lowercase()
    assert not splits_like_gpt2(other)
    assert encoder(other, np.uint16)(["SHOUT out"]) == encoder(other, np.uint16)(["shout out"])


@pytest.mark.parametrize("name", ["prepend", "metaspace first", "metaspace always", "nfc", "byte-level with a space"])
def test_a_file_has_the_tokens_of_its_whole_text_though_it_is_encoded_in_passages(tmp_path: Path, name: str) -> None:
    words = tmp_path / "words"
    words.mkdir()
    TOKENIZERS[name]().save(str(words / "tokenizer.json"))
    (words / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    tokenizer = Tokenizer.from_file(str(words / "tokenizer.json"))
    expected = []
    for number in range(4):
        text = "\n\n".join("the a b abe " * (20 + number) for _ in range(60)).strip()
        assert len(text) > 2 * PASSAGE
        (tmp_path / f"{number}.txt").write_text(text)
        expected.append([*tokenizer.encode(text).ids, tokenizer.token_to_id("</s>")])
    prepare.prepare([str(tmp_path / "*.txt")], tmp_path / "data", str(words), fraction=0.5, shard_tokens=10**6)
    dataset = open_dataset(str(tmp_path / "data"))
    found = [part.read(0, len(part)).tolist() for part in (dataset.train, dataset.validation)]
    assert list(chain(*found)) in [list(chain(*order)) for order in permutations(expected)]
