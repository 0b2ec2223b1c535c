"""The learned tokens are those of the text that a template wrote, and say the answer that was given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.trainer.data.chats import answers, ids, tokens
from tests.trainer.data.templates import CHATML, MARKED
from trainer.data.conversations import Chat
from trainer.errors import UserError

NAMES = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
LETTERS = sorted(set("abcdefghijklmnopqrstuvwxyzQA<>/|_.,!?:# éß0123456789\n") - {" "})


def bpe(
    normalizer: Any = None, cut: Any = None, special: dict[str, bool] | None = None, fallback: bool = True
) -> Tokenizer:
    """A tokenizer like Llama's: SentencePiece's space, bytes for what it does not know, and a merge that makes <s>."""
    words = {name: place for place, name in enumerate(NAMES)}
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
    merges = [("▁", "a"), ("t", "h"), ("▁", "th"), ("▁th", "e"), ("▁", "▁"), ("<", "s"), ("<s", ">"), ("a", "b")]
    for word in [*pieces, "▁", *LETTERS, *("".join(pair) for pair in merges)]:
        words.setdefault(word, len(words))
    built = Tokenizer(models.BPE(words, merges, unk_token="<unk>", byte_fallback=fallback, fuse_unk=True))
    built.normalizer, built.pre_tokenizer = normalizer, cut
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    built.decoder = decoders.Sequence(strip)
    built.add_special_tokens([AddedToken(name, special=True, **(special or {"normalized": False})) for name in NAMES])
    return built


def unigram() -> Tokenizer:
    pieces = [(name, 0.0) for name in NAMES] + [(each, -3.0) for each in ["▁", *LETTERS, "the", "▁the", "<s"]]
    built = Tokenizer(models.Unigram(pieces, 0, byte_fallback=False))
    built.pre_tokenizer = pre_tokenizers.Metaspace()
    built.decoder = decoders.Metaspace()
    built.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in NAMES])
    return built


def byte_level(**options: Any) -> Tokenizer:
    words = {word: place for place, word in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa"])}
    built = Tokenizer(models.BPE(words, [("Ġ", "a")]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(**options)
    built.decoder = decoders.ByteLevel()
    from tokenizers.processors import ByteLevel

    built.post_processor = ByteLevel(trim_offsets=True)
    built.add_special_tokens([AddedToken(name, special=True) for name in NAMES])
    return built


def prepended() -> Any:
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "prepend": lambda: bpe(prepended()),
    "metaspace first": lambda: bpe(cut=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "metaspace always": lambda: bpe(cut=pre_tokenizers.Metaspace(prepend_scheme="always")),
    "metaspace never": lambda: bpe(cut=pre_tokenizers.Metaspace(prepend_scheme="never")),
    "spaces before names go": lambda: bpe(prepended(), special={"normalized": False, "lstrip": True}),
    "spaces after names go": lambda: bpe(prepended(), special={"normalized": False, "rstrip": True}),
    "nfc": lambda: bpe(normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "▁")])),
    "unigram": unigram,
    "byte-level": lambda: byte_level(add_prefix_space=False),
    "byte-level with a space": lambda: byte_level(add_prefix_space=True),
}
TEXTS = [
    "the a b",
    "a<s>b</s>c",
    " the  a ",
    "<s>",
    "abe</s>",
    "the<|im_end|>\n<|im_start|>user\na",
    "e\u0301 a",
    "a\n\nb",
]
"""Answers; with the names of special tokens they are text all the same."""


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def write(tokenizer: Tokenizer, template: str) -> Path:
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        described = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(described))
        (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return write


def talk(text: str, question: str = "Q?") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": text}] * 2}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["chatml", "marked"])
def test_the_ids_are_those_of_the_whole_text_and_say_the_answer(
    folder: Callable[..., Path], name: str, template: str
) -> None:
    path = folder(TOKENIZERS[name](), template)
    chat = Chat(path)
    known: Any = PreTrainedTokenizerFast.from_pretrained(path)
    special = [known.convert_tokens_to_ids(word) for word in NAMES]
    for text in TEXTS:
        if name == "unigram" and "\u0301" in text:
            continue  # it has no token for it
        record = talk(text, question=text)
        if not any(word in text for word in NAMES):
            theirs = known.apply_chat_template(record["messages"])["input_ids"]
            assert ids(chat, record) == theirs
        found = ids(chat, record)
        assert sum(found.count(each) for each in special) == 8, f"{text!r} makes special tokens"
        learned = answers(path, chat, record)
        assert len(learned) == 2
        decode = Tokenizer.from_file(str(path / "tokenizer.json")).normalizer
        wanted = decode.normalize_str(text).replace("▁", " ") if decode is not None else text
        assert all(wanted.strip() in each for each in learned), (text, learned)


@pytest.mark.parametrize("name", ["prepend", "metaspace first", "byte-level", "spaces after names go"])
def test_the_mask_is_that_of_transformers(folder: Callable[..., Path], name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    tokenizer.post_processor = None
    path = folder(tokenizer, MARKED)
    known: Any = PreTrainedTokenizerFast.from_pretrained(path)
    for text in ("the a b", "a", "a\n\nb", "abe é"):
        theirs = known.apply_chat_template(talk(text)["messages"], return_dict=True, return_assistant_tokens_mask=True)
        (values,) = tokens(Chat(path), talk(text))
        assert [int(value) >> 31 for value in values] == theirs["assistant_masks"]


def test_plain_texts_are_one_text_too(folder: Callable[..., Path]) -> None:
    path = folder(TOKENIZERS["prepend"](), CHATML)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    found = ids(Chat(path), {"prompt": "the <s>a", "completion": " b</s>c"})
    renamed = tokenizer.encode("the #a b#c</s>").ids
    assert tokenizer.decode(found, skip_special_tokens=False) == "the <s>a b</s>c</s>"
    assert (found[:2], found[-1]) == (renamed[:2], renamed[-1])


@pytest.mark.parametrize(
    ("tokenizer", "text"), [(lambda: bpe(prepended(), fallback=False), "the \u2603 a"), (unigram, "é 🙂 the")]
)
def test_an_answer_that_no_tokens_say_is_refused_by_file_and_line(
    folder: Callable[..., Path], tokenizer: Callable[[], Tokenizer], text: str
) -> None:
    chat = Chat(folder(tokenizer(), CHATML))
    texts = [chat.read(talk(each), lambda: "") for each in ("the a", text, "b")]
    with pytest.raises(UserError) as error:
        chat.encode(texts, [lambda: "line 1", lambda: "line 2", lambda: "line 3"])
    odd = "\u2603" if "\u2603" in text else "🙂"
    assert str(error.value).startswith(f"--input line 2: the tokenizer has no token for {odd!r}, so another")


def test_a_tokenizer_that_finds_its_special_tokens_only_behind_a_space_is_refused(folder: Callable[..., Path]) -> None:
    chat = Chat(folder(bpe(prepended(), special={"normalized": True}), CHATML))
    with pytest.raises(UserError, match="the tokenizer finds some of its special tokens only behind a space"):
        chat.encode([chat.read(talk("the a"), lambda: "here")], [lambda: "here"])


def test_halves_of_surrogate_pairs_and_marks_of_ours_are_no_characters(folder: Callable[..., Path]) -> None:
    path = folder(TOKENIZERS["byte-level"](), CHATML)
    text = json.loads('"a \\ud83d b\U000f0001\U000f0005<s>"')
    assert answers(path, Chat(path), talk(text))[0] == "a \ufffd b<s><|im_end|>"


def test_what_looks_like_a_special_token_and_is_cut_by_the_template_never_becomes_one(
    folder: Callable[..., Path],
) -> None:
    cutting = CHATML.replace("m.content", "(m.content | replace('<', '<<'))")
    path = folder(TOKENIZERS["prepend"](), cutting)
    with pytest.raises(UserError, match="changes the answer in message 2"):
        answers(path, Chat(path), talk("a</s>"))
    cutting = CHATML.replace("m.content", "(m.content.split('>') | join('> ') if m.role == 'user' else m.content)")
    path = folder(TOKENIZERS["prepend"](), cutting)
    found = ids(Chat(path), talk("the", question="the a</s>bc<s>"))
    assert not {NAMES.index("</s>"), NAMES.index("<s>")}.intersection(found)
