"""The clouds' runbooks and docs/costs.md: the commands, keys and outputs that they name exist and do what they say."""

from __future__ import annotations

import re

import pytest

from infra.clouds import keys
from infra.eks.cost import REGIONS
from infra.stackfiles import ROOT
from tests.infra.recorded import recorded

TEXTS = {name: (ROOT / "docs" / name).read_text() for name in ("gcp.md", "aws.md", "costs.md")}


@pytest.mark.parametrize("name", TEXTS)
def test_every_key_exists(name: str) -> None:
    known = "|".join(dict.fromkeys(key.partition(".")[0] for key in keys()))
    named = set(re.findall(rf"`(?:pulumi config set .*?--path )?((?:{known})\.[a-zA-Z]+)", TEXTS[name]))
    named |= set(re.findall(rf"--path ((?:{known})\.[a-zA-Z]+)", TEXTS[name]))
    assert named
    assert named <= {".".join(key.split(".")[:2]) for key in keys()}


@pytest.mark.parametrize(("name", "stack"), [("gcp.md", "gcp-a100"), ("aws.md", "aws-g4dn")])
def test_every_output_exists(name: str, stack: str) -> None:
    outputs = recorded(stack).outputs | {"gpuCheck": "with check.enabled"}
    named = set(re.findall(r"pulumi stack output --stack [^`\s]+ ([a-zA-Z]+)[ )]", TEXTS[name]))
    named |= set(re.findall(r"output\s`([a-zA-Z]+)`", TEXTS[name] + TEXTS["costs.md"]))
    assert named
    assert named <= set(outputs)


@pytest.mark.parametrize("name", ["gcp.md", "aws.md"])
def test_every_command_for_a_cloud_is_marked(name: str) -> None:
    """Otherwise a reader takes for tested what no test can run."""
    blocks = re.findall(r"```bash\n(.*?)```", TEXTS[name], re.DOTALL)
    commands = "\n".join(blocks).replace("\\\n", " ").splitlines()
    for line in commands:
        if re.match(r"gcloud|aws|pulumi (up|preview|destroy)|kubectl", line):
            assert line.rstrip().split("#")[-1].startswith(" ☁"), line


def test_savings_by_spot_in_the_runbook_are_those_of_the_table() -> None:
    less = {name: 100 * (1 - found["g4dn"][1] / found["g4dn"][0]) for name, found in REGIONS.items()}
    assert f"{less['us-east-2']:.0f} % less than on demand in us-east-2" in TEXTS["aws.md"]
    assert f"{min(less.values()):.0f} to {max(less.values()):.0f} % less elsewhere" in TEXTS["aws.md"]
