"""The documents say what the code does."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from tests.trainer.conftest import ROOT
from trainer import config, metrics, reference


@pytest.mark.parametrize("name", sorted(reference.PARTS))
def test_generated_parts_are_current(name: str) -> None:
    text = (ROOT / "docs" / name).read_text("utf-8")
    assert text == reference.refreshed(name, text), "run `python -m trainer.reference`"


def test_every_setting_and_every_figure_has_a_sentence() -> None:
    missing = [
        f"{section.name}.{item.name}"
        for section in fields(config.Config)
        for item in fields(type(getattr(config.Config(), section.name)))
        if not reference.docstrings(type(getattr(config.Config(), section.name))).get(item.name)
    ]
    assert missing == []
    figures = reference.docstrings(metrics.StepFigures)
    assert [item.name for item in fields(metrics.StepFigures) if not figures.get(item.name)] == []


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| `([a-z0-9-]+)` \| ", (ROOT / "docs" / "training.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in config.EXAMPLES.glob("*.yaml"))


def test_every_event_that_the_trainer_tells_is_explained() -> None:
    rows = re.findall(r"^\| (`.*?`) \| ", (ROOT / "docs" / "metrics.md").read_text("utf-8"), re.MULTILINE)
    explained = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)} | {"name"}  # name: in metrics.event
    told: set[str] = set()
    for file in (ROOT / "trainer").glob("*.py"):
        text = file.read_text("utf-8")
        told |= set(re.findall(r"""event\(\s*"([a-z_]+)\"""", text)) | set(re.findall(r"event=\"?([a-z_]+)", text))
    assert told - explained == set()


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(LookupError, match="settings"):
        reference.refreshed("training.md", "# nothing here")
