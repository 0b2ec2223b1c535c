"""The environment of `env` and `run`: which Pulumi, which plugin and which kubeconfig a command finds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest

from cli.__main__ import main
from local import commands, environment, paths, toolchain, up

PLUGIN = "pulumi-resource-kubernetes"
FOLDER = f"resource-kubernetes-v{version('pulumi-kubernetes')}"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty home and nothing on PATH but /usr/bin."""
    monkeypatch.setattr(paths, "STATE", tmp_path / ".local")
    for name in ("BIN", "PULUMI_HOME", "PULUMI_STATE", "KUBECONFIG", "CONFIGURATION"):
        monkeypatch.setattr(paths, name, tmp_path / ".local" / name.lower())
    monkeypatch.setattr(environment, "USER_PULUMI", tmp_path / "home" / ".pulumi")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return tmp_path


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def built(machine: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tools that are built; each is a script here."""
    names: list[str] = []

    def build(name: str, phases: object) -> None:
        names.append(name)
        for program in toolchain.BY_NAME[name].programs:
            made = toolchain.bin_directory(toolchain.BY_NAME[name]) / program
            if not made.exists():
                executable(made, "#!/bin/sh\necho built\n")

    monkeypatch.setattr(up, "build_tool", build)
    return names


def get_plugin(fetch: bool = False) -> str:
    return up.build_pulumi(cast(Any, None), fetch).removeprefix("Kubernetes plugin: ")


def output(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.strip()


def test_without_pulumi_ours_comes_first_with_its_plugin(machine: Path, built: list[str]) -> None:
    assert environment.installed_pulumi() is None
    assert environment.pulumi_tools() == ("pulumi", "pulumi-language-python", "pulumi-kubernetes")
    place = paths.PULUMI_HOME / "plugins" / FOLDER / PLUGIN
    assert get_plugin() == str(place)
    assert output(place) == "built"
    assert sorted(os.listdir(place.parent)) == [PLUGIN, f"{PLUGIN}.real"], "it ends with its engine"
    (machine / PLUGIN).symlink_to(place)
    assert output(machine / PLUGIN) == "built"
    assert built == ["pulumi", "pulumi-language-python", "pulumi-kubernetes"]
    assert environment.pulumi_tools() == ("pulumi", "pulumi-language-python"), "the plugin is there"
    parts = environment.path().split(os.pathsep)
    assert str(toolchain.bin_directory(toolchain.BY_NAME["pulumi"])) in parts
    assert parts[-1] == "/usr/bin"


def test_an_installed_pulumi_is_used_as_it_is(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(machine / "bin" / "pulumi")
    monkeypatch.setenv("PATH", f"{machine}/bin:/usr/bin")
    assert environment.installed_pulumi() is None  # it has no language host: it could not run this program
    executable(machine / "bin" / "pulumi-language-python")
    assert environment.installed_pulumi() == machine / "bin" / "pulumi"
    assert str(toolchain.bin_directory(toolchain.BY_NAME["pulumi"])) not in environment.path()
    # Automatic acquisition would fetch the plugins of AWS and Google Cloud.
    assert environment.settings()["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] == "true"


def test_a_plugin_that_the_user_has_is_not_built(machine: Path, built: list[str]) -> None:
    folder = environment.USER_PULUMI / "plugins"
    executable(folder / "resource-kubernetes-v4.0.0" / PLUGIN)
    environment.share_plugins()
    assert environment.find_plugin("kubernetes") is None, "the engine takes none that is older"
    executable(folder / FOLDER / PLUGIN)
    # The engine looks in PULUMI_HOME, which is ours: it must find the user's plugin there.
    assert get_plugin() == str(paths.PULUMI_HOME / "plugins" / FOLDER / PLUGIN)
    assert "pulumi-kubernetes" not in built


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("installed", [True, False])
def test_a_pulumi_that_fetches_its_plugin_is_asked_first(
    machine: Path, built: list[str], online: bool, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed one always, and ours for another cluster."""
    fetched = "$PULUMI_HOME/plugins/resource-kubernetes-v$5"
    script = f"#!/bin/sh\nmkdir -p {fetched}\ntouch {fetched}/{PLUGIN}\n" if online else "#!/bin/sh\nexit 1\n"
    folder = machine / "bin" if installed else toolchain.bin_directory(toolchain.BY_NAME["pulumi"])
    executable(folder / "pulumi", script)
    executable(folder / "pulumi-language-python")
    monkeypatch.setenv("PATH", f"{machine}/bin:/usr/bin:/bin")
    place = Path(get_plugin(fetch=not installed))
    assert place.exists()
    assert ("pulumi-kubernetes" in built) is not online


def test_a_plugin_that_cannot_be_had_is_told_with_what_needs_none(
    machine: Path, built: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For another cluster, with BuildKit. The one for Kubernetes is there."""
    executable(machine / "bin" / "pulumi", "#!/bin/sh\necho 'error: lookup get.pulumi.com: no such host' >&2\nexit 1\n")
    executable(machine / "bin" / "pulumi-language-python")
    executable(environment.USER_PULUMI / "plugins" / FOLDER / PLUGIN)
    monkeypatch.setenv("PATH", f"{machine}/bin:/usr/bin:/bin")
    monkeypatch.setattr("infra.buildx.uses_buildkit", lambda: True)
    assert commands.up("kind-kind") == 0
    said = capsys.readouterr().err
    assert f"docker-build {version('pulumi-docker-build')}: not fetched: error: lookup get.pulumi.com" in said
    assert "cannot be fetched; image.builder: buildah or prebuilt needs none" in said


def test_our_kubeconfig_comes_before_the_user_s(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.kubeconfig() == f"{paths.KUBECONFIG}:{machine}/home/.kube/config"
    monkeypatch.setenv("KUBECONFIG", "/one:/two")
    assert environment.kubeconfig() == f"{paths.KUBECONFIG}:/one:/two"
    # Computed again from its own result, it stays the same; so does PATH.
    monkeypatch.setenv("KUBECONFIG", environment.kubeconfig())
    assert environment.kubeconfig() == f"{paths.KUBECONFIG}:/one:/two"
    monkeypatch.setenv("PATH", environment.path())
    assert environment.path() == os.environ["PATH"]


def test_env_prints_what_a_shell_can_read() -> None:
    command = [sys.executable, "-m", "cli", "local", "env"]
    text = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=True).stdout
    shown = 'printf "%s\\n" "$PULUMI_BACKEND_URL" "${PULUMI_CONFIG_PASSPHRASE-unset}" "$PULUMI_SKIP_UPDATE_CHECK"'
    lines = subprocess.run(["sh", "-c", f"{text}\n{shown}"], capture_output=True, text=True, check=True).stdout
    assert lines.splitlines() == [environment.state_url(paths.ROOT / ".local/state"), "", "true"]


def test_run_of_an_unknown_program_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", "run", "--", "no-such-program"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no program 'no-such-program'" in said


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "/x/state"), OSError(28, "No space left")])
def test_a_disk_that_refuses_is_one_line(
    error: OSError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise error

    monkeypatch.setattr("local.up.show_status", fail)
    assert main(["local", "status"]) in (1, 2)
    said = capsys.readouterr().err
    assert said.startswith("local: ")
    assert said.count("\n") == 1


def test_our_pulumi_stands_beside_its_language_host_where_it_looks_without_a_warning(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in toolchain.PULUMI_TOOLS:
        executable(toolchain.bin_directory(toolchain.BY_NAME[name]) / name)
    environment.prepare()
    environment.prepare()
    found = [shutil.which(name, path=environment.path()) for name in ("pulumi", "pulumi-language-python")]
    assert len({Path(str(path)).parent for path in found}) == 1
    # A newly built Pulumi takes the old one's place.
    built = Path(toolchain.program("pulumi"))
    built.unlink()
    executable(built, "#!/bin/sh\necho new\n")
    environment.prepare()
    assert Path(str(shutil.which("pulumi", path=environment.path()))).read_text().endswith("new\n")
