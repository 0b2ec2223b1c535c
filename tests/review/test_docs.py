"""README and docs/ say what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.clouds import keys
from review.docs import ARCHITECTURE, DOCUMENTS, refreshed


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_generated_parts_are_current(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    text = path.read_text()
    assert text == refreshed(text, DOCUMENTS[path]), "run `make docs`"


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(LookupError, match="diagram local"):
        refreshed("# nothing here", DOCUMENTS[ARCHITECTURE])


def test_every_key_has_a_sentence() -> None:
    assert [key for key, field in keys().items() if not field.description] == []
