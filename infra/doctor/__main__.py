"""`python -m infra.doctor STACK` (make doctor STACK=gcp-a100): exit code 1 when something stands in the way."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from infra.config import ConfigError, StackConfig, parse
from infra.doctor import everywhere, finding, images
from infra.doctor.finding import Finding, ok, problem
from infra.stackfiles import stack_file_values, stacks


def diagnose(stack: str, values: Mapping[str, Any] | None = None) -> Iterator[Finding]:
    """Everything about a stack, in the order in which it has to be mended.

    `values`, the keys under `trainyard:`, are those of a stack that has no file here.
    """
    config: StackConfig | None = None
    try:
        config = parse(stack_file_values(stack) if values is None else values, stack)
        yield ok("configuration", f"Pulumi.{stack}.yaml" if values is None else "is valid")
    except ConfigError as error:
        for line in error.problems:
            path, _, text = line.partition(": ")
            yield problem(path, text, "")
    yield from everywhere.pulumi()
    yield from everywhere.state(stack, everywhere.stack_content(stack) if values is None else {})
    if config is None:
        return
    match config.cluster.kind:
        case "gke":
            from infra.doctor import gcp

            yield from gcp.checks(config, stack)
        case "eks":
            from infra.doctor import aws

            yield from aws.checks(config, stack)
        case "existing":
            yield from everywhere.context(config)
            yield from images.of_existing(config, stack)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.doctor", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stack", help=f"one of {', '.join(stacks())}")
    stack = parser.parse_args(arguments).stack
    if stack not in stacks():
        print(f"error: no stack '{stack}'; there are: {', '.join(stacks())}", file=sys.stderr)
        return 2
    found: list[Finding] = []

    def kept() -> Iterator[Finding]:
        for item in diagnose(stack):
            found.append(item)
            yield item

    try:
        finding.show(f"Stack {stack}", kept())
    except yaml.YAMLError as error:
        print(f"error: Pulumi.{stack}.yaml is not YAML: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    print(f"\n{finding.summary(found)}")
    return 1 if any(item.level == "problem" for item in found) else 0


if __name__ == "__main__":
    sys.exit(main())
