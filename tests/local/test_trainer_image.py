"""The trainer's image that `trainyard local up` builds while Kubernetes compiles is the one that the stack asks for."""

from __future__ import annotations

from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from infra import buildah, image, stackfiles
from infra.image import TRAINER, content_hash
from local import network, up
from local.phases import Phases

BASE = f"{network.REGISTRY}/base@sha256:{'1' * 64}"


def done(value: Any = None) -> Future[Any]:
    ended: Future[Any] = Future()
    ended.set_result(value)
    return ended


def test_it_is_pushed_where_the_stack_looks_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stack's image resource then needs no build: the registry has the image under its tag."""
    commands: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], what: str, tell: Any, environment: dict[str, str]) -> None:
        commands.append((command, environment))
        tell(f"{what} 1 of 1")
        if "--digestfile" in command:
            Path(command[command.index("--digestfile") + 1]).write_text("sha256:abc")

    monkeypatch.setattr(buildah, "run_and_show", run)
    monkeypatch.setattr(buildah, "ROOT", tmp_path)
    monkeypatch.setattr(up.credentials, "file", lambda: tmp_path / "account")
    monkeypatch.setattr(buildah.shutil, "which", lambda _: "buildah")
    monkeypatch.setattr(image, "stage", lambda *_: str(tmp_path))
    monkeypatch.setattr(up.images, "buildah_environment", lambda: {"CONTAINERS_STORAGE_CONF": "ours"})
    pulled: list[str] = []
    monkeypatch.setattr(up.node, "pull", pulled.append)
    up.make_trainer(Phases(), done(BASE), done())
    (build, environment), (push, _) = commands
    target = f"{network.REGISTRY}/trainyard/trainer:{content_hash(TRAINER, {'BASE_IMAGE': BASE, 'TORCH': 'cpu'})}"
    assert build[build.index("--tag") + 1] == target
    arguments = [value for option, value in pairwise(build) if option == "--build-arg"]
    assert arguments == [f"BASE_IMAGE={BASE}", "TORCH=cpu"]
    assert push[-1] == f"docker://{target}"
    assert "zstd" in push
    assert all(command[command.index("--authfile") + 1] == str(tmp_path / "account") for command, _ in commands)
    assert environment == {"CONTAINERS_STORAGE_CONF": "ours"}
    # The name by which the stack's pods ask for it.
    assert pulled == [f"{network.REGISTRY}/trainyard/trainer@sha256:abc"]


def test_a_build_that_fails_is_shown_and_left_to_the_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("buildah build failed with exit code 1:\nno space left")

    monkeypatch.setattr(up.images, "buildah_environment", dict)
    monkeypatch.setattr(up.credentials, "file", Path)
    monkeypatch.setattr(image, "build_ahead", fail)
    up.make_trainer(Phases(), done(BASE), done())
    assert "✗ trainer image" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "builds"),
    [
        ("config:\n  trainyard:cluster: {context: trainyard-local}\n", True),
        ("config:\n  trainyard:image: {builder: prebuilt, ref: r@sha256:1}\n", False),
        ("config: [", False),
    ],
)
def test_a_stack_that_says_something_of_images_decides_alone(
    text: str, builds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Pulumi.local.yaml").write_text(text)
    monkeypatch.setattr(stackfiles, "ROOT", tmp_path)
    assert up.builds_trainer() is builds
