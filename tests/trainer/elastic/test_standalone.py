"""One machine alone: a training from end to end without a rendezvous store of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.processes import Launcher
from trainer import launch
from trainer.config.schema import load
from trainer.data.batches import open_dataset
from trainer.errors import Stop
from trainer.files import write_json


def test_one_machine_alone_needs_no_store(
    start_launcher: Callable[..., Launcher], settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    launcher = start_launcher(settings(tmp_path / "run", steps=4), ["--standalone", "--nproc-per-node", "2"])
    assert launcher.wait(120) == 0, launcher.output
    assert "event=round round=1 world_size=2" in launcher.output


@pytest.mark.parametrize("changed", [True, False])
def test_a_run_that_is_done_says_that_its_data_have_changed_since(
    settings: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: bool
) -> None:
    given = settings(tmp_path)
    digest = open_dataset(load(given).data.directory).digest
    write_json(tmp_path / "DONE", {"step": 4, "data": "other" if changed else digest})
    with pytest.raises(Stop, match="done before this launcher began"):
        launch.launch(*launch.parse(["--standalone", "--", *given]), tmp_path)
    told = f"event=data_changed before=other now={digest[:12]} then='this run is done and learns nothing of them"
    assert (told in capsys.readouterr().out) == changed
