"""The layout: imports go one way, a stack imports only what it needs, and a preview shows every resource."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.clouds import CLOUDS, keys
from infra.parse import cluster_kind
from infra.stackfiles import ROOT, stack_file_values, stacks


def test_the_program_needs_what_makes_a_cluster_and_what_runs_on_it_alone() -> None:
    imported = re.findall(r"^(?:from|import) (\w+)", (ROOT / "__main__.py").read_text(), re.MULTILINE)
    assert set(imported) - sys.stdlib_module_names == {"pulumi", "infra", "workloads"}


#: Kind of cluster -> a stack of it.
ONE_OF_EACH = {cluster_kind(stack_file_values(name)): name for name in stacks()}


PROGRAM = """import sys
from review.recording import record_anywhere
for stack in sys.argv[1:]:
    record_anywhere(stack)
    print(*(name for name in sys.modules if name.startswith("pulumi_") and "." not in name))"""


@pytest.mark.parametrize("kinds", [("existing", "gke"), ("eks",)])
def test_a_stack_imports_the_sdks_that_it_uses(kinds: tuple[str, ...]) -> None:
    """Each SDK costs half a second or more at every preview. After one that has none, another shows its own."""
    command = [sys.executable, "-c", PROGRAM, *(ONE_OF_EACH[kind] for kind in kinds)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for kind, names in zip(kinds, told, strict=True):
        own = CLOUDS[kind].sdk.replace("-", "_")
        assert set(names.split()) == {"pulumi_kubernetes", *([own, "pulumi_docker_build"] if own else [])}


def sources() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split() if (ROOT / name).exists()]


def test_every_file_says_why_it_exists() -> None:
    silent = []
    for path in sources():
        lines = path.read_text().splitlines()
        if lines and not lines[0].startswith('"""'):
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_key_of_a_stack_that_a_document_names_exists(document: Path) -> None:
    """`section.key` in code marks; the trainer's own settings (`optimizer.learning_rate`) have other sections."""
    sections = {key.partition(".")[0] for key in keys()}
    known = {*sections, *(key for full in keys() for key in (full, full.rpartition(".")[0]))}
    named = re.findall(r"`(?:trainyard:)?([a-z][A-Za-z]*\.[A-Za-z.]+)(?:[:= ][^`]*)?`", document.read_text())
    wrong = {key for key in named if key.partition(".")[0] in sections and key not in known}
    files = {key for key in wrong if key.endswith((".py", ".md", ".yaml", ".yml"))}
    assert wrong - files == set()
