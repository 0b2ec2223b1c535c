"""What ends with the node, and what is somebody else's; tests/local/test_node_healing.py stops the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from local import cgroups, network, paths, processes, teardown
from local.commands import down
from local.shell import LocalError


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a non-ASCII path, and a disk of the user's mounted at the storage folder."""
    state = tmp_path / "für alle" / ".local"
    state.mkdir(parents=True)
    folders = {"STATE": state, "PULUMI_STATE": state / "state", "RUN": tmp_path / "run", "STORAGE": state / "storage"}
    for name, path in folders.items():
        monkeypatch.setattr(paths, name, path)
    points = [f"{state}/kubelet/pods/1/volumes/token", f"{state}/storage", f"{state}/storage-of-another", "/"]
    lines = ["36 35 98:0 / " + point.replace(" ", "\\040") + " rw shared:1 - tmpfs tmpfs rw" for point in points]
    monkeypatch.setattr(teardown, "MOUNTS", tmp_path / "mountinfo")
    teardown.MOUNTS.write_text("\n".join(lines) + "\n")
    return state


def test_mounts_of_pods_are_found_whatever_the_path_and_the_users_disk_is_none(mounted: Path) -> None:
    assert teardown.mounts() == [f"{mounted}/kubelet/pods/1/volumes/token", f"{mounted}/storage-of-another"]


def test_the_last_of_many_stacked_mounts_is_no_error(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = f"{mounted}/kubelet"
    rounds = [[point]] * 5
    monkeypatch.setattr(teardown, "mounts", lambda: rounds.pop() if rounds else [])
    teardown.unmount_all()
    rounds = [[point]] * 6
    with pytest.raises(LocalError, match=f"cannot unmount {point}; see who uses it: fuser -vm {point}"):
        teardown.unmount_all()


def test_a_disk_of_the_users_is_not_emptied(mounted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (mounted / "model").touch()
    assert down(everything=True) == 2
    assert f"{mounted}/storage is mounted, and its files would go with .local: umount it" in capsys.readouterr().err
    assert (mounted / "model").exists()


@pytest.mark.parametrize("owner", ["us", "a deleted checkout", "another"])
def test_the_node_of_another_checkout_is_left_alone(
    owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes of all checkouts on a machine keep their pods in control groups of the same name."""
    if owner == "another":
        (tmp_path / "another").mkdir()
        (tmp_path / "another" / "Makefile").touch()
    names = {"us": paths.ROOT, "a deleted checkout": tmp_path / "gone", "another": tmp_path / "another"}
    monkeypatch.setattr(network, "owner", lambda: str(names[owner]))
    monkeypatch.setattr(network, "exists", lambda: True)
    touched: list[str] = []
    for module, name in ((cgroups, "processes"), (cgroups, "remove"), (network, "remove")):
        monkeypatch.setattr(module, name, lambda name=f"{module.__name__}.{name}": touched.append(name) or [])
    monkeypatch.setattr(processes, "in_namespace", lambda _: touched.append("in_namespace") or [])
    for name in ("RUN", "STATE", "PROCESSES", "STORAGE"):
        monkeypatch.setattr(paths, name, tmp_path / name)
    monkeypatch.setattr(paths, "KUBECONFIG", tmp_path / "kubeconfig")
    teardown.stop_node()
    ours = {"in_namespace", "local.cgroups.processes", "local.cgroups.remove", "local.network.remove"}
    assert set(touched) == (set() if owner == "another" else ours)
