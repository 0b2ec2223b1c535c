"""A folder as the volume, and a way to it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import __main__, compare, fetch, runs, target, volume
from cli.cluster import TrainingJob
from cli.target import Target
from tests.cli.cluster import answer
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
def targets(volume_folder: Path) -> list[Target]:
    """The trainings of the stack."""
    return [Target("c", "n", "train", None, {}, f"{volume_folder}/runs/small")]


@pytest.fixture
def jobs() -> list[dict[str, Any]]:
    """The Jobs of the stack's namespace, each with the text of its ConfigMap."""
    return []


@pytest.fixture
def call(
    wire: Wire,
    volume_folder: Path,
    targets: list[Target],
    jobs: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    called: Any,
) -> Any:
    """A command of a stack whose volume is a folder here: its exit code, output and error."""

    def targets_of(stack: str, *_: Any) -> list[Target]:
        return [replace(each, context=f"context-{stack}") for each in targets]

    def bring_report(pod: Any, bar: Any, folder: Path, *runs: str) -> None:
        for each in runs:
            noise(folder / Path(each).name, 10)

    def config_maps(*_: Any, **__: Any) -> Any:
        return answer(
            {"items": [{"metadata": job["metadata"], "data": {"training.yaml": job["text"]}} for job in jobs]}
        )

    replaced = {
        "DATA": str(volume_folder),
        "run_folder": lambda name: f"{volume_folder}/runs/{name}",
        "volume_pod": wire.volume_pod,
        "targets_of": targets_of,
        "bring_report": bring_report,
    }
    for module in (compare, fetch, runs, target, volume):
        for name in replaced.keys() & vars(module):
            monkeypatch.setattr(module, name, replaced[name])
    api: Any = SimpleNamespace(
        list_namespaced_job=lambda *_, **__: answer({"items": jobs}), list_namespaced_config_map=config_maps
    )
    monkeypatch.setattr(TrainingJob, "of", lambda target: TrainingJob(api, api, target))
    monkeypatch.chdir(tmp_path)
    return called
