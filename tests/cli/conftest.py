"""A folder as the volume, and a way to it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli import __main__, fetch, runs
from cli.target import Target
from tests.cli.volume import Wire, noise, save
from tests.forked import ForkingPopen


@pytest.fixture
def volume_folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "volume").mkdir()
    return folder


@pytest.fixture(autouse=True)
def selected_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has selected, a command without --stack is about the local one."""
    monkeypatch.setattr("cli.target.selected", lambda: "local")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.rsync.PAUSE_SECONDS", 0.05)


@pytest.fixture(autouse=True)
def fork_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork for each program of the trainer that a pod runs here; test_permissions.py and e2e start it as it is."""
    monkeypatch.setattr(subprocess, "Popen", ForkingPopen)


@pytest.fixture
def called(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A command's exit code, output and error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = __main__.main(list(arguments))
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    return Wire(tmp_path / "wire")


@pytest.fixture
def run(volume_folder: Path) -> Path:
    """A run folder with two complete checkpoints, one that is being written, and a copy of somebody's own."""
    folder = volume_folder / "runs" / "small"
    for step in (100, 200):
        save(folder, step)
    unfinished = folder / "checkpoints" / ".step-00000300.17"
    unfinished.mkdir()
    (unfinished / "manifest.json").write_text("{}")
    shutil.copytree(folder / "checkpoints" / "step-00000100", folder / "checkpoints" / "step-100-good")
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events").write_bytes(b"events")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder / "DONE").write_text("{}")
    return folder


@pytest.fixture
def command(
    tmp_path: Path, volume_folder: Path, run: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch, called: Any
) -> Any:
    """`trainyard fetch` with the volume here: its exit code, output and error."""

    def report(pod: Any, bar: Any, folder: Path, run: str) -> None:
        noise(folder / "index.html", 10)

    def target_of(stack: str, training: str, another: str | None, _: str | None) -> Target:
        folder = run.with_name(another) if another else run
        return Target(f"context-{stack}", "n", "train", None, {}, str(folder))

    monkeypatch.setattr(runs, "DATA", str(volume_folder))
    monkeypatch.setattr(fetch, "bring_report", report)
    monkeypatch.setattr(fetch, "target_of", target_of)
    monkeypatch.setattr(fetch, "targets_of", lambda stack, file: [target_of(stack, "", None, file)])
    monkeypatch.setattr(fetch, "volume_pod", wire.volume_pod)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: called("fetch", *arguments)
