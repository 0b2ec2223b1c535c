"""README and docs/ say what the code does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.clouds import keys
from infra.stackfiles import ROOT, stack_file_values
from review.docs import DOCUMENTS, refreshed, stack_table


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_generated_parts_are_current(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    text = path.read_text()
    assert text == refreshed(text, DOCUMENTS[path]), "run `make docs`"


def test_readme_shows_the_last_proof() -> None:
    """Its seconds and losses are those of that day."""
    day = json.loads((ROOT / "bench/results/prove-local.json").read_text())["date"][:10]
    assert f"(bench/results/prove-local.md), {day}," in (ROOT / "README.md").read_text()


def test_a_stack_without_a_list_price_has_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        **stack_file_values("gcp-a100"),
        "nodes": {"machineType": "a3-highgpu-1g", "consumption": "spot", "max": 2},
    }
    monkeypatch.setattr("review.docs.stacks", lambda: ["gcp-a100"])
    monkeypatch.setattr("review.docs.stack_file_values", lambda stack: values)
    assert stack_table().endswith(" | ? |")


def test_every_key_has_a_sentence() -> None:
    assert [key for key, field in keys().items() if not field.description] == []
