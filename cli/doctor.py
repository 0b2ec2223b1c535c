"""Check what a stack needs before `pulumi up`, and say how to fix what is missing.

Exit code 1: something stands in the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cli.target import StackName, enter_local, is_local
from infra.clouds import cloud_of
from infra.config import ConfigError, StackConfig
from infra.doctor import finding, prerequisites
from infra.doctor.finding import Finding, ok, problem, warning
from infra.parse import parse
from infra.stackfiles import for_stack, foreign, plain_tokens, stack_file, stack_file_values


def diagnose(stack: str, values: Mapping[str, Any] | None = None) -> Iterator[Finding]:
    """All findings about a stack, in the order in which to fix them.

    `values` are the keys under `trainyard:` of a stack without a file.
    """
    config: StackConfig | None = None
    content: dict[str, Any] = {}
    try:
        said = "is valid"
        if values is None:
            said, content = f"Pulumi.{stack}.yaml", stack_file(stack)
            values = stack_file_values(stack)
        config = parse(values, stack)
        yield ok("configuration", said)
    except ConfigError as error:
        for found in error.problems:
            yield problem(found.key, found.text, "")
    for key in foreign(stack) if content else ():
        yield warning(key, "nothing reads it: the stack's providers have all that they need from its own sections")
    for line in plain_tokens(values, stack):
        key, _, text = line.partition(": ")
        text, _, command = text.partition("; ")
        yield warning(key, text, command)
    yield from prerequisites.pulumi()
    yield from prerequisites.state(stack, content, billed=config is not None and config.cloud is not None)
    if config is None:
        return
    for item in cloud_of(config).doctor(config, stack):
        yield replace(item, fix=for_stack(item.fix, stack))


def doctor(stack: StackName = "") -> int:
    if is_local(stack):
        enter_local()
    found: list[Finding] = []

    def kept() -> Iterator[Finding]:
        for item in diagnose(stack):
            found.append(item)
            yield item

    finding.show(f"Stack {stack}", kept())
    print(f"\n{finding.summary(found)}")
    if stack == "local" and not is_local(stack):
        print("`make up` installs Pulumi and sets up the rest on this machine.")
    return 1 if any(item.level == "problem" for item in found) else 0
