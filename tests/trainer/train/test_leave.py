"""A worker that fails leaves without an interpreter shutdown, which can wait for peers that are gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainer.contract import EXIT_BROKEN, EXIT_DONE, EXIT_FATAL, EXIT_RESTART, EXIT_TERMINATED

LEAVE = "import atexit; from trainer.train.__main__ import leave; atexit.register(print, 'shut down'); leave({code})"


@pytest.mark.parametrize("code", [EXIT_DONE, EXIT_FATAL, EXIT_BROKEN, EXIT_RESTART, EXIT_TERMINATED])
def test_only_a_run_that_is_done_shuts_its_interpreter_down(code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVE.format(code=code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code
    assert done.stdout == ("shut down\n" if code == EXIT_DONE else "")
