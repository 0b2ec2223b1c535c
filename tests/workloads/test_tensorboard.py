"""The TensorBoard of a stack, with the arguments that its pod has, reads what the trainer writes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from faults.fault import until
from review.recording import Recording
from tests.ports import free_port
from tests.unprivileged import UNPRIVILEGED
from trainer.train.exporters import TensorBoard


def train(run: Path) -> None:
    writer = TensorBoard(run, 0)
    writer.write(1, {"loss": 4.0})
    writer.close()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_folder_that_it_may_not_list_hides_no_run(local_stack: Recording, tmp_path: Path, kind: str) -> None:
    """Such as lost+found, somebody's own, or a link to /etc: who may write a run may put it on the volume."""
    runs, elsewhere, port = tmp_path / "runs", tmp_path / "elsewhere", free_port()
    train(runs / "first")
    locked = (runs if kind == "folder" else elsewhere) / "locked"
    locked.mkdir(parents=True, mode=0)
    if kind == "link":
        (runs / "first" / "planted").symlink_to(elsewhere)
    program = local_stack.one("Deployment", "tensorboard").inputs["spec"]["template"]["spec"]["containers"][0]["args"]
    own = [f"--logdir={runs}", f"--port={port}", "--reload_interval=1"]
    command = [*UNPRIVILEGED, str(Path(sys.executable).with_name(program[0])), *program[1:], *own]

    def shown() -> set[str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/runs", timeout=5) as response:
                return set(json.load(response))
        except OSError:
            return set()

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: shown() == {"first/tensorboard"}, 30, "the run is shown")
            train(runs / "second")
            until(lambda: shown() == {"first/tensorboard", "second/tensorboard"}, 30, "a later run is shown")
        finally:
            process.terminate()
