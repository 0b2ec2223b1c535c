"""Every command in README, CONTRIBUTING and docs/ is run by a test or marked ☁, and what it names exists.

A new command in a code block fails here until a line of RUN_BY says which test runs it, or the block marks it with
☁: it needs a cloud, an accelerator or an address on the internet.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from cli.__main__ import COMMANDS as COMMANDS_OF_TRAINYARD
from cli.__main__ import load
from infra.clouds import keys
from infra.stackfiles import ROOT, stacks

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CLOUD = "☁"

#: Runners that several lines of RUN_BY have.
PIPELINE = ".ci/run"
E2E = "tests/e2e/test_local_stack.py"
DATA = "tests/e2e/test_data_in_model_out.py"
TRAINER_DOCS = "tests/trainer/test_docs.py::test_the_commands_work_as_they_are_written"
#: Beginning of a command, as a regular expression -> what runs it, or what its make target types.
RUN_BY = {
    r"git clone <this repository> trainyard && cd trainyard": PIPELINE,
    r"make (lint|test|e2e)$": PIPELINE,
    r"make up$": E2E,
    r"make \.venv/infra\.stamp": PIPELINE,
    r"make gpu ARGS=": "tests/trainer/test_bench.py",
    r"make docs$": "tests/review/test_docs.py",
    r"make snapshots$": "tests/review/test_snapshot.py",
    r'eval "\$\(trainyard local env\)"': "tests/fixtures_cluster.py",
    r"trainyard dev snapshot\b": "tests/review/test_snapshot.py",
    r"trainyard dev policy\b": "tests/review/test_policy.py",
    r"trainyard doctor\b": "tests/infra/test_doctor.py",
    r"trainyard prove --stack local --short": "tests/e2e/test_prove.py",
    r"trainyard cost\b": "tests/infra/test_cost.py",
    r"trainyard init\b": "tests/cli/test_init.py",
    r"trainyard (upload .*|fetch|board|run) --stack local": DATA,
    r"trainyard evaluate --stack local --tasks my_task": "tests/e2e/test_evaluate.py",
    r"trainyard (runs|compare|ls|du|rm|export) --stack local": "tests/e2e/test_run_commands.py",
    r"trainyard (follow|logs|sample) --stack local": E2E,
    r"trainyard (status|stop|resume) --stack local": "tests/e2e/test_elastic_pods.py",
    r"pulumi (up|preview|destroy|config set) --stack local": E2E,
    r"pulumi stack init": "tests/e2e/cloud_stack.py",
    r"pulumi config set --stack (gcp|aws)-": "tests/test_commands.py::test_every_key_of_a_stack_exists",
    r"python -m trainer\.prepare": "tests/trainer/data/test_prepare.py",
    r"python -m trainer\.(train|sample|evaluate|export|report) ": TRAINER_DOCS,
    r"torchrun .*--rdzv-backend etcd-v3": "tests/trainer/elastic/test_rendezvous.py",
    r"\.venv/bin/python -m pytest ": PIPELINE,
}


def blocks() -> Iterator[tuple[str, str]]:
    """(document, command) of every code block for a shell, continued lines joined."""
    for path in DOCUMENTS:
        for language, text in re.findall(
            r"^ *```(\w*)\n(.*?)^ *```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE
        ):
            if language not in ("sh", "bash", "console"):
                assert language, f"{path.name}: a block without a language, so nobody knows whether it is to be typed"
                continue
            for line in re.sub(r"\\\n\s*", " ", text).splitlines():
                if line.strip() and not line.lstrip().startswith("#"):
                    yield path.name, line.strip()


COMMANDS = sorted(set(blocks()))


def named() -> set[tuple[str, str]]:
    """(document, text) of everything that is set as code, in blocks and in sentences."""
    found = set(COMMANDS)
    for path in DOCUMENTS:
        prose = re.sub(r"^ *```.*?^ *```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        found |= {(path.name, " ".join(text.split())) for text in re.findall(r"`([^`]+)`", prose)}
    return found


NAMED = named()


@pytest.mark.parametrize(("document", "command"), COMMANDS)
def test_a_test_runs_it_or_it_is_marked(document: str, command: str) -> None:
    text, _, comment = command.partition(" #")
    if CLOUD in comment:
        return
    for part in text.split(" && "):
        part = " ".join(part.removeprefix(".venv/bin/" if "pytest" not in part else "").split())
        if re.match(r"(cd|source) |[A-Z]=", part):
            continue
        whole = " ".join(text.split())
        runners = [runner for pattern, runner in RUN_BY.items() if re.match(pattern, part) or re.match(pattern, whole)]
        assert runners, f"{document}: `{command}`: no test runs it; add one to RUN_BY, or mark it with {CLOUD}"


@pytest.mark.parametrize("runner", sorted(set(RUN_BY.values())))
def test_what_runs_it_exists(runner: str) -> None:
    file, _, test = runner.partition("::")
    assert (ROOT / file).exists()
    assert not test or f"def {test}(" in (ROOT / file).read_text("utf-8")


@pytest.mark.parametrize("pattern", RUN_BY)
def test_every_line_of_the_table_is_used(pattern: str) -> None:
    parts = [part for _, command in COMMANDS for part in (command, *command.split(" && "))]
    assert any(re.match(pattern, part.removeprefix(".venv/bin/")) or re.match(pattern, part) for part in parts)


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {(name, target) for name, text in NAMED for target in re.findall(r"(?:^|&& )make ([a-z0-9./-]+)", text)}
    assert sorted(item for item in wanted if item[1] not in targets) == []


def test_every_module_and_option_exists() -> None:
    missing = []
    for document, text in NAMED:
        for module, rest in re.findall(r"python -m ([a-z_][a-z_.]*[a-z_])([^#|&]*)", text):
            spec = importlib.util.find_spec(module)
            if spec is None:
                missing.append(f"{document}: {module}")
            elif not module.startswith(("pytest", "pip")):
                sources = _sources(module)
                missing += [
                    f"{document}: {module} {option}"
                    for option in re.findall(r"(?:^| )(--[a-z][a-z-]+)", rest)
                    if f'"{option}"' not in sources and f"'{option}'" not in sources and option != "--help"
                ]
    assert missing == []


@lru_cache
def _sources(module: str) -> str:
    """The sources of a command's package, any of which may define its options."""
    folder = ROOT / module.split(".")[0]
    return "\n".join(path.read_text("utf-8") for path in sorted(folder.rglob("*.py")))


def test_every_command_of_trainyard_and_its_options_exist() -> None:
    missing = []
    for document, text in NAMED:
        for name, rest in re.findall(r"(?:^|[ (/])trainyard ((?:dev )?[a-z][a-z-]*)([^#&)]*)", text):
            if name not in COMMANDS_OF_TRAINYARD:
                missing.append(f"{document}: trainyard {name}")
                continue
            command: Any = load(name)
            words = rest.partition(" -- ")[0].split()
            if hasattr(command, "commands"):
                for word in words[0].split("|") if words else []:
                    if word not in command.commands:
                        missing.append(f"{document}: trainyard {name} {word}")
                command = command.commands.get(words[0].split("|")[0]) if words else command
            known = {option for parameter in getattr(command, "params", []) for option in parameter.opts}
            options = {word for word in words if word.startswith("--")} - {"--help"}
            missing += [f"{document}: trainyard {name} {option}" for option in options - known]
    assert missing == []


def test_every_key_of_a_stack_exists() -> None:
    """Behind --path, or alone; the trainer's own settings (`optimizer.learning_rate`) have other sections."""
    sections = {key.partition(".")[0] for key in keys()}
    known = {*sections, *(part for key in keys() for part in (key, key.rpartition(".")[0])), "SECTION.KEY"}
    files, missing = (".py", ".md", ".yaml", ".yml"), []
    for document, text in NAMED:
        named = {key for key in re.findall(r"--path '?([a-zA-Z.]+)", text) if key not in known}
        if alone := re.fullmatch(r"(?:trainyard:)?(([a-z][A-Za-z]*)\.[A-Za-z.]+)(?:[:= ].*)?", text):
            named |= {alone[1]} if alone[2] in sections and not alone[1].endswith(files) else set()
        missing += [f"{document}: {key}" for key in named - known]
    assert missing == []


def test_every_stack_exists() -> None:
    wanted = {(name, stack) for name, text in NAMED for stack in re.findall(r"--stack ([a-z0-9-]+)", text)}
    assert sorted(item for item in wanted if item[1] not in stacks()) == []


def test_every_file_exists() -> None:
    """Paths of the repository in code marks, and links."""
    folders = "infra|workloads|cli|review|trainer|local|tests|bench|docs|prove|faults|requirements"
    missing = []
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", text):
            if not (path.parent / target).exists():
                missing.append(f"{path.name}: {target}")
        for file in re.findall(rf"(?:^|[ `(])((?:{folders})/[\w./-]*\w)", text):
            generated = ".local" in file or file.startswith(("data/", "runs/"))
            if not generated and "NAME" not in file and not (ROOT / file).exists():
                missing.append(f"{path.name}: {file}")
    assert not missing, "\n".join(sorted(set(missing)))


def test_every_heading_that_is_linked_exists() -> None:
    missing = []
    for path in DOCUMENTS:
        for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", path.read_text("utf-8")):
            file = path.parent / target if target else path
            headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
            if anchor not in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}:
                missing.append(f"{path.name}: {target}#{anchor}")
    assert missing == []


def test_readme_lists_every_page() -> None:
    listed = (ROOT / "README.md").read_text("utf-8").partition("## Documentation")[2]
    assert sorted(path.name for path in (ROOT / "docs").glob("*.md") if f"(docs/{path.name})" not in listed) == []


def test_every_page_that_the_code_names_exists() -> None:
    """In messages, comments, stack files and workflows."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    missing = [
        f"{file}: docs/{page}"
        for file in files
        if Path(file).suffix in (".py", ".yaml", ".yml", ".toml") and (ROOT / file).exists()
        for page in re.findall(r"(?<![\w./-])docs/([\w-]+\.md)", (ROOT / file).read_text("utf-8"))
        if not (ROOT / "docs" / page).exists()
    ]
    assert missing == []


def test_the_messages_that_are_explained_are_the_programs_own() -> None:
    """Except Kubernetes' messages. Three dots stand for the variable parts."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    ours = text[: text.index("## Kubernetes says")]
    rows = re.findall(r"^\| (`.*?`(?:(?:, | or )`.*?`)*) \|", ours, re.MULTILINE)
    assert len(rows) > 20
    told = _told()
    missing = []
    for message in (message for row in rows for message in re.findall(r"`(.*?)`", row)):
        for part in (part.strip(" ;(") for part in message.removeprefix("event=").split("...")):
            if len(part) > 4 and not any(part in constant for constant in told):
                missing.append(f"{message}: {part}")
    assert missing == []


def _told() -> set[str]:
    """Every text in the program, adjacent literals joined as Python joins them."""
    found = set()
    for folder in ("infra", "workloads", "cli", "trainer", "local"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return found


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("3, 10", "python3 is 3.10; needs 3.11 or newer: make up PYTHON="),
        ("3, 11", "python3 has no venv: apt-get install"),
    ],
)
def test_make_says_what_is_wrong_with_a_python(version: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    for name in ("requirements/bootstrap.txt", "requirements/infra.txt", "cli/trainyard"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    program = tmp_path / "python3"
    pretend = f"import sys; sys.version_info = ({version}); sys.modules['ensurepip'] = None; exec(sys.argv[1])"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$2"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["make", ".venv/infra.stamp", f"PYTHON={program}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert f"error: {tmp_path}/{said}" in done.stdout + done.stderr


@pytest.mark.parametrize(("given", "asks"), [([], True), (["YES="], True), (["YES=1"], False)])
def test_make_clean_asks_unless_it_is_told_not_to(given: list[str], asks: bool) -> None:
    """`trainyard local down --all` does, without --yes (tests/local/test_leftovers.py)."""
    command = ["make", "--dry-run", "--old-file=.venv/infra.stamp", "clean", *given]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # not within make test
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert line.split()[1:] == ["local", "down", "--all", *([] if asks else ["--yes"])]
