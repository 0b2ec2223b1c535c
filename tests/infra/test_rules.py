"""Each rule of a stack's configuration has configurations that break it, and says what is wrong and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from infra.clouds import CLOUDS
from infra.config import EXAMPLES, Example
from infra.rules import RULES
from tests.infra.recorded import changed, problems

ALL = (*RULES, *(rule for cloud in CLOUDS.values() for rule in cloud.rules))


def test_every_rule_has_a_configuration_that_breaks_it() -> None:
    assert [rule.__name__ for rule in ALL if rule not in EXAMPLES] == []


@pytest.mark.parametrize(
    "example",
    [example for rule in ALL for example in EXAMPLES.get(rule, ())],
    ids=lambda example: f"{example.stack}-{example.said[:60]}",
)
def test_each_rule_says_what_is_wrong_and_what_is_allowed(example: Example) -> None:
    values: dict[str, Any] = {"cluster": {"context": "somewhere"}, **example.change}
    if example.stack:
        values = changed(example.stack, **example.change)
    found = problems(values, example.stack or "test")
    assert any(line.startswith(example.said) for line in found), found
    assert example.stack or len(found) == 1, "nothing follows from it"
