"""The workflows do what a person can do here, with pinned actions, and give strangers nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.__main__ import main
from cli.target import PROOF
from infra.clouds import CLOUDS
from infra.stackfiles import ROOT
from tests.infra.recorded import CLOUD_STACKS

FOLDER = ROOT / ".github"
WORKFLOWS = sorted(FOLDER.glob("workflows/*.yml"))
FILES = [*WORKFLOWS, *FOLDER.glob("actions/*/action.yml")]
#: Programs of e2e.yml that free disk on a hosted runner, and that collect what a failure left there; ci.yml's audit.
HOSTED = ("sudo", "kind", "kubectl", ".venv/bin/pip-audit")


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
    return set(re.findall(r"^([a-z0-9./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_command_can_be_typed(path: Path) -> None:
    """Whatever continuous integration does can be run and debugged on any machine."""
    for step in steps(path):
        if "run" in step:
            command = step["run"].strip()
            assert "\n" not in command
            assert "${{" not in command, "an expression in a command is text of a stranger's; give it as env"
            if found := re.fullmatch(r'make ("\$TARGET"|[a-z./-]+)( MARKS=engine)?', command):
                named = jobs(path)["check"]["strategy"]["matrix"]["target"] if "TARGET" in found[1] else [found[1]]
                assert set(named) <= targets(), command
            elif found := re.fullmatch(r"(\.ci/\w+)|\.venv/bin/python -m pytest --exitfirst (\S+)", command):
                assert (ROOT / (found[1] or found[2])).exists(), command
            elif command.split()[0] not in HOSTED:
                words = r'([a-z-]+)( [a-z][a-z-]*)?(?: --?[a-z]+| [a-z][a-z0-9:-]*| "[^"]*")*(?: >> "\$\w+")?'
                found = re.fullmatch(rf"(?:exec )?\.venv/bin/trainyard {words}", command)
                assert found, command
                assert main([found[1], *(found[2] or "").split(), "--help"]) == 0, "there is such a command"


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
        assert writable <= ({"packages"} if path.stem == "image" else {"id-token"})
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


def test_a_fork_gets_no_identity_and_no_secret() -> None:
    preview = jobs(workflow("preview"))
    assert preview["snapshots"]["permissions"] == {"contents": "read"}
    assert "secrets." not in yaml.safe_dump(preview["snapshots"])
    same = "github.event.pull_request.head.repo.full_name == github.repository"
    assert preview["preview"]["if"].startswith(f"{same} && ")
    assert same.replace("==", "!=") in preview["snapshots"]["if"]


@pytest.mark.parametrize("name", ["up", "destroy"])
def test_a_change_is_asked_for_by_hand_and_approved(name: str) -> None:
    content = load(workflow(name))
    assert list(content["on"]) == ["workflow_dispatch"]
    assert content["on"]["workflow_dispatch"]["inputs"]["stack"]["options"] == sorted(CLOUD_STACKS)
    (job,) = content["jobs"].values()
    assert job["environment"] == "${{ inputs.stack }}", "its reviewers approve"


def pulumi_steps() -> list[tuple[Path, dict[str, Any]]]:
    return [(path, step) for path in WORKFLOWS for step in steps(path) if "pulumi/actions" in step.get("uses", "")]


def test_the_engine_is_of_the_sdks_version() -> None:
    locked = re.search(r"^pulumi==(\S+)", (ROOT / "requirements" / "infra.txt").read_text(), re.MULTILINE)
    assert locked
    assert {step["with"]["pulumi-version"] for _, step in pulumi_steps()} == {locked[1]}


def commands() -> dict[str, dict[str, Any]]:
    """Workflow -> what its Pulumi step is given."""
    return {path.stem: step["with"] for path, step in pulumi_steps() if "command" in step["with"]}


def test_every_change_is_held_to_the_policy_and_shows_no_outputs() -> None:
    found = commands()
    said = {name: given["command"] for name, given in found.items()}
    assert said == {"preview": "preview", "up": "up", "drift": "preview"}
    assert all(given["suppress-outputs"] for given in found.values())
    for name in ("preview", "up"):
        (job,) = [job for job in jobs(workflow(name)).values() if job["steps"][-1].get("with") == found[name]]
        (held,) = [step for step in job["steps"] if "dev policy" in step.get("run", "")]
        assert held["run"] == '.venv/bin/trainyard dev policy --stack "$STACK"'
        assert held["env"]["STACK"] == found[name]["stack-name"]
    assert all(given["comment-on-summary"] for given in found.values())
    for name, given in found.items():
        assert given["stack-name"] == f"${{{{ {'inputs' if name == 'up' else 'matrix'}.stack }}}}"


@pytest.mark.parametrize(("name", "of"), [("destroy", "inputs"), ("ttl", "matrix")])
def test_a_destroy_is_ours_which_looks_for_what_is_protected(name: str, of: str) -> None:
    """pulumi/actions skips the preview, in which Pulumi would refuse."""
    job = list(jobs(workflow(name)).values())[-1]
    (down,) = [step for step in job["steps"] if "run" in step]
    assert down["run"] == '.venv/bin/trainyard down --stack "$STACK" --yes'
    assert down["env"]["STACK"] == f"${{{{ {of}.stack }}}}"
    needed = {"PULUMI_BACKEND_URL", "PULUMI_ACCESS_TOKEN", "PULUMI_CONFIG_PASSPHRASE"}
    assert needed < down["env"].keys()


def test_what_a_stack_shows_is_its_own_even_where_another_name_begins_with_its_name() -> None:
    """pulumi/actions finds the comment to edit by how it begins (issue 1165 there): aws-g4dn would write into that of
    aws-g4dn-west. A job's summary belongs to the job, and a stack has one."""
    for name, given in commands().items():
        assert not {key for key in given if "comment-on-pr" in key or "pr-comment" in key}, name
        assert "pull-requests" not in str(load(workflow(name)))
    (job,) = [job for job in jobs(workflow("preview")).values() if "strategy" in job]
    assert list(job["strategy"]["matrix"]) == ["stack"]


def test_a_runner_of_ones_own_never_runs_what_a_stranger_wrote() -> None:
    for path in WORKFLOWS:
        # preview runs a branch's own code, so its machine is not the one that deploys.
        own = f"${{{{ vars.{'PREVIEW_RUNNER' if path.stem == 'preview' else 'RUNNER'} || 'ubuntu-24.04' }}}}"
        for name, job in jobs(path).items():
            clouds = "id-token" in job.get("permissions", {})
            assert job["runs-on"] == (own if clouds else "ubuntu-24.04"), f"{path.stem} {name}"


def test_a_stack_logs_in_to_the_cloud_of_its_file_whatever_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A stack that `trainyard init` wrote may have any name, and a proof that died is destroyed like its stack."""
    told, *logins = [step for step in steps(FOLDER / "actions" / "ready" / "action.yml") if {"id", "if"} & step.keys()]
    assert told["run"].startswith('.venv/bin/trainyard dev kind --stack "$STACK" ')
    made = {kind for kind, cloud in CLOUDS.items() if cloud.section}
    asked = {
        kind for kind in made if any(f"steps.{told['id']}.outputs.kind == '{kind}'" in each["if"] for each in logins)
    }
    assert asked == made
    assert "inputs.stack" not in str(logins)
    assert [main(["dev", "kind", "--stack", name]) for name in ("aws-g4dn", f"{PROOF}gcp-c3", "local", "")] == [0] * 4
    assert capsys.readouterr().out == "kind=eks\nkind=gke\nkind=existing\nkind=\n"


def test_kind_is_used_as_the_readme_says_and_nobody_is_trusted() -> None:
    block = next(
        text for text in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL) if "kind-" in text
    )
    typed = [part.strip() for line in block.splitlines() for part in line.partition(" #")[0].split("&&")]
    typed = [part.replace("trainyard", ".venv/bin/trainyard") for part in typed if not part.startswith("source ")]
    done = [step.get("run", "") for step in steps(workflow("e2e"))]
    at = done.index(typed[0])
    assert done[at : at + len(typed)] == typed
    assert done[at - 1] == ".ci/kind"
    assert "secrets." not in workflow("e2e").read_text()
