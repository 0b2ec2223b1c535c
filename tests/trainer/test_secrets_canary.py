"""A run as a person types it, in programs of its own: no token of its environment in its log or files, and no import
of a large library that it has no use for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CANARIES = {"HF_TOKEN": "hf_canaryCanaryCANARYcanary", "WANDB_API_KEY": "0123canary4567canary89abcanary"}


def test_a_run_writes_the_tokens_in_its_environment_nowhere_and_imports_only_what_it_needs(
    tmp_path: Path, settings: Callable[..., list[str]]
) -> None:
    run = tmp_path / "run"
    arguments = settings(run, **{"steps": 4, "checkpoint.every_steps": 2})
    done = subprocess.run(
        [sys.executable, "-m", "trainer.launch", "--standalone", "--nproc-per-node", "1", "--", *arguments],
        env={**os.environ, **CANARIES, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {"DONE", "metrics.jsonl", "status.json"} <= {path.name for path in files}
    for token in CANARIES.values():
        assert token not in done.stdout + done.stderr
        assert not [path for path in files if token.encode() in path.read_bytes()]
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
    assert "torch" in imported
    assert "trainer.train.loop" in imported, "the worker's are not among them"
    assert not imported & {"deepspeed", "lm_eval", "peft", "wandb", "pandas"}, "seconds of processor time each"
