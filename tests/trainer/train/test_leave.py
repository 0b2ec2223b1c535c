"""A process that ends leaves without an interpreter shutdown, which can wait for peers that are gone."""

from __future__ import annotations

import subprocess
import sys

LEAVE = (
    "import atexit; from trainer import log; atexit.register(print, 'shut down'); print('said', end=''); log.leave(75)"
)


def test_what_was_said_is_written_and_nothing_is_shut_down() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (75, "said")
