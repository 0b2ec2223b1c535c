"""A manifest is believed byte for byte or not at all, and whatever stands in a file's place never crashes or hangs."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.checkpoint.test_checkpoint import save
from trainer.checkpoint.format import (
    Checkpoint,
    is_complete,
    newest_checkpoint,
    verify_checkpoint,
)
from trainer.checkpoint.saver import prune

OPTIMIZER, WEIGHTS = "optimizer.safetensors", "model/model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the steps 6 and 7."""
    run = tmp_path_factory.mktemp("saved")
    (run / "checkpoints").mkdir()
    for step in (6, 7):
        save(run, step)
    return run


@pytest.fixture
def newest(saved: Path, tmp_path: Path) -> Path:
    """The folder of step 7 in a copy of that run."""
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run" / "checkpoints" / "step-00000007"


def falls_back(newest: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether a resume takes step 6, with a warning that names step 7, and counts 7 for nothing when it prunes."""
    found = newest_checkpoint(newest.parents[1])
    said = capsys.readouterr().err
    warned = f"event=checkpoint_damaged path={newest} action=skipped reason=" in said and "Traceback" not in said
    assert not is_complete(newest)
    prune(newest.parents[1], newest.parent / "step-00000009", 2, 0)
    return found is not None and found.step == 6 and warned and (newest.parent / "step-00000006").is_dir()


def test_no_bit_of_a_manifest_can_flip(newest: Path) -> None:
    """Two bits of every byte of a real one; a flip that changes no value (an `e` to an `E`) is refused as well."""
    before = verify_checkpoint(newest)
    file = newest / "manifest.json"
    content = file.read_bytes()
    accepted: list[tuple[int, int]] = []
    for place in range(len(content)):
        for bit in {place % 8, 5}:
            file.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            if verify_checkpoint(newest) is not None:
                accepted.append((place, bit))
    assert len(content) > 400
    assert accepted == []
    file.write_bytes(content)
    assert (
        verify_checkpoint(newest)
        == before
        == Checkpoint(newest, 7, {"validation_loss": 5.0}, {"scaler": {"scale": 8.0}})
    )


EDITS: dict[str, tuple[str, str]] = {
    "another step": ('"step": 7', '"step": 4000'),
    "a letter": ('"step": 7', '"step": "1OO"'),
    "a text": ('"step": 7', '"step": "7"'),
    "a truth": ('"step": 7', '"step": true'),
    "Infinity": ('"step": 7', '"step": Infinity'),
    "NaN": ('"step": 7', '"step": NaN'),
    "5,000 digits": ('"step": 7', '"step": ' + "7" * 5000),
    "nested": ('"state": {', '"state": {"deep": ' + '{"a":' * 9000 + "1" + "}" * 9000 + ","),
    "a list of figures": ('"figures": {', '"figures": [], "other": {'),
    "a NUL in a name": ('"model/config.json"', '"model/\\u0000config.json"'),
    "half a surrogate pair": ('"model/config.json"', '"model/\\ud800.json"'),
    "a way out": ('"model/config.json"', '"../step-00000006/model/config.json"'),
    "an absolute name": ('"model/config.json"', '"/etc/passwd"'),
    "a device": ('"model/config.json"', '"/dev/zero"'),
    "a size of another kind": ('"config.yaml": 10', '"config.yaml": "10"'),
    "twice the same key": ('"step": 7', '"step": 7, "step": 7'),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("signed", [False, True], ids=["as found", "with a digest made for it"])
def test_any_other_content_falls_back_to_the_checkpoint_before(
    edit: str, signed: bool, newest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = newest / "manifest.json"
    old, new = EDITS[edit]
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    if signed:  # as somebody would who knows the format
        from trainer.checkpoint import format

        try:
            content = json.loads(file.read_text())
            content.pop("digest")
            file.write_text(format._sealed(content))
        except (ValueError, RecursionError):
            pass  # no program can write this one
        if edit == "twice the same key":
            assert verify_checkpoint(newest) is not None, "as it was"
            return
    assert falls_back(newest, capsys)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"7", b"\xff", b"{", b"\x00" * 999, b"[" * 99_999])
def test_what_is_no_manifest_falls_back(content: bytes, newest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (newest / "manifest.json").write_bytes(content)
    assert falls_back(newest, capsys)


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 43)  # 8 TB: reading it takes hours


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # the address has 108 bytes at most
        made.bind(path.name)


ODD: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": _socket,
    "a sparse file": _sparse,
    "a device": lambda path: os.mknod(path, 0o20666, os.makedev(1, 5)),  # /dev/zero
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["manifest.json", OPTIMIZER, WEIGHTS, "config.yaml"])
def test_what_stands_in_a_files_place_falls_back(
    name: str, odd: str, newest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(newest)
    path = newest / name
    path.rename(path.parent / ".before")
    ODD[odd](path)
    assert falls_back(newest, capsys)


def test_a_checkpoint_under_another_name_keeps_its_step(newest: Path) -> None:
    copy = newest.rename(newest.with_name("step-7-good"))
    assert verify_checkpoint(copy) == Checkpoint(copy, 7, {"validation_loss": 5.0}, {"scaler": {"scale": 8.0}})
    wrong = copy.rename(copy.with_name("step-00000008"))
    assert verify_checkpoint(wrong) is None


def test_checkpoints_behind_a_link_that_a_person_made_are_read(newest: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(newest.parents[1])
    found = newest_checkpoint(tmp_path / "link")
    assert found is not None
    assert found.step == 7
