"""`trainyard dev facts`: what was read elsewhere, and when; the oldest first."""

from __future__ import annotations

import re

import pytest

from cli.__main__ import main
from infra.stackfiles import ROOT
from review import facts

#: Words and choices of this project.
OURS = ("keys.yaml", "defaults.yaml")


def test_each_file_of_facts_has_its_source_and_a_day() -> None:
    files = [path for place in ("infra/**", "trainer/config", "workloads") for path in ROOT.glob(f"{place}/*.yaml")]
    texts = {path: path.read_text() for path in files if path.name not in OURS}
    assert len(texts) > 20
    assert [path for path, text in texts.items() if not re.search(r"\bsources?\b", text, re.IGNORECASE)] == []
    assert [path for path, text in texts.items() if not facts.DAY.search(text)] == []


def test_the_command_lists_the_oldest_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "facts"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ages = [int(age) for line in lines for age in re.findall(r"^ *(-?\d+) days  \S+:\d+  ", line)]
    assert ages == sorted(ages, reverse=True)
    assert len(ages) == len(lines) > 100
