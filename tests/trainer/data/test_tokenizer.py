"""Any model's tokenizer: its own end of text, its chat template and its special tokens come with the dataset."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tests.trainer.data.test_loss_mask import bpe, prepended
from trainer import prepare
from trainer.config import schema
from trainer.data.batches import open_dataset
from trainer.data.tokenizer import end_of_text, load_tokenizer, save_tokenizer
from trainer.errors import UserError
from trainer.tasks import pretrain

TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"


@pytest.fixture
def folder(tokenizer: Path, tmp_path: Path) -> Path:
    """A tokenizer like a chat model's: special tokens, a padding token and a template."""
    path = tmp_path / "model"
    shutil.copytree(tokenizer, path)
    built = Tokenizer.from_file(str(path / "tokenizer.json"))
    built.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    built.save(str(path / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
    }
    (path / "tokenizer_config.json").write_text(json.dumps(described | {"pad_token": "<|endoftext|>"}))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


def test_special_tokens_and_chat_template_come_with_the_dataset_and_the_model(
    folder: Path, text: Path, tmp_path: Path
) -> None:
    prepare.prepare([str(text)], tmp_path / "data", str(folder), fraction=0.2)
    dataset = open_dataset(str(tmp_path / "data"))
    assert (dataset.vocabulary, dataset.end_of_text) == (502, 501)
    assert 501 in dataset.train.read(0, len(dataset.train))
    (tmp_path / "saved").mkdir()
    save_tokenizer(dataset.directory / "tokenizer.json", tmp_path / "saved", positions=64, end=dataset.end_of_text)
    saved: Any = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert (saved.eos_token_id, saved.pad_token_id) == (501, 0)
    assert saved.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "<|im_start|>Hi<|im_end|>"


def test_another_chat_template_or_end_of_text_makes_another_dataset(
    folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def state() -> str:
        prepare.prepare([str(text)], tmp_path / "data", str(folder), fraction=0.2)
        return capsys.readouterr().out.split("state=")[1].split()[0]

    assert [state(), state()] == ["written", "found"]
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    assert state() == "written"
    assert open_dataset(str(tmp_path / "data")).end_of_text == 0
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (folder / name).unlink()
    assert state() == "written"
    assert not (tmp_path / "data" / "chat_template.jinja").exists()


def test_what_a_tokenizer_was_last_asked_to_cut_or_fill_up_is_not_done_to_the_data(folder: Path) -> None:
    built = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "word " * 60
    size = len(built.encode(text).ids)
    built.enable_truncation(8)
    built.enable_padding(length=1000)
    built.save(str(folder / "tokenizer.json"))
    assert size > 60
    assert len(load_tokenizer(str(folder)).encode(text).ids) == size


@pytest.mark.parametrize(
    ("file", "content", "end"),
    [
        ("special_tokens_map.json", {"eos_token": "<|im_start|>"}, "<|im_start|>"),
        ("generation_config.json", {"eos_token_id": [501, 0]}, "<|im_end|>"),
        ("config.json", {"eos_token_id": 500}, "<|im_start|>"),
        ("config.json", {"eos_token_id": 10_000}, "<|endoftext|>"),
        ("tokenizer_config.json", {"eos_token": "<|elsewhere|>"}, "<|endoftext|>"),
        ("tokenizer_config.json", {"eos_token": None}, "<|endoftext|>"),
    ],
)
def test_the_end_of_text_is_what_the_files_of_the_model_say(
    folder: Path, file: str, content: dict[str, Any], end: str
) -> None:
    (folder / "tokenizer_config.json").unlink()
    (folder / file).write_text(json.dumps(content))
    built = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert built.id_to_token(end_of_text(built, folder)) == end


def test_a_tokenizer_without_an_end_of_text_is_told() -> None:
    from tokenizers.models import WordLevel

    with pytest.raises(UserError, match=r"no end-of-text token; name it as eos_token in tokenizer_config\.json"):
        end_of_text(Tokenizer(WordLevel({"a": 0}, "a")))


def test_a_tokenizer_that_begins_each_text_with_a_word_begins_each_document_with_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Llama, Mistral and Gemma have learned only texts that begin so."""
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": f"Ray {number} of light."}) + "\n" for number in range(40)))

    def prepared() -> list[list[int]]:
        prepare.prepare([str(source)], tmp_path / "data", str(folder), fraction=0.2)
        train = open_dataset(str(tmp_path / "data")).train
        ids = train.read(0, len(train)).tolist()
        ends = [place + 1 for place, each in enumerate(ids) if each == 501]
        return [ids[first:last] for first, last in pairwise(ends)]

    assert all(document[0] not in (500, 501) for document in prepared())
    built = Tokenizer.from_file(str(folder / "tokenizer.json"))
    template = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 500)])
    built.post_processor = template
    shutil.rmtree(tmp_path / "data")
    built.save(str(folder / "tokenizer.json"))
    documents = prepared()
    assert len(documents) > 20
    assert all(document[0] == 500 and 500 not in document[1:] for document in documents)
    capsys.readouterr()
    prepared()
    assert "state=found" in capsys.readouterr().out


@pytest.mark.parametrize("spec", ["folder", "train:300"])
def test_a_tokenizer_that_is_lost_comes_back(folder: Path, text: Path, tmp_path: Path, spec: str) -> None:
    spec = str(folder) if spec == "folder" else spec
    file = tmp_path / "data" / "tokenizer.json"
    prepare.prepare([str(text)], file.parent, spec, fraction=0.2)
    before = file.read_bytes()
    file.unlink()
    prepare.prepare([str(text)], file.parent, spec, fraction=0.2)
    assert file.read_bytes() == before


def test_more_than_65536_words_take_four_bytes_each(tokenizer: Path, tmp_path: Path) -> None:
    parts = json.loads((tokenizer / "tokenizer.json").read_text())
    parts["model"]["vocab"] |= {f"word {number}": 500 + number for number in range(70_000)}
    large = Tokenizer.from_str(json.dumps(parts))
    large.add_tokens(["<word>"])
    large.save(str(tmp_path / "tokenizer.json"))
    text = tmp_path / "text.txt"
    text.write_text("Light <word> and rays.\n\n" * 600)
    prepare.prepare([str(text)], tmp_path / "data", str(tmp_path), fraction=0.3)
    dataset = open_dataset(str(tmp_path / "data"))
    ids = dataset.train.read(0, len(dataset.train))
    assert ids.dtype == np.uint32
    assert ids.max() == 500 + 70_000
    assert "Light <word> and rays." in large.decode(ids.tolist())


ASKED = "I'll be 1234 at 12:30,  don't\n\nyou? <|im_start|>user Ünï\u0301 日本語"
OLD: dict[str, dict[str, Any]] = {
    "Qwen2Tokenizer": {},
    "GPT2Tokenizer with a space": {"add_prefix_space": True},
    "CLIPTokenizer": {},
}


@pytest.mark.parametrize("kind", OLD)
def test_a_tokenizer_of_the_old_format_is_built_by_its_class_as_transformers_builds_it(
    tokenizer: Path, text: Path, tmp_path: Path, kind: str
) -> None:
    """Its files are those of GPT-2's; only the class says how text is cut into words."""
    folder = tmp_path / "model"
    folder.mkdir()
    model = json.loads((tokenizer / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (folder / "added_tokens.json").write_text(json.dumps({"<|im_start|>": 500, "<|im_end|>": 501}))
    described = {"tokenizer_class": kind.split()[0], "eos_token": "<|im_end|>", **OLD[kind]}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    prepare.prepare([str(text)], tmp_path / "data", str(folder), fraction=0.2)
    ours = Tokenizer.from_file(str(tmp_path / "data" / "tokenizer.json"))
    expected = theirs(ASKED, add_special_tokens=False)["input_ids"]
    assert ours.encode(ASKED, add_special_tokens=False).ids == expected
    again: Any = AutoTokenizer.from_pretrained(tmp_path / "data")
    assert again(ASKED, add_special_tokens=False)["input_ids"] == expected
    for name in ("tokenizer_config.json", "added_tokens.json"):
        (folder / name).unlink()
    with pytest.raises(UserError, match="do not say how text is cut into words; give a folder with"):
        prepare.prepare([str(text)], tmp_path / "other", str(folder), fraction=0.2)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4" * 64 + "\nsize 1048576\n"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.json": '{"model_type": "gpt2"}'}, "holds neither tokenizer.json nor vocab.json with merges.txt"),
        ({"tokenizer_config.json": '{"tokenizer_class": "GPT2Tokenizer"}'}, "holds neither tokenizer.json nor vocab"),
        ({"tokenizer.json": POINTER}, "tokenizer.json: is a Git LFS pointer, not the file itself; fetch that with git"),
        ({"tokenizer.json": "{}", "chat_template.jinja": POINTER}, "chat_template.jinja: is a Git LFS pointer"),
    ],
)
def test_a_folder_without_the_files_of_a_tokenizer_is_one_line(
    tmp_path: Path, files: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    arguments = ["--input", "sample", "--output", str(tmp_path / "out"), "--tokenizer", str(tmp_path)]
    assert prepare.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


CHANGES: dict[str, dict[str, Any]] = {
    "a class with a space before each text": {"tokenizer_class": "LlamaTokenizer", "legacy": True},
    "a beginning": {"add_bos_token": True},
    "further tokens": {"added_tokens_decoder": {"700": {"content": "<|x|>", "special": True}}},
    "a further padding": {"pad_token": {"__type": "AddedToken", "content": "<|x|>"}},
    "further tokens in added_tokens.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "a class that nobody has": {"tokenizer_class": "SomebodysTokenizer"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_transformers_makes_of_a_tokenizer_json_is_what_reads_the_data(
    text: Path, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    bpe(prepended()).save(str(folder / "tokenizer.json"))
    described = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **CHANGES[change]}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    if change.endswith(".json"):
        (folder / "added_tokens.json").write_text(json.dumps({"<|x|>": bpe(prepended()).get_vocab_size()}))
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    prepare.prepare([str(text)], tmp_path / "data", str(folder), fraction=0.2)
    ours = Tokenizer.from_file(str(tmp_path / "data" / "tokenizer.json"))
    for given in ("the a</s>the b <|im_start|>the", "[the] a <|x|>the"):
        assert ours.encode(given).ids == theirs(given)["input_ids"]


def test_a_model_needs_rows_for_the_tokens_of_the_data_alone(tokenizer: Path, tmp_path: Path) -> None:
    """Gemma 3 1B's tokenizer has one token more than the model has rows."""
    folder = tmp_path / "words"
    folder.mkdir()
    built = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    built.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    built.add_tokens(["<picture>"])  # 502: the model has no row for it
    built.save(str(folder / "tokenizer.json"))
    source = tmp_path / "data.jsonl"
    source.write_text("".join(json.dumps({"text": f"Ray {number}."}) + "\n" for number in range(40)))
    prepare.prepare([str(source)], tmp_path / "data", str(folder), 0.2)
    dataset = open_dataset(str(tmp_path / "data"))
    assert dataset.largest < 502 < dataset.vocabulary
    net = GPT2LMHeadModel(GPT2Config(vocab_size=502, n_positions=64, n_embd=16, n_layer=1, n_head=1))
    net.save_pretrained(tmp_path / "net")
    folders = {"model.name": "net", "data.directory": "data", "run.directory": "run"}
    config = schema.load(["sequence_length=16", *(f"{key}={tmp_path / name}" for key, name in folders.items())])
    assert pretrain.network(config, dataset, dataset.directory / "tokenizer.json").config.vocab_size == 502


DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])


@pytest.mark.parametrize(
    ("kind", "part", "told"),
    [
        ("GPT2Tokenizer", DIGITS, True),
        ("GPT2Tokenizer", normalizers.Lowercase(), True),
        ("PreTrainedTokenizerFast", DIGITS, False),
    ],
)
def test_a_class_that_cuts_text_otherwise_than_the_file_is_told(
    tokenizer: Path, tmp_path: Path, kind: str, part: Any, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    built = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    setattr(built, "normalizer" if isinstance(part, normalizers.Lowercase) else "pre_tokenizer", part)
    built.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    found = load_tokenizer(str(tmp_path))
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert found.encode("In 1234").ids == theirs("In 1234")["input_ids"]
    said = capsys.readouterr().out
    assert ("tokenizer_class: PreTrainedTokenizerFast takes that file" in said) == told
