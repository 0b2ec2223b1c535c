"""`trainyard runs`, `ls`, `du` and `rm` on a volume with folders that its pod may not list."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli import CommandError, runs
from infra.stackfiles import ROOT
from tests.unprivileged import UNPRIVILEGED
from trainer.contract import HIDDEN


def test_folders_that_may_not_be_listed_are_named_hide_no_other_and_stay(tmp_path: Path) -> None:
    """Such as lost+found, which a volume with ext4 has, or a run that another user copied there."""
    for name in ("runs/good", "runs/closed", "runs/partly/checkpoints", "lost+found"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("kept")
    for name in ("runs/closed", "runs/partly/checkpoints", "lost+found"):
        (tmp_path / name).chmod(0)
    (tmp_path / "runs/good/read-only").mkdir(mode=0o555)

    def survey(*arguments: str) -> list[dict[str, Any]]:
        command = [*UNPRIVILEGED, sys.executable, "-m", "trainer.volume", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise CommandError(done.stderr)
        return json.loads(done.stdout)

    try:
        told = {each["name"]: each["kind"] for each in survey("entries", str(tmp_path)) if "name" in each}
        assert told == {"lost+found": HIDDEN, "runs": HIDDEN}
        told = {each["name"]: each["kind"] for each in survey("entries", f"{tmp_path}/runs") if "name" in each}
        assert told == {"closed": HIDDEN, "good": "folder", "partly": HIDDEN}
        found = [runs.run_of(each, {}) for each in survey("runs", str(tmp_path))]
        assert {each.name: each.state for each in found} == {
            "closed": "unreadable",
            "good": "interrupted",
            "partly": "unreadable",
        }
        for name in ("runs/closed", "runs/partly", "runs/good"):
            with pytest.raises(CommandError, match=f"{name}: user .* may not list or change .* nothing was removed"):
                survey("remove", str(tmp_path), name)
    finally:
        for name in ("runs/closed", "runs/partly/checkpoints", "lost+found"):
            (tmp_path / name).chmod(0o755)
    assert {each.name for each in (tmp_path / "runs").iterdir()} == {"good", "closed", "partly"}
    assert len(list(tmp_path.rglob("file"))) == 4
