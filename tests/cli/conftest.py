"""A folder as the volume, and a way to its program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.volume import Wire


@pytest.fixture
def volume_folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "volume").mkdir()
    return folder


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.transfer.PAUSE_SECONDS", 0.05)


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    return Wire(tmp_path / "wire")
