"""`trainyard deploy` in a workflow, with the real Pulumi: a cancelled job leaves no locked stack."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from local import environment, paths
from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import CloudStack

pytestmark = pytest.mark.engine

#: A stack of one resource, which takes %s seconds to create.
PROGRAM = """
import time
from pathlib import Path
from pulumi.dynamic import CreateResult, Resource, ResourceProvider

class Slow(ResourceProvider):
    def create(self, props):
        Path("begun").touch()
        time.sleep(%s)
        return CreateResult(id_="1", outs={})

class Thing(Resource):
    pass

Thing(Slow(), "slow", {})
"""
#: Runs cli.deploy on that project in place of the repository, without the policy pack and its environment.
DRIVER = """
import sys
from pathlib import Path
from cli import deploy
from infra.parse import parse
from infra.stackfiles import stack_file_values
command, folder, patience, last = sys.argv[1:]
deploy.ROOT = Path(folder)
deploy.COMMANDS["up"] = ("up", "--yes", "--skip-preview")
if command == "settle":
    sys.exit(deploy.end("local", deploy.Run(), float(patience), float(last)))
sys.exit(deploy.change(command, "local", parse(stack_file_values("local"), "local"), deploy.Run()))
"""


@dataclass
class Project:
    folder: Path
    environment: dict[str, str]
    driver: str = DRIVER

    def write(self, seconds: float) -> None:
        (self.folder / "__main__.py").write_text(PROGRAM % seconds)

    def start(self, command: str, patience: float = 60, last: float = 60) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", self.driver, command, str(self.folder), str(patience), str(last)],
            cwd=paths.ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str, patience: float = 60, last: float = 60) -> tuple[int, str]:
        process = self.start(command, patience, last)
        text, _ = process.communicate(timeout=120)
        return process.returncode, text

    def locks(self) -> list[Path]:
        return list((self.folder / "state").glob(".pulumi/locks/**/*.json"))

    def processes(self) -> set[int]:
        """Process ids of the Pulumi that runs here: the engine, its language host and its plugins."""
        session = int((self.folder / "trainyard-pulumi.pid").read_text())
        listed = subprocess.run(["ps", "-s", str(session), "-o", "pid=,stat="], capture_output=True, text=True).stdout
        # A dead process stays a zombie where process 1 reaps none.
        return {int(pid) for pid, state in map(str.split, listed.splitlines()) if not state.startswith("Z")}

    def cancelled(self) -> None:
        """Cancel `up` while it creates the resource, as GitHub does."""
        process = self.start("up")
        wait_for((self.folder / "begun").exists)
        assert self.locks()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=7.5)
        assert process.returncode == 130


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "state").mkdir()
    options = f"{{virtualenv: {Path(sys.executable).parent.parent}}}"
    (tmp_path / "Pulumi.yaml").write_text(f"name: slow\nruntime: {{name: python, options: {options}}}\n")
    variables = {
        **os.environ,
        **environment.settings(),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment.path()]),
        "PULUMI_HOME": str(tmp_path / "home"),
        "PULUMI_BACKEND_URL": environment.state_url(tmp_path / "state"),
        "PULUMI_CONFIG_PASSPHRASE": "",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }
    return Project(tmp_path, variables)


def test_a_job_that_ends_shows_what_pulumi_said(project: Project) -> None:
    project.write(seconds=0)
    code, text = project.run("up")
    assert code == 0, text
    assert "1 created" in text or "+ 2 created" in text
    assert "### pulumi up local" in (project.folder / "summary").read_text()
    assert project.locks() == []
    # A killed Pulumi leaves an empty .attrs file, which makes the stack unreadable.
    assert not list((project.folder / "state").rglob("*.attrs"))


def test_what_was_begun_when_the_job_was_cancelled_may_end_and_is_in_the_state(project: Project) -> None:
    project.write(seconds=5)
    project.cancelled()
    assert project.locks(), "the step has gone, and Pulumi goes on"
    assert project.run("settle") == (0, "")
    assert project.locks() == []
    command = ["pulumi", "stack", "export", "--stack", "local"]
    state = subprocess.run(command, cwd=project.folder, env=project.environment, capture_output=True, check=True)
    deployment = json.loads(state.stdout)["deployment"]
    assert [item["id"] for item in deployment["resources"] if item["urn"].endswith("::slow")] == ["1"]
    assert not deployment.get("pending_operations")


def test_what_does_not_end_is_left_and_the_stack_is_free(project: Project) -> None:
    project.write(seconds=3600)
    project.cancelled()
    code, text = project.run("settle", patience=1)
    assert code == 0, text
    assert project.locks() == []


def test_a_destroy_fails_that_leaves_what_was_once_begun(project: Project) -> None:
    """The state has forgotten the resource, so nothing would look for it again."""
    project.write(seconds=3600)
    project.cancelled()
    assert project.run("settle", patience=1)[0] == 0
    code, text = project.run("destroy")
    assert code == 1
    assert (
        "error: an earlier Pulumi was interrupted while creating pulumi-python:dynamic:Resource slow, which may exist"
        in text
    )
    command = ["pulumi", "refresh", "--yes", "--clear-pending-creates", "--stack", "local"]
    assert " ".join([*command[:2], *command[3:]]) in text
    subprocess.run(command, cwd=project.folder, env=project.environment, check=True, capture_output=True)
    code, text = project.run("destroy")
    assert code == 0, text


def test_a_pulumi_that_has_to_be_killed_leaves_no_lock(project: Project) -> None:
    project.write(seconds=3600)
    project.cancelled()
    plugins = project.processes()
    assert plugins
    code, text = project.run("settle", patience=0.1, last=0)
    assert code == 0, text
    assert project.locks() == []
    wait_for(lambda: not plugins & project.processes())


def test_a_lock_of_somebody_else_stays(project: Project) -> None:
    """A person's `up` holds the lock when the job's begins, and then the job is cancelled."""
    project.write(seconds=0)
    assert project.run("up")[0] == 0
    lock = project.folder / "state/.pulumi/locks/organization/slow/local/1.json"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(json.dumps({"pid": 1, "username": "me", "hostname": "laptop", "timestamp": "2026-11-22T00:00:00Z"}))
    code, text = project.run("up")
    assert code != 0
    assert "the stack is currently locked by 1 lock(s)" in text
    assert project.run("settle", patience=0.1, last=0)[0] == 0
    assert project.locks() == [lock]


def test_a_limit_ends_pulumi_as_a_cancelled_job_does(project: Project) -> None:
    """On GitHub's machines their own limit counts, where the stack's is longer."""
    project.write(seconds=4)
    project.environment["RUNNER_ENVIRONMENT"] = "github-hosted"
    project.driver = DRIVER.replace("deploy.ROOT =", "deploy.JOB_MINUTES = 0.02\ndeploy.ROOT =")
    code, text = project.run("up")
    assert code == 1
    assert "warning: up may take" in text
    assert "it stops after 0.02 minutes (GitHub's machines" in text
    assert "run it again to continue" in text
    assert "error: not done after 0.02 minutes; interrupting Pulumi" in text
    assert project.locks() == []


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> CloudStack:
    """A stack that exists, in a cloud that is a file."""
    made = cloud_stack.make("gcp-c3", tmp_path_factory.mktemp("drift"))
    made.environment["RUNNER_TEMP"] = str(made.folder)
    made.up()
    return made


def drift(stack: CloudStack) -> tuple[int, str]:
    command = [sys.executable, "-c", DRIVER.replace('"local"', '"gcp-c3"'), "drift", str(stack.folder), "1", "1"]
    with stack.served() as environment:
        done = subprocess.run(
            command,
            cwd=paths.ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
        )
    return done.returncode, done.stdout


def test_drift_sees_what_somebody_deleted_by_hand_and_makes_nothing_anew(stack: CloudStack) -> None:
    code, text = drift(stack)
    assert code == 0, text
    before, file = stack.state(), stack.cloud.path
    content = json.loads(file.read_text())
    (nat,) = [key for key, thing in content["living"].items() if thing["type"] == "gcp:compute/routerNat:RouterNat"]
    del content["living"][nat]
    file.write_text(json.dumps(content))
    code, text = drift(stack)
    assert code != 0
    assert "+ gcp:compute/routerNat:RouterNat: (create)" in text
    assert "error: no changes were expected but changes were proposed" in text
    assert stack.state() == before
    assert nat not in json.loads(file.read_text())["living"]
