"""What a rule or a doctor's check found out: a key, a text, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

Level = Literal["ok", "problem", "warning", "unchecked"]


@dataclass(frozen=True)
class Finding:
    level: Level
    key: str
    """Of the stack file (`gke.project`), or what was looked at: `credentials`, `quota NVIDIA_A100_GPUS`."""
    text: str
    """What was given or found; what is allowed."""
    fix: str = ""
    """The command that mends it, or the key to change."""

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"


ok = partial(Finding, "ok")
#: `pulumi up`, or the training after it, would fail.
problem = partial(Finding, "problem")
#: It works, but something will be missing or surprising.
warning = partial(Finding, "warning")
#: The check could not run; the text says why.
unchecked = partial(Finding, "unchecked")


def read_line(line: str) -> Finding:
    """The problem in a rule's line, `key: what was given; what is allowed`."""
    key, _, text = line.partition(": ")
    return problem(key, text)


class NoAnswer(Exception):
    """Why a cloud or a program did not answer a question."""

    def __init__(self, text: str, fix: str = "") -> None:
        super().__init__(text)
        self.fix = fix
        """The command that makes it answer, if there is one."""


def reason_of(error: Exception) -> str:
    """An error of somebody else's library in one line, without its help texts."""
    # google.auth's have a text and the error beneath.
    parts = error.args if len(error.args) > 1 and isinstance(error.args[0], str) else (error,)
    return (" ".join(": ".join(map(str, parts)).split()) or type(error).__name__)[:300]


def or_unchecked(key: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Pass findings on; NoAnswer ends them with an unchecked one that gives the reason."""
    try:
        yield from findings
    except NoAnswer as reason:
        yield unchecked(key, str(reason), reason.fix)
