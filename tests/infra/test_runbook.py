"""The clouds' runbooks and docs/costs.md: the outputs and savings that they name are the programs' own."""

from __future__ import annotations

import re

import pytest

from infra.eks.cost import REGIONS
from infra.stackfiles import ROOT
from tests.infra.recorded import recorded

TEXTS = {name: (ROOT / "docs" / name).read_text() for name in ("gcp.md", "aws.md", "costs.md")}


@pytest.mark.parametrize(("name", "stack"), [("gcp.md", "gcp-a100"), ("aws.md", "aws-g4dn")])
def test_every_output_exists(name: str, stack: str) -> None:
    outputs = recorded(stack).outputs | {"gpuCheck": "with check.enabled"}
    named = set(re.findall(r"pulumi stack output --stack [^`\s]+ ([a-zA-Z]+)[ )]", TEXTS[name]))
    named |= set(re.findall(r"output\s`([a-zA-Z]+)`", TEXTS[name] + TEXTS["costs.md"]))
    assert named
    assert named <= set(outputs)


def test_savings_by_spot_in_the_runbook_are_those_of_the_table() -> None:
    less = {name: 100 * (1 - found["g4dn"][1] / found["g4dn"][0]) for name, found in REGIONS.items()}
    assert f"{less['us-east-2']:.0f} % less than on demand in us-east-2" in TEXTS["aws.md"]
    assert f"{min(less.values()):.0f} to {max(less.values()):.0f} % less elsewhere" in TEXTS["aws.md"]
