"""Text has the ids of `tokenizers`, whichever library encodes it."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable
from itertools import chain, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.implementations import ByteLevelBPETokenizer

from tests.trainer.data.test_loss_mask import TOKENIZERS, bpe, byte_level, prepended
from trainer import prepare
from trainer.data import documents, encoding, shards
from trainer.data.batches import open_dataset
from trainer.data.encoding import CUTTINGS, PASSAGE, Encoder, unfit
from trainer.data.sources import SAMPLE
from trainer.data.tokenizer import load_tokenizer

ByteLevel, Split = pre_tokenizers.ByteLevel, pre_tokenizers.Split


def trained() -> Tokenizer:
    built = ByteLevelBPETokenizer()
    built.train_from_iterator(iter(SAMPLE.read_text("utf-8")[:60_000].splitlines()), 600, show_progress=False)
    return Tokenizer.from_str(built.to_str())


WORDS = trained().to_str()


def cut_by(*cutters: Any, normalizer: Any = None, **model: Any) -> Tokenizer:
    """A trained byte-level tokenizer with another cutting, and other options of the model."""
    parts = json.loads(WORDS)
    parts["model"] |= model
    built = Tokenizer.from_str(json.dumps(parts))
    if cutters:
        built.pre_tokenizer = cutters[0] if len(cutters) == 1 else pre_tokenizers.Sequence(list(cutters))
    if normalizer is not None:
        built.normalizer = normalizer
    return built


def cutting(name: str, **options: Any) -> Tokenizer:
    split = Split(Regex(CUTTINGS[name]), "isolated")
    return cut_by(split, ByteLevel(add_prefix_space=False, use_regex=False), **options)


def added(*tokens: AddedToken, to: Callable[[], Tokenizer] = cut_by) -> Tokenizer:
    built = to()
    built.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    built.add_tokens(list(tokens))
    return built


def ties() -> Tokenizer:
    """Merges of which several make the same word: their order is not that of the ids."""
    built = byte_level(add_prefix_space=False)
    parts = json.loads(built.to_str())
    letters = "".join(sorted(ByteLevel.alphabet()))
    words = [*letters, "aa", "aaa", "aaaa"]
    merges = [["a", "a"], ["aa", "a"], ["a", "aa"], ["aa", "aa"], ["aaa", "a"], ["a", "aaa"]]
    parts["model"] |= {"vocab": {word: place for place, word in enumerate(words)}, "merges": merges}
    return Tokenizer.from_str(json.dumps(parts | {"added_tokens": []}))


def own_order() -> Tokenizer:
    """Ids in another order than the merges, as RoBERTa's."""
    parts = json.loads(WORDS)
    size = len(parts["model"]["vocab"])
    parts["model"]["vocab"] = {word: size - 1 - id for word, id in parts["model"]["vocab"].items()}
    return Tokenizer.from_str(json.dumps(parts | {"added_tokens": []}))


def gemma() -> Tokenizer:
    built = bpe(normalizers.Replace(" ", "▁"), Split(" ", "merged_with_previous"))
    built.add_tokens([AddedToken(word, normalized=False) for word in ("\n\n", "▁▁", "<table>")])
    return built


TAKEN: dict[str, Callable[[], Tokenizer]] = {
    name: make for name, make in TOKENIZERS.items() if name not in ("nfc", "unigram")
} | {
    "trained": trained,
    "ties": ties,
    "own order": own_order,
    "gemma": gemma,
    **{name: lambda name=name: cutting(name) for name in CUTTINGS},
    "nfc": lambda: cutting("Qwen2", normalizer=normalizers.NFC()),
    "nfc in a sequence": lambda: cut_by(normalizer=normalizers.Sequence([normalizers.NFC()])),
    "whole words before merges": lambda: cutting("Llama 3", ignore_merges=True),
    "an unknown token that never comes": lambda: cut_by(unk_token="!"),
    "added tokens": lambda: added(
        *(AddedToken(word, normalized=False) for word in ("<tool_call>", "  ")), to=lambda: cutting("Qwen2")
    ),
    "normalized added tokens": lambda: added(AddedToken("<tool_call>")),
    "added tokens with a space before": lambda: added(
        AddedToken("<tool_call>"), to=lambda: cut_by(ByteLevel(add_prefix_space=True))
    ),
    "prepend with added tokens": lambda: added(
        AddedToken("<tool_call>", normalized=False), to=lambda: bpe(prepended())
    ),
    "metaspace with added tokens": lambda: added(
        AddedToken("<tool_call>"), to=lambda: bpe(cut=pre_tokenizers.Metaspace(prepend_scheme="first"))
    ),
}
"""gigatoken takes these."""
REFUSED: dict[str, Callable[[], Tokenizer]] = {
    "unigram": TOKENIZERS["unigram"],
    "nfc and a space": TOKENIZERS["nfc"],
    "lower case": lambda: cut_by(normalizer=normalizers.Lowercase()),
    "digits": lambda: cut_by(pre_tokenizers.Digits(individual_digits=True), ByteLevel(add_prefix_space=False)),
    "no cutting": lambda: cut_by(ByteLevel(add_prefix_space=False, use_regex=False)),
    "the ends of words": lambda: cut_by(end_of_word_suffix="e"),
    "without all bytes": lambda: cut_by(vocab={"a": 0, "b": 1}, merges=[]),
    "a token that is a word alone": lambda: added(AddedToken("the", single_word=True)),
    "a token in normalized text": lambda: added(
        AddedToken("<tool_call>"), to=lambda: cut_by(normalizer=normalizers.NFC())
    ),
    "a token inside a special one": lambda: added(AddedToken("im_end", normalized=False)),
    "words without the fallback": lambda: bpe(prepended(), fallback=False),
    "metaspace of another sign": lambda: bpe(cut=pre_tokenizers.Metaspace("_")),
}
"""These `tokenizers` encodes."""
PIECES = st.one_of(
    st.text(max_size=6),
    st.text(alphabet="ab e\n", max_size=12),
    st.text(alphabet=" \t\n\r\x0b\x0c\x1c\x85\xa0\u2003\u200b\u3000'▁", max_size=5),
    st.sampled_from(
        [
            *("I'll", "don't", "'S", " the", "Zürich", "日本", "½", "٣", "12345", "e\u0301", "🙂", "🄀", "𝔘", "﷽", "Ab"),
            *(
                "<|endoftext|>",
                "<|im_end|>",
                "a<|im_end|>",
                "<tool_call>",
                " <tool_call> a",
                "</s>",
                "<table>",
                "<0x41>",
            ),
            *("a" * 9, "x" * 60, "▁▁▁", "HTTPServer's/x\n/"),
        ]
    ),
)
TEXT = st.lists(PIECES, max_size=12).map("".join)
Both = tuple[Encoder, Encoder]


@pytest.fixture(scope="module")
def encoders() -> dict[str, Both]:
    made = {name: (make(), make()) for name, make in (TAKEN | REFUSED).items()} | {
        "gpt2": (load_tokenizer("gpt2"), load_tokenizer("gpt2"))
    }
    return {name: (Encoder(one, np.uint32), Encoder(two, np.uint32, True)) for name, (one, two) in made.items()}


@pytest.mark.parametrize("name", [*TAKEN, *REFUSED])
def test_gigatoken_is_given_a_tokenizer_only_where_it_honours_every_part(name: str) -> None:
    assert bool(unfit(json.loads((TAKEN | REFUSED)[name]().to_str()))) == (name in REFUSED)


@hypothesis_settings(max_examples=50)
@given(texts=st.lists(TEXT, min_size=1, max_size=4))
def test_any_text_has_the_ids_of_tokenizers(encoders: dict[str, Both], texts: list[str]) -> None:
    later = [number % 2 == 1 for number in range(len(texts))]
    for name in [*TAKEN, "gpt2"]:  # elsewhere both are `tokenizers`
        one, two = encoders[name]
        assert one(texts, later) == two(texts, later), name


@pytest.mark.parametrize("name", CUTTINGS)
def test_every_character_is_cut_as_tokenizers_cuts_it(encoders: dict[str, Both], name: str) -> None:
    """Of the long alphabets a few, of characters that nobody has assigned none."""
    some = [*range(0x3400, 0xD7A4, 97), *range(0x12000, 0x1B300, 7), *range(0x20000, 0x32400, 997)]
    whole = [(0, 0x3400), (0xA4D0, 0xAC00), (0xD7A4, 0xD800), (0xF900, 0x12000), (0x1B300, 0x20000)]
    points = [*chain(*(range(*each) for each in whole)), *some]
    points = [point for point in points if unicodedata.category(chr(point)) != "Cn"]
    spelled = [f"a{chr(point)}1{chr(point)} {chr(point)}!" for point in points]
    texts = ["".join(spelled[at : at + 512]) for at in range(0, len(points), 512)]
    one, two = encoders[name]
    assert one(texts) == two(texts)


def prose(seed: int, size: int) -> str:
    """Text with each of the places where it might be cut, and with stretches without any."""
    rng = random.Random(seed)
    words = [
        "the a",
        "b abe",
        "日本語",
        "Straße",
        "don't",
        "x" * 300,
        "1234",
        "<s>",
        ".",
        "—",
        "e\u0301t\u00e9",
        "<tool_call>",
    ]
    between = [" ", "  ", ", ", ".\n", "\n\n", "\n\n\n", "\r\n", ".\n\n", "，", " \n", ""]
    return "".join(rng.choice(words) + rng.choice(between) for _ in range(size))


@pytest.mark.parametrize("name", [*TAKEN, *REFUSED])
def test_a_long_text_has_the_ids_of_the_whole_though_it_is_encoded_in_pieces(
    encoders: dict[str, Both], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [prose(seed, 400) for seed in range(6)] + [SAMPLE.read_text("utf-8")[:12_000]]
    fast, exact = encoders[name]
    expected = exact(texts)
    cuts = []
    monkeypatch.setattr(encoding, "PASSAGE", 100)
    monkeypatch.setattr(encoding, "LONGEST", 600)
    place = encoding.cut
    monkeypatch.setattr(encoding, "cut", lambda *given: cuts.append(place(*given)) or cuts[-1])
    for way in (fast, exact) if name in TAKEN else (exact,):
        cuts.clear()
        assert way(texts) == expected
        assert len([each for each in cuts if each is not None]) > 5


@pytest.mark.parametrize("text", ["x" * 5000, "\n" * 5000])
def test_a_text_without_a_place_to_cut_ends(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(encoding, "PASSAGE", 100)
    monkeypatch.setattr(encoding, "LONGEST", 600)
    monkeypatch.setattr(encoding, "ENDLESS", 2000)
    tokenizer = cutting("Llama 3")
    ids = np.frombuffer(Encoder(tokenizer, np.uint16)([text])[0], np.uint16).tolist()
    assert tokenizer.decode(ids) == text


def test_memory_is_bounded_where_every_word_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "GROWTH", 8 << 20)
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=8)) for _ in range(200_000)]
    batches = [[" ".join(words[at : at + 500])] for at in range(0, len(words), 500)]
    encoder = Encoder(trained(), np.uint16)
    before = encoding.resident()
    most = 0
    for batch in batches:
        encoder(batch)
        most = max(most, encoding.resident() - before)
    assert most < 16 << 20


class _Wrong:
    """gigatoken with a fault in texts that hold a word."""

    def __init__(self, words: str) -> None:
        self._right = load(words)

    def encode(self, text: str) -> np.ndarray:
        ids = self._right.encode(text)
        return ids[::-1] if "fault" in text else ids


load = encoding.load_hf_json


@pytest.mark.parametrize(
    ("at", "told"), [(None, ""), (0, "texts.jsonl, line 1'"), (40, "texts.jsonl, line 41'"), (41, "")]
)
def test_one_difference_begins_the_dataset_again_with_tokenizers_and_names_the_document(
    tmp_path: Path,
    tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    at: int | None,
    told: str,
) -> None:
    """One text in forty is looked at here."""
    source = tmp_path / "texts.jsonl"
    lines = [{"text": f"Ray {number} of light {'fault' if number == at else ''}."} for number in range(100)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = (str(tokenizer), 0.2)
    prepare.prepare([str(source)], tmp_path / "right", *options)
    monkeypatch.setattr(encoding, "load_hf_json", _Wrong)
    monkeypatch.setattr(encoding, "SAMPLED", 40)
    capsys.readouterr()
    prepare.prepare([str(source)], tmp_path / "data", *options)
    said = capsys.readouterr().out
    assert "event=encoder library=gigatoken" in said
    assert ("library=tokenizers because_of='gigatoken gives other ids in" in said) == bool(told)
    assert told in said
    found, right = (open_dataset(str(tmp_path / name)).train for name in ("data", "right"))
    same = found.read(0, len(found)).tolist() == right.read(0, len(right)).tolist()
    assert same == (at != 41)


def test_what_gigatoken_encodes_wrongly_is_not_given_to_it_after_an_interruption(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The document that was looked at is recorded by then; the fault in the second file would go in unseen."""
    for name, first in (("a", "fault"), ("b", "light")):
        lines = [{"text": f"Ray {number} of {first if number == 0 else 'fault'}."} for number in range(30)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], tmp_path / "data", str(tokenizer), 0.2)
    monkeypatch.setattr(documents, "PIECE_BYTES", 900)  # each file is a piece
    monkeypatch.setattr(encoding, "load_hf_json", _Wrong)
    made = shards.Writer.write

    def interrupted(self: Any, piece: documents.Piece) -> Any:
        if self._settings.exact and piece.number == 1:
            raise KeyboardInterrupt
        return made(self, piece)

    monkeypatch.setattr(shards.Writer, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare.prepare(*options, workers=1)
    monkeypatch.setattr(shards.Writer, "write", made)
    capsys.readouterr()
    prepare.prepare(*options, workers=1)
    assert "event=encoder library=tokenizers because_of='gigatoken gives other ids in " in capsys.readouterr().out
    monkeypatch.setattr(encoding, "load_hf_json", load)
    prepare.prepare(options[0], tmp_path / "right", *options[2:])
    found, right = (open_dataset(str(tmp_path / name)).train for name in ("data", "right"))
    assert found.read(0, len(found)).tolist() == right.read(0, len(right)).tolist()


@pytest.mark.parametrize("name", ["prepend", "metaspace first", "byte-level with a space", "Qwen2"])
def test_a_file_has_the_tokens_of_its_whole_text_though_it_is_encoded_in_passages(tmp_path: Path, name: str) -> None:
    words = tmp_path / "words"
    words.mkdir()
    built = (TOKENIZERS | {"Qwen2": lambda: cutting("Qwen2")})[name]()
    built.add_special_tokens(["</s>"])
    built.save(str(words / "tokenizer.json"))
    (words / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    tokenizer = Tokenizer.from_file(str(words / "tokenizer.json"))
    expected = []
    for number in range(4):
        text = "\n\n".join("the a b abe. " * (20 + number) for _ in range(60)).strip()
        assert len(text) > 2 * PASSAGE
        (tmp_path / f"{number}.txt").write_text(text)
        expected.append([*tokenizer.encode(text).ids, tokenizer.token_to_id("</s>")])
    prepare.prepare([str(tmp_path / "*.txt")], tmp_path / "data", str(words), fraction=0.5)
    dataset = open_dataset(str(tmp_path / "data"))
    found = [part.read(0, len(part)).tolist() for part in (dataset.train, dataset.validation)]
    assert list(chain(*found)) in [list(chain(*order)) for order in permutations(expected)]


@pytest.mark.parametrize(
    ("kind", "chance"), [("byte-level", {"dropout": 0.5}), ("unigram", {"alpha": 0.1, "nbest_size": 64})]
)
def test_chance_is_taken_out_of_a_tokenizer(tmp_path: Path, kind: str, chance: dict[str, float]) -> None:
    built, plain = (TOKENIZERS[kind]() for _ in range(2))
    for key, value in chance.items():
        setattr(built.model, key, value)
    built.save(str(tmp_path / "tokenizer.json"))
    found = load_tokenizer(str(tmp_path))
    for _ in range(5):
        assert found.encode("the a the a a a the ab" * 9).ids == plain.encode("the a the a a a the ab" * 9).ids
