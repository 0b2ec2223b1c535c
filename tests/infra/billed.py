"""The bill of a configuration that is written in the test."""

from __future__ import annotations

from infra import cost
from infra.config import StackConfig
from infra.cost import Estimate, Line


def estimate(config: StackConfig) -> Estimate:
    found = cost.estimate(config)
    assert found
    return found


def line(estimate: Estimate, what: str) -> Line:
    (found,) = [entry for entry in estimate.lines if what in entry.what]
    return found
