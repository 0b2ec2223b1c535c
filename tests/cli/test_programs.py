"""rsync and kubectl of this machine: found, new enough, or one line that says how to get them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from cli import CommandError, __main__, cluster, programs
from tests.cli.cluster import TARGET


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder as PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, name: str, said: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\necho '{said}'\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (None, "rsync is needed to carry files, and is not on PATH: apt-get install rsync, or brew install rsync"),
        ("openrsync: protocol version 29", "is not rsync 3.5.0 or newer, it says: openrsync: protocol version 29; apt"),
        ("rsync  version 3.2.7  protocol version 31", r"is version 3.2.7, .*\(CVE-2024-12084, CVE-2026-\d+\); needed"),
        ("rsync  version 3.10.0  protocol version 33", None),
    ],
)
def test_an_rsync_with_holes_is_refused_in_one_line(said: str | None, problem: str | None, path: Path) -> None:
    if said is not None:
        program(path, "rsync", said)
    if problem is None:
        assert programs.find_rsync() == str(path / "rsync")
        return
    with pytest.raises(CommandError, match=problem) as error:
        programs.find_rsync()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("changes", "taken"), [("fix CVE-2024-12084", False), ("fix CVE-2026-70458", True)])
def test_a_distribution_that_closed_the_holes_in_an_older_version_is_taken(
    changes: str, taken: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(path, "rsync", "rsync  version 3.2.7  protocol version 31")
    (path / "changelog.gz").write_bytes(gzip.compress(changes.encode()))
    monkeypatch.setattr(programs, "CHANGELOG", path / "changelog.gz")
    assert not programs._mended(str(path / "rsync")), "an rsync of one's own has its own changes"
    monkeypatch.setattr(programs, "PACKAGED", str(path / "rsync"))
    assert programs._mended(str(path / "rsync")) == taken


@pytest.mark.parametrize(("command", "missing"), [(["upload", "corpus"], "rsync"), (["fetch"], "kubectl")])
def test_what_is_missing_is_told_before_a_pod_starts(
    command: list[str], missing: str, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    other = {"rsync": "kubectl", "kubectl": "rsync"}[missing]
    program(path, other, "rsync  version 3.5.0  protocol version 32")
    monkeypatch.setattr("cli.upload.volume_of", lambda *_: TARGET)
    monkeypatch.setattr("cli.fetch.target_of", lambda *_: TARGET)
    monkeypatch.setattr(cluster, "connect", lambda *_: pytest.fail("asked the cluster"))
    monkeypatch.chdir(path)
    (path / "corpus").mkdir()
    (path / "corpus" / "a.txt").write_text("text")
    assert __main__.main(command) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {missing} is needed to carry files, and is not on PATH: apt-get install {missing}")
    assert "brew install" in said
    assert said.count("\n") == 1
