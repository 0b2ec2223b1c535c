"""The labels by which a stack's bill and leftovers are found, and mistakes in stack files."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra import stackfiles
from infra.config import ConfigError
from infra.parse import parse
from infra.stackfiles import is_marked, marks, stack_file_values


@pytest.mark.parametrize("stack", ["gcp-a100", "Prod-AWS"])
def test_a_stack_knows_what_it_marked_and_nothing_else(stack: str) -> None:
    assert marks(stack)["stack"] == stack.lower()
    assert is_marked({**marks(stack), "Name": "anything"}, stack)
    assert not is_marked(marks(f"{stack}-2"), stack)
    assert not is_marked({"app": "trainyard"}, stack)
    assert not is_marked(None, stack)


def test_a_section_that_is_not_indented_is_refused_since_pulumi_would_pass_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stackfiles, "ROOT", tmp_path)
    file = tmp_path / "Pulumi.mine.yaml"
    values = {"cluster": {"context": "x"}}
    parse(values, "mine")  # no such file here: Pulumi has it elsewhere
    file.write_text("config:\n  trainyard:cluster: {context: x}\nencryptionsalt: v1:x\n")
    parse(values, "mine")
    file.write_text(file.read_text() + "trainyard:dataset: {input: [a.txt]}\n")
    with pytest.raises(ConfigError) as caught:
        parse(values, "mine")
    (line,) = caught.value.problems
    assert line.startswith("trainyard:dataset: stands beside `config:` in Pulumi.mine.yaml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("encryptionsalt: v1:x\n", "has no config; copy a stack file: cp Pulumi.local.yaml Pulumi.mine.yaml"),
        ("config:\n", "has no config; "),
        ("", "has no config; "),
        ("config:\n\ttrainyard:cluster: {}\n", "is not YAML, line 2: found character '\\t'"),
        ("config: \x00\n", "is not YAML: unacceptable character"),
    ],
)
def test_a_file_that_holds_no_stack_says_what_to_do(
    content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is what `pulumi stack init` writes."""
    monkeypatch.setattr(stackfiles, "ROOT", tmp_path)
    (tmp_path / "Pulumi.mine.yaml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        stack_file_values("mine")
    (line,) = caught.value.problems
    assert line.startswith(f"Pulumi.mine.yaml: {said}")
