"""Helper programs: their errors, and what an installation leaves on the machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local import paths, shell
from local.shell import LocalError


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_an_install_that_ends_early_does_not_keep_the_machines_services_from_starting(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy-rc.d"
    script = f"""
import time
from pathlib import Path
from local import shell
shell.POLICY = Path({str(policy)!r})
with shell.no_services():
    print("installs", flush=True)
    for _ in range(600):
        time.sleep(0.1)  # a signal that comes just before a long sleep would be handled after it
"""
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(
        command, cwd=paths.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert process.stdout
    assert process.stdout.readline() == "installs\n"
    assert policy.exists()
    process.send_signal(number)
    process.wait(10)
    assert policy.exists() == (number == signal.SIGKILL)
    monkeypatch.setattr(shell, "POLICY", policy)
    with shell.no_services():
        assert policy.exists()
    assert not policy.exists()
    policy.write_text("#!/bin/sh\nexit 0\n")
    with shell.no_services():
        pass
    assert policy.read_text() == "#!/bin/sh\nexit 0\n"


@pytest.mark.parametrize("tool", ["systemctl", "deb-systemd-helper"])
def test_no_service_of_an_installed_package_starts_with_the_next_boot(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real tool of the two that the machine has, on files of its own; a machine without systemd has the helper."""
    if not (found := shutil.which(tool)):
        pytest.skip(f"needs {tool}")
    units, bin = tmp_path / "usr/lib/systemd/system", tmp_path / "bin"
    for folder in (units, bin):
        folder.mkdir(parents=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    unit = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
    (units / "docker-registry.service").write_text(unit)
    root = f'--root="{tmp_path}" ' if tool == "systemctl" else ""
    for name, script in ((tool, f'exec {found} {root}"$@"'), ("apt-get", "")):
        (bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DPKG_ROOT", str(tmp_path))
    enable, package = [tool, "enable", "docker-registry.service"], {"DPKG_MAINTSCRIPT_PACKAGE": "docker-registry"}
    subprocess.run(enable, env={**os.environ, **package}, check=True)
    enabled = tmp_path / "etc/systemd/system/multi-user.target.wants/docker-registry.service"
    assert enabled.is_symlink()
    which = shutil.which
    monkeypatch.setattr(shell.shutil, "which", lambda name: which(name) if name == tool else None)
    monkeypatch.setattr(shell, "POLICY", tmp_path / "policy-rc.d")
    shell.install(("buildah", "docker-registry"))
    assert not enabled.is_symlink()


def test_the_error_of_a_program_is_its_cause() -> None:
    apt = "echo I: one; echo E: no public key >&2; echo E: apt-get failed >&2; echo I: ends >&2; exit 5"
    with pytest.raises(LocalError, match=r"^cannot install it: E: no public key$"):
        shell.run(["sh", "-c", apt], "install it")
    with pytest.raises(LocalError, match=r"^cannot start it: second$"):
        shell.run(["sh", "-c", "echo first >&2; echo second >&2; exit 1"], "start it")
