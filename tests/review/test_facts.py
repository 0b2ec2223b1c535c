"""`trainyard dev facts`: what was read elsewhere, and when; the oldest first."""

from __future__ import annotations

import re
import subprocess
from datetime import date
from pathlib import Path

import pytest

from cli.__main__ import main
from infra.clouds import CLOUDS
from infra.stackfiles import ROOT
from review import facts

DATA = """# Prices of a cloud, read 2025-01-02.
prices: {a: 1}  # by its page of 2025-03-04
support: {"1.36": 2027-08-02}
rows:
  - key: a
    source: a page, read
      2025-01-01 (page of 2025-01-01; iam 2010-05-08), and another
    until: 2028-01-01
date: 2025-07-08
"""
CODE = '''"""A limit (docs, 2025-09-10)."""
SINCE = "2025-11-12"
#: Seconds (a page, 2025-12-13); upgrades since 2026-01-01T00:00:00Z.
'''


def test_each_fact_is_a_line_and_a_value_is_none(tmp_path: Path) -> None:
    for name, text in (("infra/a.yaml", DATA), ("cli/b.py", CODE), ("docs/costs.md", "read 2020-01-01")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "untracked.py").write_text("# read 2020-01-01\n")
    assert [(str(day), place) for day, place, _ in facts.found(tmp_path)] == [
        ("2025-01-01", "infra/a.yaml:7"),
        ("2025-01-02", "infra/a.yaml:1"),
        ("2025-03-04", "infra/a.yaml:2"),
        ("2025-07-08", "infra/a.yaml:9"),
        ("2025-09-10", "cli/b.py:1"),
        ("2025-12-13", "cli/b.py:3"),
    ]


def test_the_command_lists_the_oldest_first_and_can_leave_out_the_new(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "facts"]) == 0
    ages = [int(re.match(r" *(-?\d+) days  \S+:\d+  ", line)[1]) for line in capsys.readouterr().out.splitlines()]  # pyrefly: ignore[unsupported-operation]
    assert ages == sorted(ages, reverse=True)
    assert len(ages) > 100
    assert main(["dev", "facts", "--days", "100000"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["versions.yaml", "prices.yaml", "zones.yaml", "volumes.yaml", "machines.yaml"])
def test_the_facts_of_a_cloud_have_a_day(name: str) -> None:
    told = {place.partition(":")[0]: day for day, place, _ in facts.found(ROOT)}
    for cloud in CLOUDS.values():
        if cloud.folder and (cloud.folder / name).exists():
            assert told[str((cloud.folder / name).relative_to(ROOT))] >= date(2025, 1, 1)
