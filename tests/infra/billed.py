"""The bill of a configuration that is written in the test."""

from __future__ import annotations

from typing import Any

from infra import cost
from infra.config import StackConfig
from infra.cost import Estimate, Line
from infra.parse import parse


def changed(values: dict[str, Any], changes: dict[str, dict[str, Any]]) -> StackConfig:
    """The configuration `values`, with some keys of its sections changed."""
    sections = {name: {**values.get(name, {}), **changes.get(name, {})} for name in {**values, **changes}}
    return parse(sections, "test")


def estimate(config: StackConfig) -> Estimate:
    found = cost.estimate(config)
    assert found
    return found


def line(estimate: Estimate, what: str) -> Line:
    (found,) = [entry for entry in estimate.lines if what in entry.what]
    return found
