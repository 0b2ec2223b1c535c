"""`trainyard dev facts`: what was read elsewhere, and when; the oldest first."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cli.__main__ import main
from infra.stackfiles import ROOT
from review import facts

#: Words and choices of this project.
OURS = ("keys.yaml", "defaults.yaml")
DATA = """# Prices of a cloud, read 2025-01-02 (iam 2010-05-08); upgrades since 2026-01-01T00:00:00Z.
support: {"1.36": 2099-08-02} # read 2025-01-03
slip: {read: 2099-01-04}
cost: 20 USD, read 2026-02-30
cost: 10 USD (us-east-2, 2025-08)
source: a page, read
  2025-01-01 (page of 2024-01-01)
"""


def test_each_file_of_facts_has_its_source_and_a_day() -> None:
    files = [path for place in ("infra/**", "trainer/config", "workloads") for path in ROOT.glob(f"{place}/*.yaml")]
    texts = {path: path.read_text() for path in files if path.name not in OURS}
    assert len(texts) > 20
    assert [path for path, text in texts.items() if not re.search(r"\bsources?\b", text, re.IGNORECASE)] == []
    assert [path for path, text in texts.items() if not facts.DAY.search(text)] == []


def test_each_line_with_a_day_is_a_fact_and_a_slip_is_told(tmp_path: Path) -> None:
    for name, text in (
        ("infra/a.yaml", DATA),
        ("cli/b.Dockerfile", "# 2025-09-10"),
        ("docs/costs.md", "read 2025-01-01"),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert [(str(day), place) for day, place, _ in facts.found(tmp_path)] == [
        ("0001-01-01", "infra/a.yaml:4"),
        ("2025-01-01", "infra/a.yaml:7"),
        ("2025-01-02", "infra/a.yaml:1"),
        ("2025-01-03", "infra/a.yaml:2"),
        ("2025-08-01", "infra/a.yaml:5"),
        ("2025-09-10", "cli/b.Dockerfile:1"),
        ("2099-01-04", "infra/a.yaml:3"),
    ]


def test_the_command_lists_the_oldest_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "facts"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ages = [int(age) for line in lines for age in re.findall(r"^ *(-?\d+) days  \S+:\d+  ", line)]
    assert ages == sorted(ages, reverse=True)
    assert len(ages) == len(lines) > 100
