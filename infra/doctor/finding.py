"""What a check of the doctor found, and how a person reads it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, ParamSpec

from trainer.plain import counted, plain

_Given = ParamSpec("_Given")

Level = Literal["ok", "problem", "warning", "unchecked"]
#: Mark and style of each level; a terminal without Unicode shows "?" for the marks and loses nothing.
MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "problem": ("✗", "bold red"),
    "warning": ("!", "yellow"),
    "unchecked": ("?", "dim"),
}


@dataclass(frozen=True)
class Finding:
    level: Level
    subject: str
    """What was checked: `credentials`, `quota NVIDIA_A100_GPUS`."""
    text: str
    fix: str = ""
    """The command that fixes it, or the key to change."""


def ok(subject: str, text: str) -> Finding:
    return Finding("ok", subject, text)


def problem(subject: str, text: str, fix: str) -> Finding:
    """`pulumi up`, or the training after it, would fail."""
    return Finding("problem", subject, text, fix)


def warning(subject: str, text: str, fix: str = "") -> Finding:
    """It works, but something will be missing or surprising."""
    return Finding("warning", subject, text, fix)


def unchecked(subject: str, text: str, fix: str = "") -> Finding:
    """The check could not run; the text says why."""
    return Finding("unchecked", subject, text, fix)


class NoAnswer(Exception):
    """Why a cloud did not answer a question."""

    fix = ""
    """The command that makes it answer, if there is one."""

    def __init__(self, text: str, fix: str = "") -> None:
        super().__init__(text)
        self.fix = fix


def reason_of(error: Exception) -> str:
    """An error of somebody else's library in one line, without its help texts."""
    # google.auth's have a text and the error beneath.
    parts = error.args if len(error.args) > 1 and isinstance(error.args[0], str) else (error,)
    return (" ".join(": ".join(map(str, parts)).split()) or type(error).__name__)[:300]


def asked(subject: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Pass findings on; NoAnswer ends them with an unchecked one that gives the reason."""
    try:
        yield from findings
    except NoAnswer as reason:
        yield unchecked(subject, str(reason), reason.fix)


def or_unchecked(subject: str) -> Callable[[Callable[_Given, Iterator[Finding]]], Callable[_Given, Iterator[Finding]]]:
    """Decorate a check so that every call of it goes through `asked`."""

    def guard(check: Callable[_Given, Iterator[Finding]]) -> Callable[_Given, Iterator[Finding]]:
        @functools.wraps(check)
        def guarded(*given: _Given.args, **named: _Given.kwargs) -> Iterator[Finding]:
            return asked(subject, check(*given, **named))

        return guarded

    return guard


def summary(findings: Iterable[Finding]) -> str:
    """`1 problem, 2 warnings, 3 not checked`."""
    levels = [finding.level for finding in findings]
    counts = {
        "problem": (levels.count("problem"), "problem", "problems"),
        "warning": (levels.count("warning"), "warning", "warnings"),
        "unchecked": (levels.count("unchecked"), "not checked", "not checked"),
    }
    parts = [counted(*each) for each in counts.values() if each[0]]
    return ", ".join(parts) or "nothing stands in the way"


def show(title: str, findings: Iterable[Finding]) -> None:
    """Print each finding as it comes: the checks ask a cloud, which takes seconds."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(title, style="bold")
    for finding in findings:
        mark, style = MARKS[finding.level]
        text = Text.assemble(
            (f"{plain(finding.subject)}: ", "" if finding.level == "ok" else "bold"),
            (plain(finding.text), "dim" if finding.level == "unchecked" else ""),
        )
        line = Table.grid(padding=(0, 1))
        line.add_row(Text(f" {mark}", style=style), text)
        console.print(line)
        if finding.fix:
            # On a line of its own and never wrapped, so that it can be copied.
            console.print(Text(f"   {plain(finding.fix)}", style="cyan"), soft_wrap=True)
