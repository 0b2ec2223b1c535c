"""The proof of the local stack in its short form, as a person starts it: everything passes, and nothing is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infra.stackfiles import ROOT
from local import paths
from prove.command import steps

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def test_the_short_proof_passes_and_leaves_nothing(node_environment: dict[str, str], tmp_path: Path) -> None:
    before = folders()
    command = [sys.executable, "-m", "cli", "prove", "--stack", "local", "--short"]
    command += ["--folder", str(tmp_path / "run"), "--report", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=node_environment, capture_output=True, text=True)
    told = json.loads((tmp_path / "prove-local-short.json").read_text())
    verdicts = {name: result["verdict"] for name, result in told["steps"].items()}
    assert verdicts == {**{step.name: "passed" for step in steps(short=True)}, "cost": "cannot"}, done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    stacks = subprocess.run(["pulumi", "stack", "ls"], cwd=ROOT, env=node_environment, capture_output=True, text=True)
    assert "prove-local" not in stacks.stdout
    assert not (ROOT / "Pulumi.prove-local.yaml").exists()
    assert not (tmp_path / "run" / "state.json").exists()
    assert folders() <= before


def folders() -> set[Path]:
    """The folders of proofs on the volume, which others use too."""
    return {path for folder in ("runs", "datasets") for path in (paths.STORAGE / folder).glob("prove-*")}
