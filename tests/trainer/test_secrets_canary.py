"""Nothing that the trainer writes has a token of its environment in it: not its log, and no file of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CANARIES = {"HF_TOKEN": "hf_canaryCanaryCANARYcanary", "WANDB_API_KEY": "0123canary4567canary89abcanary"}


def test_a_run_with_tokens_in_its_environment_writes_them_nowhere(
    tmp_path: Path, settings: Callable[..., list[str]]
) -> None:
    run = tmp_path / "run"
    arguments = settings(run, **{"steps": 4, "checkpoint.every_steps": 2})
    done = subprocess.run(
        [sys.executable, "-m", "trainer.launch", "--standalone", "--nproc-per-node", "1", "--", *arguments],
        env={**os.environ, **CANARIES},
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
