"""One machine alone: a training from end to end without a rendezvous store of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.trainer.processes import Launcher


def test_one_machine_alone_needs_no_store(
    start_launcher: Callable[..., Launcher], settings: Callable[..., list[str]], tmp_path: Path
) -> None:
    launcher = start_launcher(settings(tmp_path / "run", steps=4), ["--standalone", "--nproc-per-node", "2"])
    assert launcher.wait(120) == 0, launcher.output
    assert "event=round round=1 world_size=2" in launcher.output
