"""docs/gcp.md and docs/costs.md: what they tell people to type and to set exists, and does what they say."""

from __future__ import annotations

import importlib.util
import re

import pytest

from infra.config import ConfigError, StackConfig, parse, section_class
from infra.graph import draw
from infra.recording import ROOT, record_anywhere, stack_file_values

TEXTS = {name: (ROOT / "docs" / name).read_text() for name in ("gcp.md", "costs.md")}


def keys() -> set[str]:
    """Every configuration key, as documentation names them: nodes.consumption."""
    found: set[str] = set()
    for name, field in StackConfig.model_fields.items():
        for inner, inner_field in section_class(field.annotation).model_fields.items():
            found.add(f"{name}.{inner_field.alias or inner}")
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_every_key_exists(name: str) -> None:
    sections = "|".join(StackConfig.model_fields)
    named = set(re.findall(rf"`(?:pulumi config set .*?--path )?((?:{sections})\.[a-zA-Z]+)", TEXTS[name]))
    named |= set(re.findall(rf"--path ((?:{sections})\.[a-zA-Z]+)", TEXTS[name]))
    assert named
    assert named <= keys()


@pytest.mark.parametrize("name", TEXTS)
def test_every_module_and_make_target_exists(name: str) -> None:
    for module in set(re.findall(r"python -m ([a-z_.]+)", TEXTS[name])):
        assert importlib.util.find_spec(module), module
    targets = set(re.findall(r"^([a-z0-9./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`|&& )make ([a-z0-9./-]+)", TEXTS[name], re.MULTILINE)) <= targets


def test_every_output_exists() -> None:
    outputs = record_anywhere("gcp-a100").outputs | {"gpuCheck": "with check.enabled"}
    named = set(re.findall(r"pulumi stack output --stack [^`\s]+ ([a-zA-Z]+)[ )]", TEXTS["gcp.md"]))
    named |= set(re.findall(r"output\s`([a-zA-Z]+)`", "".join(TEXTS.values())))
    assert named
    assert named <= set(outputs)


def test_every_command_for_a_cloud_is_marked() -> None:
    """Or somebody takes for tested what no test can run."""
    blocks = re.findall(r"```bash\n(.*?)```", TEXTS["gcp.md"], re.DOTALL)
    commands = "\n".join(blocks).replace("\\\n", " ").splitlines()
    for line in commands:
        if re.match(r"gcloud|pulumi (up|preview|destroy)|kubectl", line):
            assert line.rstrip().split("#")[-1].startswith(" ☁"), line


def test_links_lead_somewhere() -> None:
    for text in TEXTS.values():
        for target in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (ROOT / "docs" / target).exists(), target


def test_eight_nodes_need_smaller_micro_batches_as_the_runbook_says() -> None:
    values = stack_file_values("gcp-a100")
    values["nodes"]["max"] = values["workers"]["count"] = 8
    with pytest.raises(ConfigError, match=r"a step has 32 micro-batches for 64 processes"):
        parse(values, "gcp-a100")
    values["training"]["microBatch"] //= 2
    parse(values, "gcp-a100")


def test_the_picture_puts_objects_after_the_nodes_that_they_run_on() -> None:
    assert "r_nodepool_workers --> r_namespace_nfs_server" in draw("gcp-a100")
