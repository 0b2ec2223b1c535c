"""Check what a stack needs before `pulumi up`, and say how to fix what is missing.

Exit code 1: something stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cli.target import StackName, enter_local, is_local
from infra.clouds import cloud_of
from infra.config import ConfigError
from infra.doctor import prerequisites
from infra.finding import Finding, Level, ok, warning
from infra.parse import parse
from infra.stackfiles import for_stack, foreign, plain_tokens, stack_file_values
from trainer.plain import counted, plain

#: Mark and style of each level; a terminal without Unicode shows "?" for the marks and loses nothing.
MARKS: dict[Level, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "problem": ("✗", "bold red"),
    "warning": ("!", "yellow"),
    "unchecked": ("?", "dim"),
}


def diagnose(stack: str, values: Mapping[str, Any] | None = None) -> Iterator[Finding]:
    """All findings about a stack, in the order in which to fix them.

    `values` are the keys under `trainyard:` of a stack without a file.
    """
    config, file = None, values is None
    try:
        if values is None:
            values = stack_file_values(stack)
        config = parse(values, stack)
        yield ok("configuration", f"Pulumi.{stack}.yaml" if file else "is valid")
    except ConfigError as error:
        yield from error.problems
    for key in foreign(stack) if file and values is not None else ():
        yield warning(key, "nothing reads it: the stack's providers have all that they need from its own sections")
    yield from plain_tokens(values, stack)
    yield prerequisites.pulumi()
    yield prerequisites.state(billed=config is not None and config.cloud is not None)
    if config is not None:
        for found in cloud_of(config).doctor(config, stack):
            yield replace(found, fix=for_stack(found.fix, stack))


def doctor(stack: StackName = "") -> int:
    if is_local(stack):
        enter_local()
    found = show(f"Stack {stack}", diagnose(stack))
    print(f"\n{summary(found)}")
    if stack == "local" and not is_local(stack):
        print("`make up` installs Pulumi and sets up the rest on this machine.")
    return 1 if any(each.level == "problem" for each in found) else 0


def summary(findings: Iterable[Finding]) -> str:
    """`1 problem, 2 warnings, 3 not checked`."""
    levels = [finding.level for finding in findings]
    parts = [counted(levels.count(each), each) for each in ("problem", "warning") if each in levels]
    parts += [f"{levels.count('unchecked')} not checked"] if "unchecked" in levels else []
    return ", ".join(parts) or "nothing stands in the way"


def show(title: str, findings: Iterable[Finding]) -> list[Finding]:
    """Print each finding as it comes, because the checks ask a cloud, which takes seconds; return them all."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, shown = Console(highlight=False), list[Finding]()
    console.print(title, style="bold")
    for found in findings:
        mark, style = MARKS[found.level]
        text = Text.assemble(
            (f"{plain(found.key)}: ", "" if found.level == "ok" else "bold"),
            (plain(found.text), "dim" if found.level == "unchecked" else ""),
        )
        line = Table.grid(padding=(0, 1))
        line.add_row(Text(f" {mark}", style=style), text)
        console.print(line)
        if found.fix:
            # On a line of its own and never wrapped, so that it can be copied.
            console.print(Text(f"   {plain(found.fix)}", style="cyan"), soft_wrap=True)
        shown.append(found)
    return shown
