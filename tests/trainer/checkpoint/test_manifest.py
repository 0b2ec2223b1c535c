"""A manifest is believed byte for byte or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.checkpoint.test_checkpoint import save
from trainer.checkpoint.format import Checkpoint, newest_checkpoint, verify_checkpoint


@pytest.fixture
def newest(tmp_path: Path) -> Path:
    """The folder of step 7 in a run that has step 6, too."""
    (tmp_path / "checkpoints").mkdir()
    save(tmp_path, 6)
    return save(tmp_path, 7)


def test_no_bit_of_a_manifest_can_flip(newest: Path) -> None:
    """Two bits of every third byte of a real one; a flip that changes no value (`e` to `E`) is refused as well."""
    before = verify_checkpoint(newest)
    file = newest / "manifest.json"
    content = file.read_bytes()
    accepted: list[tuple[int, int]] = []
    for place in range(0, len(content), 3):
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


@pytest.mark.parametrize("content", [b"", b"[]", b"\x00" * 999])
def test_what_is_no_manifest_falls_back(content: bytes, newest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (newest / "manifest.json").write_bytes(content)
    found = newest_checkpoint(newest.parents[1])
    assert found is not None
    assert found.step == 6
    assert f"event=checkpoint_damaged path={newest} action=skipped reason=" in capsys.readouterr().err


def test_a_checkpoint_under_another_name_keeps_its_step(newest: Path) -> None:
    copy = newest.rename(newest.with_name("step-7-good"))
    assert verify_checkpoint(copy) == Checkpoint(copy, 7, {"validation_loss": 5.0}, {"scaler": {"scale": 8.0}})
    wrong = copy.rename(copy.with_name("step-00000008"))
    assert verify_checkpoint(wrong) is None
