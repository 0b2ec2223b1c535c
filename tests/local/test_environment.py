"""The environment of `env` and `run`: which Pulumi, which plugin and which kubeconfig a command finds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from cli.__main__ import main
from local import environment, paths, toolchain
from local.phases import load

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


def stand_in() -> Path | None:
    """The launcher of the stand-in, where the engine finds it."""
    on_path = shutil.which(environment.PLUGIN, path=environment.path())
    places = [paths.PULUMI_HOME / "plugins" / FOLDER / environment.PLUGIN, *([Path(on_path)] if on_path else [])]
    found = [place for place in places if place.exists() and "local.plugin" in place.read_text()]
    assert len(found) < 2
    return found[0] if found else None


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_without_pulumi_ours_comes_first_and_the_stand_in_is_used(machine: Path) -> None:
    assert environment.installed_pulumi() is None
    assert "stand-in" in environment.choose_plugin(download=False)
    assert stand_in() == paths.PULUMI_HOME / "plugins" / FOLDER / environment.PLUGIN, "on PATH it costs two warnings"
    parts = environment.path().split(os.pathsep)
    assert str(toolchain.bin_directory(toolchain.BY_NAME["pulumi"])) in parts
    assert parts[-1] == "/usr/bin"


def test_the_launcher_starts_the_stand_in_from_anywhere(machine: Path) -> None:
    environment.choose_plugin(download=False)
    launcher = stand_in()
    assert launcher is not None
    text = launcher.read_text()
    assert f"PYTHONPATH={paths.ROOT}" in text
    assert f"exec {sys.executable} -m local.plugin" in text
    assert os.access(launcher, os.X_OK)


def test_an_installed_pulumi_is_used_as_it_is(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(machine / "bin" / "pulumi")
    monkeypatch.setenv("PATH", f"{machine}/bin:/usr/bin")
    assert environment.installed_pulumi() is None  # it has no language host: it could not run this program
    executable(machine / "bin" / "pulumi-language-python")
    assert environment.installed_pulumi() == machine / "bin" / "pulumi"
    assert str(toolchain.bin_directory(toolchain.BY_NAME["pulumi"])) not in environment.path()
    # Automatic acquisition would fetch the plugins of AWS and Google Cloud.
    assert environment.settings()["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] == "true"


def test_a_real_plugin_takes_the_stand_in_away(machine: Path) -> None:
    executable(paths.BIN / environment.PLUGIN, environment.LAUNCHER)  # of an earlier version
    environment.choose_plugin(download=False)
    assert stand_in() is not None
    folder = environment.USER_PULUMI / "plugins"
    executable(folder / "resource-kubernetes-v4.0.0" / environment.PLUGIN)
    assert "stand-in" in environment.choose_plugin(download=False), "the engine takes none that is older"
    assert stand_in() is not None
    assert not (folder / FOLDER).exists(), "the stand-in is not among the user's plugins"
    plugin = executable(folder / FOLDER / environment.PLUGIN)
    assert environment.PLUGIN in environment.choose_plugin(download=False)
    assert stand_in() is None
    # The engine looks in PULUMI_HOME, which is ours: it must find the user's plugin there.
    assert (paths.PULUMI_HOME / "plugins" / plugin.parent.name / environment.PLUGIN).exists()


def test_the_users_plugins_do_not_count_where_ours_are_apart(machine: Path) -> None:
    """The engine looks in our PULUMI_HOME alone, which keeps what Pulumi fetched before the user had plugins."""
    executable(paths.PULUMI_HOME / "plugins/resource-docker-build-v0.0.1/pulumi-resource-docker-build")
    executable(environment.USER_PULUMI / "plugins" / FOLDER / environment.PLUGIN)
    assert "stand-in" in environment.choose_plugin(download=False)
    assert stand_in() == paths.PULUMI_HOME / "plugins" / FOLDER / environment.PLUGIN


def test_a_half_downloaded_plugin_is_none(machine: Path) -> None:
    (environment.USER_PULUMI / "plugins" / FOLDER).mkdir(parents=True)
    environment.share_plugins()
    assert environment.real_plugin("kubernetes") is None


def test_a_pulumi_that_fetches_its_plugin_gets_no_stand_in(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Like Pulumi, the script takes a plugin whose folder exists for installed.
    environment.choose_plugin(download=False)
    assert stand_in() is not None
    fetched = "$PULUMI_HOME/plugins/resource-kubernetes-v$5"
    script = f"#!/bin/sh\ntest -d {fetched} && exit\nmkdir -p {fetched}\ntouch {fetched}/{environment.PLUGIN}\n"
    executable(machine / "bin" / "pulumi", script)
    executable(machine / "bin" / "pulumi-language-python")
    monkeypatch.setenv("PATH", f"{machine}/bin:/usr/bin:/bin")
    assert "resource-kubernetes-v" in environment.choose_plugin(download=False)
    assert stand_in() is None


def test_a_pulumi_that_cannot_fetch_it_gets_the_stand_in(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(machine / "bin" / "pulumi", "#!/bin/sh\nexit 1\n")
    executable(machine / "bin" / "pulumi-language-python")
    monkeypatch.setenv("PATH", f"{machine}/bin:/usr/bin:/bin")
    assert "stand-in" in environment.choose_plugin(download=False)


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


def test_run_gives_back_the_exit_code_and_keeps_the_phase(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "TIMINGS", machine / "timings.json")
    assert main(["local", "run", "--phase", "test of run", "--", "sh", "-c", "exit 7"]) == 7
    assert "test of run" in [timing.name for timing in load(paths.TIMINGS)]


def test_run_of_an_unknown_program_is_one_line() -> None:
    command = [sys.executable, "-m", "cli", "local", "run", "--", "no-such-program"]
    result = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "no program 'no-such-program'" in result.stderr


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
