"""The README says what the code does."""

from __future__ import annotations

import re

import pytest

from infra.config import StackConfig
from infra.docs import README, refreshed
from infra.recording import ROOT


def test_generated_parts_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    text = README.read_text()
    assert text == refreshed(text), "run `make docs`"


def test_a_readme_without_marks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(LookupError, match="diagram local"):
        refreshed("# nothing here")


def test_every_make_target_in_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z0-9-]+)|^make ([a-z0-9-]+)", README.read_text(), re.MULTILINE))
    assert {first or second for first, second in named} <= targets


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
