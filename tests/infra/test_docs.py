"""README and docs/ say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.config import StackConfig
from infra.docs import DOCUMENTS, README, refreshed
from infra.recording import ROOT


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_generated_parts_are_current(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    text = path.read_text()
    assert text == refreshed(text, DOCUMENTS[path]), "run `make docs`"


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(LookupError, match="diagram local"):
        refreshed("# nothing here", DOCUMENTS[README])


def test_every_make_target_in_the_documentation_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in [README, *(ROOT / "docs").glob("*.md")]:
        named = set(re.findall(r"`make ([a-z0-9-]+)|^make ([a-z0-9-]+)", document.read_text(), re.MULTILINE))
        assert {first or second for first, second in named} <= targets, document.name


def test_every_key_has_a_sentence() -> None:
    def missing(section: type, path: str) -> list[str]:
        found = []
        for name, field in section.model_fields.items():
            if not field.description:
                found.append(f"{path}{name}")
            if hasattr(field.annotation, "model_fields"):
                found += missing(field.annotation, f"{path}{name}.")
        return found

    assert missing(StackConfig, "") == []
