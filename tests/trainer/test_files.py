"""Files of the volume, which workers of several pods write at the same time."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.files import read_record, write_json


def test_pods_that_write_a_file_at_once_keep_out_of_each_others_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their workers have the same process ids; a second one comes while the first has not yet renamed its file."""
    path, here, sync = tmp_path / "micro_batch.json", ["worker-0"], os.fsync

    def meanwhile(descriptor: int) -> None:
        if here == ["worker-0"]:
            here[:] = ["worker-1"]
            write_json(path, {"by": "worker-1"})
            here[:] = ["worker-0 again"]
        sync(descriptor)

    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=here[0]))
    monkeypatch.setattr(os, "fsync", meanwhile)
    write_json(path, {"by": "worker-0"})
    assert read_record(path) == {"by": "worker-0"}
    assert [each.name for each in tmp_path.iterdir()] == ["micro_batch.json"]
