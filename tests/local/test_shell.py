"""A program that `trainyard local run --phase` starts: its output, its end, and what a log shows while it is silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from local import paths

RUN = """
import os, sys
from local import shell
shell.QUIET = 0.2
sys.exit(shell.run_shown({command!r}, "up", dict(os.environ)))
"""


def start(*command: str) -> subprocess.Popen[str]:
    script = RUN.format(command=list(command))
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=paths.ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_a_log_shows_that_a_silent_program_runs_and_ends_with_its_code() -> None:
    process = start("sh", "-c", "echo one; sleep 0.7; echo two; exit 3")
    lines = process.communicate()[0].splitlines()
    assert process.returncode == 3
    assert (lines[0], lines[-1]) == ("one", "two")
    assert 1 <= len(lines[1:-1]) <= 3
    assert set(lines[1:-1]) <= {"… up (0 s)", "… up (1 s)"}


def test_what_a_program_leaves_behind_holds_nobody_up() -> None:
    process = start("sh", "-c", "sleep 20 & echo done")
    began = time.monotonic()
    assert process.stdout
    assert process.stdout.readline() == "done\n"
    assert process.wait(10) == 0
    assert time.monotonic() - began < 10
    os.killpg(process.pid, signal.SIGKILL)


def test_an_interrupted_program_gets_the_time_to_end_well() -> None:
    """Ctrl-C reaches it too: Pulumi then finishes what it has begun, and writes its state."""
    process = start("sh", "-c", "trap 'sleep 1; echo saved; exit 5' INT; echo ready; while :; do sleep 0.05; done")
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    rest = process.communicate(timeout=20)[0]
    assert "saved" in rest
    assert process.returncode == 5
