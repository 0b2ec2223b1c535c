"""The workflows do what a person can do here, with pinned actions, and give strangers nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.recording import ROOT, stack_file_values, stacks
from local import toolchain

FOLDER = ROOT / ".github"
WORKFLOWS = sorted(FOLDER.glob("workflows/*.yml"))
FILES = [*WORKFLOWS, *FOLDER.glob("actions/*/action.yml")]
#: Of a stack that makes its cluster; the local one is a machine of somebody's own.
CLOUD = [name for name in stacks() if "context" not in stack_file_values(name)["cluster"]]


def load(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    content = yaml.safe_load(path.read_text())
    return {("on" if key is True else key): value for key, value in content.items()}


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    content = load(path)
    return content.get("jobs") or {"action": content["runs"]}


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job["steps"]]


def workflow(name: str) -> Path:
    return FOLDER / "workflows" / f"{name}.yml"


def targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_actionlint_finds_nothing() -> None:
    program = Path(toolchain.program("actionlint"))
    if not program.exists():
        pytest.fail("actionlint is not built; run `python -m local toolchain actionlint`")
    found = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_command_is_a_make_target(path: Path) -> None:
    """What continuous integration does can be done, and be looked into, on any machine."""
    for step in steps(path):
        if "run" in step:
            command = step["run"].strip()
            assert "\n" not in command
            assert "${{" not in command, "an expression in a command is text of a stranger's; give it as env"
            found = re.fullmatch(
                r'make (?:--silent )?("\$TARGET"|[a-z-]+)(?: [A-Z]+="[^"]*")*(?: >> "\$\w+")?', command
            )
            assert found, command
            named = jobs(path)["check"]["strategy"]["matrix"]["target"] if "TARGET" in found[1] else [found[1]]
            assert set(named) <= targets(), command


@pytest.mark.parametrize(
    "target", ["lint", "test", "engine", "audit", "plan", "ready", "expired", "docker-login", "image"]
)
def test_make_knows_how(target: str) -> None:
    """Nothing is run: make says what it would type."""
    command = ["make", "--dry-run", target, "STACK=gcp-c3", "REGISTRY=ghcr.io/you"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_action_is_pinned_by_commit_and_says_its_version(path: Path) -> None:
    for line in path.read_text().splitlines():
        if found := re.search(r"uses: (\S+)(.*)", line):
            if found[1].startswith("./"):
                assert (ROOT / found[1] / "action.yml").exists()
            else:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", found[1]), line
                assert re.fullmatch(r" # v\d+\.\d+\.\d+", found[2]), line
    used = {line.split("uses: ")[1] for file in FILES for line in file.read_text().splitlines() if "uses: " in line}
    names = [entry.split("@")[0] for entry in used]
    assert len(names) == len(set(names)), "one version of an action everywhere"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_may_do_what_it_says_and_no_more(path: Path) -> None:
    content = load(path)
    assert content["permissions"] in ({}, {"contents": "read"})
    # With it, a stranger's code would run with the repository's secrets.
    assert "pull_request_target" not in content["on"]
    for job in jobs(path).values():
        writable = {name for name, value in job.get("permissions", {}).items() if value == "write"}
        assert writable <= ({"packages"} if path.stem == "image" else {"id-token", "pull-requests"})
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


def test_a_fork_gets_no_identity_and_no_secret() -> None:
    preview = jobs(workflow("preview"))
    assert preview["plan"]["permissions"] == {"contents": "read"}
    assert "secrets." not in yaml.safe_dump(preview["plan"])
    same = "github.event.pull_request.head.repo.full_name == github.repository"
    assert preview["preview"]["if"].startswith(f"{same} && ")
    assert same.replace("==", "!=") in preview["plan"]["if"]


@pytest.mark.parametrize("name", ["up", "destroy"])
def test_a_change_is_asked_for_by_hand_and_approved(name: str) -> None:
    content = load(workflow(name))
    assert list(content["on"]) == ["workflow_dispatch"]
    assert content["on"]["workflow_dispatch"]["inputs"]["stack"]["options"] == sorted(CLOUD)
    (job,) = content["jobs"].values()
    assert job["environment"] == "${{ inputs.stack }}", "its reviewers approve"


def pulumi_steps() -> list[tuple[Path, dict[str, Any]]]:
    return [(path, step) for path in WORKFLOWS for step in steps(path) if "pulumi/actions" in step.get("uses", "")]


def test_the_engine_is_of_the_sdks_version() -> None:
    locked = re.search(r"^pulumi==(\S+)", (ROOT / "requirements" / "infra.txt").read_text(), re.MULTILINE)
    assert locked
    assert {step["with"]["pulumi-version"] for _, step in pulumi_steps()} == {locked[1]}


def test_a_comment_a_stack_without_outputs_held_to_the_policy() -> None:
    (preview,) = [step["with"] for path, step in pulumi_steps() if path.stem == "preview"]
    assert preview["comment-on-pr"]
    assert preview["edit-pr-comment"]
    assert preview["stack-name"] == "${{ matrix.stack }}"
    for path, step in pulumi_steps():
        if "command" in step["with"]:
            assert step["with"]["suppress-outputs"]
            assert (step["with"].get("policyPacks") == "policy") == (path.stem in ("preview", "up"))


def test_whatever_changes_a_stack_waits_for_what_changes_it_already() -> None:
    for name in ("up", "destroy", "ttl", "drift"):
        job = list(jobs(workflow(name)).values())[-1]
        assert job["concurrency"]["group"] in ("stack-${{ inputs.stack }}", "stack-${{ matrix.stack }}")
        assert job["concurrency"]["cancel-in-progress"] is False


def test_drift_changes_nothing_and_fails_when_something_has_changed() -> None:
    (drift,) = [step["with"] for path, step in pulumi_steps() if path.stem == "drift"]
    assert (drift["command"], drift["refresh"], drift["expect-no-changes"]) == ("preview", True, True)
