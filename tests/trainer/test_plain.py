"""Text for people: a number before a noun has the noun's form for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainer.plain import counted

ROOT = Path(__file__).parents[2]
NOUNS = (
    "workers|nodes|pods|processes|GPUs|files|checks|resources|members|rounds|problems|micro-batches|accelerators|zones"
)
#: A number that is never 1 there: the line's own condition, or the rule's, asks for more.
MORE = (
    "workers.spares} workers on",
    "over {nodes} nodes",
    "fsdp on {world} workers",
    "zones with nodes.",
    "eks.zones)} zones",
    "{processes} ",
)
FILES = [file for folder in ("cli", "infra", "prove", "workloads") for file in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize(("number", "said"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234, "1,234 files")])
def test_a_number_and_its_noun(number: int, said: str) -> None:
    assert counted(number, "file") == said
    assert counted(1, "process", "processes") == "1 process"


def test_no_message_says_one_workers() -> None:
    number = re.compile(rf"\{{[^{{}}]+\}}[ ]({NOUNS})\b")
    wrong = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in FILES
        for line in file.read_text("utf-8").splitlines()
        if number.search(line) and not any(more in line for more in MORE)
    ]
    assert not wrong
