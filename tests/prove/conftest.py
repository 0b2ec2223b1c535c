"""A Pulumi that a proof starts, without a cloud."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

#: `up` takes 20 s. After a first SIGINT it takes one more second, as Pulumi does to finish what it has begun; after a
#: second one it exits at once.
PULUMI = """#!/bin/sh
begun() {
  trap 'trap "echo killed; exit 1" INT; echo asked; sleep 1; echo stopped; exit 1' INT
  echo $$ > "$STATE.pid"
  echo begun
  for i in $(seq 100); do sleep 0.2; done
}
case "$*" in
  version) echo 3.200.0;;
  *"up --yes"*) begun;;
  *cancel*) echo unlocked;;
  *"stack export"*) test -e "$STATE" || { echo "error: no stack named 'x' found" >&2; exit 255; }; cat "$STATE";;
esac
"""


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pulumi that knows one stack, once STATE exists."""
    program = tmp_path / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text(PULUMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    state = tmp_path / "exported.json"
    monkeypatch.setenv("STATE", str(state))
    return state
