"""A stack whose state is in .local/ is looked at with the local node's environment, any other one with the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import CommandError, target
from local import environment


@pytest.mark.parametrize("kept", [True, False])
def test_a_local_stack_brings_its_environment(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulumi = tmp_path / "bin" / "pulumi"
    pulumi.parent.mkdir()
    pulumi.write_text('#!/bin/sh\necho "error: backend $PULUMI_BACKEND_URL" >&2; exit 1\n')
    pulumi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{pulumi.parent}:/usr/bin:/bin")
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://elsewhere")
    monkeypatch.setattr(target, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "prepare", lambda: None)
    monkeypatch.setattr(environment, "settings", lambda: {"PULUMI_BACKEND_URL": "file:///here"})
    state = tmp_path / ".local/state/.pulumi/stacks/trainyard/local.json"
    state.parent.mkdir(parents=True)
    if kept:
        state.touch()
    with pytest.raises(CommandError, match="^backend file:///here$" if kept else "^backend s3://elsewhere$"):
        target.target_of("local")
