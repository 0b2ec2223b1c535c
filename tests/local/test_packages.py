"""Missing Debian packages are installed without starting their services; an old package list is refreshed."""

from __future__ import annotations

from pathlib import Path

import pytest

from local import shell
from local.shell import LocalError

# Fails to install until the lists are fresh, and records whether services were forbidden meanwhile.
APT = """#!/bin/sh
echo "$*" >> {log}
[ -x {policy} ] && {policy}; [ $? -eq 101 ] || echo "services would start" >> {log}
case "$*" in
  *update*) touch {log}.fresh ;;
  *) [ -e {log}.fresh ] || {{ echo "E: Unable to locate package" >&2; exit 100; }} ;;
esac
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    apt = tmp_path / "bin" / "apt-get"
    apt.parent.mkdir()
    apt.write_text(APT.format(log=tmp_path / "log", policy=tmp_path / "policy-rc.d"))
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(shell, "POLICY", tmp_path / "policy-rc.d")
    return tmp_path / "log"


def test_the_lists_are_refreshed_only_when_needed_and_no_service_starts(log: Path) -> None:
    shell.install(("runc", "buildah"))
    first, refreshed, second = log.read_text().splitlines()
    assert first == second
    assert first.endswith("--no-install-recommends runc buildah")
    assert refreshed.startswith("update")
    shell.install(("runc",))
    assert len(log.read_text().splitlines()) == 4
    assert "services would start" not in log.read_text()
    assert not shell.POLICY.exists()


def test_a_package_that_cannot_be_had_is_one_line(log: Path) -> None:
    (log.parent / "bin" / "apt-get").write_text("#!/bin/sh\necho 'E: No network' >&2\nexit 100\n")
    with pytest.raises(LocalError, match="cannot refresh the lists of Debian packages: E: No network"):
        shell.install(("runc",))
    assert not shell.POLICY.exists()
