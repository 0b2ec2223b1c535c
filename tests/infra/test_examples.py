"""An example in a message or in a key's sentence is one that its own rule takes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import SecretStr

from infra.clouds import keys
from infra.config import ConfigError
from infra.parse import parse
from tests.infra.recorded import changed
from trainer.config.base import _kinds

EXAMPLE = re.compile(r"(?:such as|as in|one as|range as|write) ([^\s,;'()]*[\w/])")
#: What an example stands for, where it is no value of the key: a pattern, or one of another key's.
NO_VALUES = {"KEY", "hf:NAME", "gs://BUCKET/FOLDER", "SCHEME://BUCKET"}
KEYS = [key for key, field in keys().items() if _kinds(field.annotation) & {str, SecretStr}]


def stack_of(key: str) -> str:
    """A stack whose kind of cluster has the key."""
    if key.startswith("workers.") or key == "cluster.dns":
        return "local"
    kinds = {"gcp-c3": "gke", "aws-smoke": "eks", "local": "existing"}
    return next(stack for stack, kind in kinds.items() if key in keys(kind))


def lines(key: str, value: Any) -> list[str]:
    section, *inner = key.split(".")
    annotation = str(keys()[key].annotation)
    given: Any = [value] if "tuple" in annotation else {"x": value} if "dict" in annotation else value
    for part in reversed(inner):
        given = {part: given}
    try:
        parse(changed(stack_of(key), **{section: given}), "test")
    except ConfigError as error:
        return [line for line in error.lines if line.startswith(key)]
    return []


def examples(key: str) -> set[str]:
    """The examples in what wrong values of a key are answered with."""
    told = [line for wrong in ("?! x", "us-east1-b", "10.0.0.1/8", "1.2.3", "gs://") for line in lines(key, wrong)]
    return {example for line in told for example in EXAMPLE.findall(line.partition(": ")[2])} - NO_VALUES


@pytest.mark.parametrize("key", ["eks.vpcCidr", "eks.nodeRelease", "gke.zone", "workers.tolerations", "cluster.dns"])
def test_the_examples_are_found(key: str) -> None:
    assert examples(key)


@pytest.mark.parametrize("key", KEYS)
def test_an_example_in_a_message_is_allowed(key: str) -> None:
    assert [line for example in sorted(examples(key)) for line in lines(key, example)] == []
