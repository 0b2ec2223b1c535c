"""README's commands for kind, run in their own checkout on a machine with Docker and Pulumi but without a node."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from local import commands, paths
from tests.conftest import write_kubeconfig

#: Programs that build, install or need root: none may be called.
FORBIDDEN = ("go", "apt-get", "nsenter", "mount", "buildah", "mmdebstrap", "containerd")
#: Records its arguments, sets the context like `pulumi config set`, and fetches plugins.
PULUMI = """
case "$*" in
  *"--path cluster.context "*) sed -i "s/context: .*/context: $7/" Pulumi.local.yaml ;;
  "plugin install "*)
    folder="$PULUMI_HOME/plugins/resource-$4-v$5"; mkdir -p "$folder"; touch "$folder/pulumi-resource-$4" ;;
  "up "*) exit 7 ;;
  "stack export "*) echo "{}" ;;
esac
"""


class Checkout:
    """A copy of the repository, and a PATH whose programs record how they were called."""

    def __init__(self, folder: Path):
        self.folder, self.notes = folder / "checkout", folder / "notes"
        for name in ("cli", "infra", "local", "requirements", "trainer", "workloads", "Makefile", "Pulumi.local.yaml"):
            source, copy = paths.ROOT / name, self.folder / name
            copy.parent.mkdir(exist_ok=True)
            shutil.copytree(source, copy) if source.is_dir() else shutil.copy2(source, copy)
        assert "context: trainyard-local" in (self.folder / "Pulumi.local.yaml").read_text()
        (self.folder / ".venv").symlink_to(paths.ROOT / ".venv")
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in FORBIDDEN:
            self.program(name)
        self.program("pulumi", PULUMI)
        self.program("pulumi-language-python")
        # The builder exists, so it is inspected and not created again.
        self.program("docker", """echo 'Driver Options: network="host"'""")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PULUMI_", "MAKE"))},
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "KUBECONFIG": str(write_kubeconfig(folder / "kubeconfig", "kind-kind", None)),
        }

    def program(self, name: str, text: str = "") -> None:
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.notes}\n{text}\n')
        path.chmod(0o755)

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120
        )

    def called(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


USE = ".venv/bin/trainyard local use kind-kind --registry localhost:5001"
#: Without pip, since the virtual environment is that of the real checkout.
UP, DOWN = "make -o .venv/infra.stamp up", "make -o .venv/infra.stamp down"


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout where `pulumi up` has begun on kind."""
    made = Checkout(tmp_path_factory.mktemp("ready"))
    typed = made.type(USE)
    assert typed.returncode == 0, typed.stdout + typed.stderr
    typed = made.type(UP)
    assert typed.returncode == 2, typed.stdout + typed.stderr
    assert "Error 7" in typed.stderr, "Pulumi's own exit code, and no training to follow"
    return made


def test_make_up_runs_pulumi_up_and_asks_nobody(ready: Checkout) -> None:
    asked = [line for line in ready.called() if line.startswith(("pulumi stack", "pulumi up"))]
    assert asked[-2:] == [
        "pulumi stack select --create local",
        "pulumi up --stack local --yes --skip-preview --suppress-progress --suppress-outputs",
    ]


def test_make_down_destroys_a_stack_that_is_there_and_removes_it(ready: Checkout) -> None:
    state = ready.folder / ".local/state/.pulumi/stacks/trainyard/local.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    before = len(ready.called())
    typed = ready.type(DOWN)
    assert typed.returncode == 0, typed.stdout + typed.stderr
    state.unlink()
    assert [line for line in ready.called()[before:] if line.startswith("pulumi ")] == [
        "pulumi stack export --stack local --non-interactive",
        "pulumi destroy --stack local --yes --skip-preview --suppress-progress --suppress-outputs",
        "pulumi stack rm local --yes --preserve-config",
    ]


def test_nothing_is_built_and_no_node_is_started(ready: Checkout) -> None:
    called = ready.called()
    assert {line.split()[0] for line in called} == {"pulumi", "docker"}, called
    assert not (ready.folder.parent / "cache").exists(), "the toolchain's builds"
    assert not (ready.folder / ".local/processes").exists(), "the node's daemons"
    settings = [line.rsplit(maxsplit=2)[-2:] for line in called if line.startswith("pulumi config set")]
    assert settings == [
        ["cluster.context", "kind-kind"],
        ["image.registry", "localhost:5001"],
        ["image.buildx", "trainyard"],
    ]


def test_the_two_plugins_that_it_needs_are_fetched_once(ready: Checkout) -> None:
    fetched = [line for line in ready.called() if " plugin install " in line]
    assert fetched == [
        f"pulumi plugin install resource {name} {version(f'pulumi-{name}')}" for name in ("kubernetes", "docker-build")
    ]


def test_a_context_that_no_kubeconfig_has_is_refused_before_anything_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", "kind-kind", None)))
    monkeypatch.setattr(commands, "up", lambda context: pytest.fail("it builds the toolchain"))
    assert commands.use("kind-kin", registry="localhost:5001") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("local: cluster.context: 'kind-kin' is not in ")
    assert "known contexts: kind-kind" in line


def test_the_local_node_takes_no_other_registry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "up", lambda context: pytest.fail("it starts the node"))
    assert commands.use("trainyard-local", registry="localhost:5001") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "local: --registry localhost:5001: trainyard-local has a registry of its own; leave --registry out"
