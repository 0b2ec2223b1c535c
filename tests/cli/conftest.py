"""A folder as the volume, and connections to its server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.volume import Wire, server


@pytest.fixture
def volume_folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "volume").mkdir()
    return folder


@pytest.fixture
def wire(volume_folder: Path) -> Iterator[Wire]:
    with server(volume_folder) as (port, _):
        yield Wire(port)
