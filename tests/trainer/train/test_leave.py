"""A process that ends leaves without an interpreter shutdown, which can wait for peers that are gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainer.contract import EXIT_BROKEN, EXIT_DONE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED

LEAVE = (
    "import atexit; from trainer import log; atexit.register(print, 'shut down'); print('said', end=''); log.leave({})"
)


@pytest.mark.parametrize("code", [EXIT_DONE, EXIT_FATAL, EXIT_BROKEN, EXIT_RESTART, EXIT_TERMINATED])
def test_what_was_said_is_written_and_nothing_is_shut_down(code: int) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVE.format(code)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, "said")
