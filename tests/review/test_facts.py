"""`trainyard dev facts`: what was read elsewhere, and when; the oldest first."""

from __future__ import annotations

import re

import pytest

from cli.__main__ import main


def test_the_command_lists_the_oldest_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "facts"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ages = [int(age) for line in lines for age in re.findall(r"^ *(-?\d+) days  \S+:\d+  ", line)]
    assert ages == sorted(ages, reverse=True)
    assert len(ages) == len(lines) > 100
