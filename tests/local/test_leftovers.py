"""Which trainer images of this checkout are unused, and when a new one takes its full disk space."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from local import commands, images, leftovers, network, paths, processes, teardown
from local.phases import Phases
from local.shell import LocalError


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / ".local"
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "STATE", state)
    monkeypatch.setattr(paths, "REGISTRY_DATA", state / "registry")
    monkeypatch.setattr(paths, "BUILDAH", state / "buildah")
    monkeypatch.setattr(paths, "PULUMI_STATE", state / "state")
    monkeypatch.setattr(images, "base_tar_is_current", lambda: True)
    return tmp_path


def push(name: str, tag: str, age: int) -> Path:
    """Write what the registry keeps of an image pushed `age` seconds ago; return its tag's folder."""
    folder = paths.REGISTRY_DATA / "docker/registry/v2/repositories/trainyard" / name / "_manifests/tags" / tag
    link = folder / "current/link"
    link.parent.mkdir(parents=True)
    link.write_text(f"sha256:{name}-{tag}")
    os.utime(link, (1e9 - age, 1e9 - age))
    return folder


def stack_with(context: str | None) -> list[dict[str, Any]]:
    """Resources of a stack on the cluster of a context, or (None) on one that it created."""
    provider = {"type": "pulumi:providers:kubernetes", "inputs": {"context": context} if context else {}}
    return [{"type": "pulumi:pulumi:Stack"}, provider, {"type": "kubernetes:core/v1:Namespace", "inputs": {}}]


def stack(root: Path, name: str, *resources: dict[str, Any]) -> None:
    path = root / ".local/state/.pulumi/stacks/trainyard" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"checkpoint": {"latest": {"resources": list(resources)} if resources else None}}))


def test_the_newest_image_and_those_of_stacks_stay(root: Path) -> None:
    assert leftovers.unused() == []
    oldest = push("trainer", "aaa", 300)
    push("trainer", "bbb", 200)
    push("trainer", "ccc", 100)
    push("trainer", "ddd", 0)
    push("nfs-server", "eee", 500)
    # A stack names an image by tag where it is built here, and by digest where the reference is given.
    stack(root, "local", {"target": "198.18.0.2:5000/trainyard/trainer:bbb"})
    stack(root, "other", {"ref": "198.18.0.2:5000/trainyard/trainer@sha256:trainer-ccc"})
    assert leftovers.unused() == [("trainyard/trainer", oldest)]


def test_a_new_image_takes_its_full_room_unless_one_is_younger_than_its_packages(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in leftovers.PACKAGES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
        os.utime(root / name, (1e9 - 200, 1e9 - 200))
    assert not leftovers.has_packages()
    push("trainer", "aaa", 100)
    assert leftovers.has_packages()
    (root / leftovers.PACKAGES[0]).touch()
    assert not leftovers.has_packages()


def test_a_removal_that_fails_leaves_no_image_in_the_builder_that_nobody_knows_of(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push("trainer", "old", 100)
    push("trainer", "new", 0)
    built = {f"{network.REGISTRY}/trainyard/trainer:{tag}" for tag in ("old", "new")}

    def buildah(command: str, *arguments: str, what: str) -> str:
        if command == "rmi":
            built.difference_update(arguments)
        return "\n".join(built)

    def fail(*_: object) -> None:
        raise LocalError("cannot remove old images of the registry")

    monkeypatch.setattr(images, "buildah", buildah)
    monkeypatch.setattr(leftovers, "run", fail)
    monkeypatch.setattr(paths, "CONFIGURATION", root / ".local/etc")
    monkeypatch.setattr(processes, "stop", lambda name: True)
    with pytest.raises(LocalError):
        leftovers.remove_unused(Phases())
    assert {name.rpartition(":")[2] for name in built} == {"new"}


def test_the_state_of_a_stack_elsewhere_is_not_thrown_away(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Stacks on the node, those of proofs and tests too: what they made goes with it.
    for name in ("local", "prove-local"):
        stack(root, name, *stack_with("trainyard-local"))
    stack(root, "gcp-smoke")
    assert teardown.living_stacks() == []
    stack(root, "local", *stack_with("kind-kind"))
    assert teardown.living_stacks() == ["local"]
    stack(root, "local")
    stack(root, "gcp-c3", *stack_with(None))
    assert teardown.living_stacks() == ["gcp-c3"]
    assert commands.down(everything=True) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "stack gcp-c3 still has resources outside this node" in line
    assert line.endswith("first: trainyard local run -- pulumi destroy --stack gcp-c3")
    assert (root / ".local/state/.pulumi/stacks/trainyard/gcp-c3.json").exists()


def test_a_stack_that_was_only_made_has_nothing(root: Path) -> None:
    """As `pulumi stack init` leaves it (3.200.0), of which a first `up` that is refused makes no more."""
    stack(root, "local", *stack_with("trainyard-local"))
    file = root / ".local/state/.pulumi/stacks/trainyard/gcp-c3.json"
    latest = {"manifest": {"version": "v3.200.0"}, "secrets_providers": {"type": "passphrase"}, "metadata": {}}
    file.write_text(json.dumps({"version": 3, "checkpoint": {"Stack": "organization/trainyard/x", "Latest": latest}}))
    assert teardown.living_stacks() == []


@pytest.mark.parametrize("text", ["", "null"])
def test_a_damaged_state_is_told_in_one_line_and_not_thrown_away(root: Path, text: str) -> None:
    """A Pulumi that is killed while it writes leaves one."""
    stack(root, "local", *stack_with("trainyard-local"))
    file = root / ".local/state/.pulumi/stacks/trainyard/gcp-c3.json"
    file.write_text(text)
    with pytest.raises(LocalError, match=rf"{file}: damaged, .* stack gcp-c3 .*\.json\.bak"):
        teardown.living_stacks()


@pytest.mark.parametrize(("terminal", "answer", "asked"), [(False, True, 0), (True, False, 1), (True, True, 1)])
def test_models_are_deleted_only_by_one_who_says_so(
    terminal: bool,
    answer: bool,
    asked: int,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`make clean`, without a terminal as in a workflow."""
    (root / ".local/storage/trainyard/runs/mine").mkdir(parents=True)
    questions: list[str] = []
    removed: list[bool] = []
    monkeypatch.setattr(paths, "STORAGE", root / ".local/storage")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setattr(commands.typer, "confirm", lambda text, err: questions.append(text) or answer)
    monkeypatch.setattr(teardown, "storage_mounts", list)
    monkeypatch.setattr(teardown, "stop_node", lambda: None)
    monkeypatch.setattr(teardown, "remove_state", lambda: removed.append(True))
    assert commands.down(everything=True) == (0 if terminal and answer else 2)
    assert len(questions) == asked
    assert bool(removed) == (terminal and answer)
    said = "".join([*questions, capsys.readouterr().err])
    assert "1 run with models (mine)" in said
    if not terminal:
        assert "make clean YES=1" in said
        assert commands.down(everything=True, yes=True) == 0
        assert removed
