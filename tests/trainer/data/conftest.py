"""A small tokenizer with special tokens, and any chat template on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from trainer import prepare
from trainer.data.conversations import Chat

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>"]


@pytest.fixture(scope="session")
def words(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small tokenizer with special tokens, which begins texts with <s> by itself."""
    folder = tmp_path_factory.mktemp("words")
    built = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    built.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    begin = built.token_to_id("<s>")
    built.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    built.save(str(folder / "tokenizer.json"))
    described = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
        "auto_map": {"x": "code.py"},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(prepare.SAMPLE.read_text("utf-8")[:100_000], encoding="utf-8")
    return path


@pytest.fixture
def chat(words: Path, tmp_path: Path) -> Callable[[str], Chat]:
    def build(template: str) -> Chat:
        for path in words.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / "chat_template.jinja").write_text(template)
        return Chat(tmp_path)

    return build
