"""The workflows do what a person can do here, with pinned actions, and give strangers nothing."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import deploy
from cli.__main__ import main
from infra.eks.doctor import aws_client
from infra.eks.section import KEEP_RELEASES
from infra.parse import parse
from infra.stackfiles import ROOT, stack_file_values, stacks
from local import toolchain
from review.recording import record_anywhere

FOLDER = ROOT / ".github"
WORKFLOWS = sorted(FOLDER.glob("workflows/*.yml"))
FILES = [*WORKFLOWS, *FOLDER.glob("actions/*/action.yml")]
#: Programs of e2e.yml that make room on a hosted runner, and that gather what a failure left there.
HOSTED = ("sudo", "kind", "kubectl")
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
    return set(re.findall(r"^([a-z0-9./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_actionlint_finds_nothing() -> None:
    program = Path(toolchain.program("actionlint"))
    if not program.exists():
        pytest.fail("actionlint is not built; run `trainyard local toolchain actionlint`")
    found = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_command_can_be_typed(path: Path) -> None:
    """What continuous integration does can be done, and be looked into, on any machine."""
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
                words = r'([a-z-]+)( [a-z]+)?(?: --?[a-z]+| [a-z][a-z0-9:-]*| "[^"]*")*(?: >> "\$\w+")?'
                found = re.fullmatch(rf"(?:exec )?\.venv/bin/trainyard {words}", command)
                assert found, command
                command_help(found[1], *(found[2] or "").split())


def command_help(*names: str) -> None:
    """A command that is not there fails."""
    assert main([*names, "--help"]) == 0, names


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
    (preview,) = [step["with"] for _, step in pulumi_steps() if "command" in step["with"]]
    assert preview["comment-on-pr"]
    assert preview["edit-pr-comment"]
    assert preview["suppress-outputs"]
    assert preview["policyPacks"] == "policy"
    assert preview["stack-name"] == "${{ matrix.stack }}"
    assert "--suppress-outputs" in deploy.QUIET
    assert deploy.COMMANDS["up"][-2:] == ("--policy-pack", "policy")


def deploying() -> dict[str, list[dict[str, Any]]]:
    """Workflow -> the steps of its job that runs `trainyard deploy`."""
    return {
        path.stem: job["steps"]
        for path in WORKFLOWS
        for job in jobs(path).values()
        if any("exec " in step.get("run", "") for step in job["steps"])
    }


def test_a_job_that_is_cancelled_settles_what_it_began() -> None:
    changing = {name: found for name, found in deploying().items() if name != "drift"}
    assert set(changing) == {"up", "destroy", "ttl"}
    for name, found in changing.items():
        change, settle = found[-2:]
        assert change["id"] == "change"
        # GitHub's signal reaches the first process alone: a shell or make would not pass it on.
        assert change["run"].startswith("exec ")
        assert settle["run"] == '.venv/bin/trainyard deploy settle "$STACK"'
        assert settle["if"].startswith("cancelled() && "), name
        assert settle["env"] == change["env"]
        (job,) = [job for job in jobs(workflow(name)).values() if job["steps"][-1] == settle]
        assert job["timeout-minutes"] == "${{ vars.RUNNER && 4320 || 360 }}", "the stack's own limit ends it"


def test_credentials_last_as_long_as_a_job_may() -> None:
    for name, found in deploying().items():
        (ready,) = [step["with"] for step in found if step.get("uses") == "./.github/actions/ready"]
        assert ready.get("aws-seconds", 3600) >= (3600 if name == "drift" else deploy.HOSTED_MINUTES * 60)


def test_a_runner_of_ones_own_never_runs_what_a_stranger_wrote() -> None:
    own = "${{ vars.RUNNER || 'ubuntu-24.04' }}"
    for path in WORKFLOWS:
        for name, job in jobs(path).items():
            clouds = "id-token" in job.get("permissions", {})
            assert job["runs-on"] == (own if clouds else "ubuntu-24.04"), f"{path.stem} {name}"


def test_a_preview_says_first_whether_it_reaches_the_cluster() -> None:
    found = jobs(workflow("preview"))["preview"]["steps"]
    reach = '.venv/bin/trainyard deploy reach "$STACK"'
    (at,) = [number for number, step in enumerate(found) if step.get("run") == reach]
    assert "pulumi/actions" in found[at + 1]["uses"]


@pytest.mark.parametrize("stack", CLOUD)
def test_a_limit_follows_the_stacks_keys(stack: str) -> None:
    values = stack_file_values(stack)
    config = parse(values, stack)
    limit = deploy.minutes("up", config)
    for section, more in (("dataset", {}), ("check", {"enabled": True})):
        minutes = getattr(config, section).timeout_minutes + 7
        longer = {**values, section: {**values.get(section, {}), **more, "timeoutMinutes": minutes}}
        assert deploy.minutes("up", parse(longer, stack)) >= limit + 7
    assert deploy.minutes("destroy", config) == deploy.MINUTES["destroy"]


def test_a_runner_that_does_not_reach_the_cluster_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Aws:
        def ask(self, service: str, operation: str, **given: Any) -> dict[str, Any]:
            return {"cluster": {"endpoint": f"https://{'0' * 32}.invalid"}}

    monkeypatch.setattr(aws_client, "own_address", lambda: "198.51.100.9")
    monkeypatch.setattr(aws_client, "connect", lambda region: Aws())
    assert main(["deploy", "reach", "aws-g4dn"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: eks.apiAllowedCidrs: ")
    assert "does not let in 198.51.100.9, and the cluster is not reachable from here; name a runner inside" in error
    # A runner inside reaches the private address, whatever the list says.
    monkeypatch.setattr(deploy, "_answers", lambda host: True)
    assert main(["deploy", "reach", "aws-g4dn"]) == 0
    monkeypatch.setattr(deploy, "_answers", lambda host: False)
    allowed = stack_file_values("aws-g4dn")["eks"]["apiAllowedCidrs"][0].partition("/")[0]
    monkeypatch.setattr(aws_client, "own_address", lambda: allowed)
    assert main(["deploy", "reach", "aws-g4dn"]) == 0
    # GKE's endpoint is a name that everybody reaches and that IAM guards.
    assert main(["deploy", "reach", "gcp-c3"]) == 0


def test_whatever_changes_a_stack_waits_for_what_changes_it_already() -> None:
    for name in ("up", "destroy", "ttl", "drift"):
        job = list(jobs(workflow(name)).values())[-1]
        assert job["concurrency"]["group"] in ("stack-${{ inputs.stack }}", "stack-${{ matrix.stack }}")
        assert job["concurrency"]["cancel-in-progress"] is False


def test_drift_changes_nothing_and_fails_when_something_has_changed() -> None:
    """On the engine: tests/e2e/test_deploy.py."""
    (drift,) = [step for step in deploying()["drift"] if "trainyard deploy" in step.get("run", "")]
    assert " drift " in drift["run"]
    command, *options = deploy.COMMANDS["drift"]
    assert command == "preview"
    assert {"--refresh", "--expect-no-changes"} <= set(options)


def test_a_stack_is_destroyed_from_where_its_cluster_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a forgotten one would be paid for until somebody with the right address comes by."""
    monkeypatch.setattr(deploy, "unreachable", lambda config: "not from here")
    monkeypatch.setattr(deploy, "change", lambda *_: 0)
    assert main(["deploy", "destroy", "aws-g4dn"]) == 0
    assert main(["deploy", "up", "aws-g4dn"]) == 2
    objects = [item for item in record_anywhere("aws-g4dn").resources if item.type.startswith("kubernetes:")]
    assert len(objects) > 20
    assert all(item.deleted_with for item in objects if not item.type.endswith("Patch"))


@pytest.mark.parametrize(("command", "keeps"), [("drift", True), ("up", False)])
def test_drift_alone_lets_nodes_keep_their_release(
    command: str, keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pulumi").write_text(f'#!/bin/sh\necho "kept=${KEEP_RELEASES}"\n')
    (tmp_path / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path))
    run = deploy.Run()
    assert run.start(command, "aws-g4dn").wait() == 0
    assert ("kept=true" in run.text()) is keeps


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


DOCKER = """case "$*" in
  *State.Running*) cat running 2>/dev/null ;;
  *Networks.kind*) cat network 2>/dev/null || echo null ;;
  *"cp /dev/stdin"*) cat > hosts.toml ;;
esac"""
KIND = """case "$*" in "get nodes") echo kind-control-plane ;; "get clusters") cat clusters 2>/dev/null ;; esac"""


def test_a_kind_cluster_pulls_from_the_registry_that_this_machine_pushes_to(tmp_path: Path) -> None:
    for name, text in (("docker", DOCKER), ("kind", KIND), ("kubectl", "cat > applied")):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> notes\n{text}\n')
        (tmp_path / name).chmod(0o755)

    def run() -> list[str]:
        (tmp_path / "notes").unlink(missing_ok=True)
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        subprocess.run([ROOT / ".ci" / "kind"], cwd=tmp_path, env=path, check=True, timeout=30)
        asking = ("docker inspect", "kind get")
        return [line for line in (tmp_path / "notes").read_text().splitlines() if not line.startswith(asking)]

    folder = "/etc/containerd/certs.d/localhost:5001"
    node = [
        f"docker exec kind-control-plane mkdir -p {folder}",
        f"docker exec --interactive kind-control-plane cp /dev/stdin {folder}/hosts.toml",
    ]
    apply = "kubectl --context kind-kind apply --filename -"
    first = run()
    assert re.fullmatch(
        r"docker run .* --publish 127.0.0.1:5001:5000 .* --name kind-registry registry:\S+@sha256:\w{64}", first[0]
    )
    assert first[1:] == ["kind create cluster --wait 2m", *node, "docker network connect kind kind-registry", apply]
    assert (tmp_path / "hosts.toml").read_text() == '[host."http://kind-registry:5000"]\n'
    told = yaml.safe_load(yaml.safe_load((tmp_path / "applied").read_text())["data"]["localRegistryHosting.v1"])
    assert told["host"] == "localhost:5001"
    for name, text in (("running", "true"), ("clusters", "kind"), ("network", "{}")):
        (tmp_path / name).write_text(f"{text}\n")
    assert run() == [*node, apply], "what is there stays"
