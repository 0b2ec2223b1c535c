"""Programs of the trainer as forks of the test's process: Python's start and the import of torch take seconds each."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

Streams = tuple[int, int, int]
"""Descriptors of stdin, stdout and stderr; -1: the caller's own."""


def nothing() -> None:
    """What a program does first, if it does nothing more."""


def fork(
    arguments: Sequence[str], environment: dict[str, str], streams: Streams, first: Callable[[], None] = nothing
) -> int:
    """Start `python -m ARGUMENTS` without starting Python; return its process id. It calls `first` before anything."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(list(arguments), environment, streams, tell, first)
    os.close(tell)
    os.read(told, 1)  # wait for setsid, as Popen does: the caller may signal the group from now on
    os.close(told)
    return pid


def _become(
    arguments: list[str], environment: dict[str, str], streams: Streams, tell: int, first: Callable[[], None]
) -> NoReturn:
    code: Any = 1
    try:
        gc.freeze()  # do not collect the caller's objects: they would close descriptors whose numbers are reused
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.setsid()
        os.write(tell, b".")
        for target, source in enumerate(streams):
            if source != -1:
                os.dup2(source, target)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8", closefd=False) for number, mode in enumerate(("r", "w", "w"))
        )
        os.closerange(3, 4096)
        os.environ.clear()
        os.environ.update(environment)
        warnings.simplefilter("ignore")  # of runpy: the module was imported before
        first()
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


class ForkingPopen(subprocess.Popen[bytes]):
    """Forks for `python -m trainer.MODULE` in a pod that is a process here (tests/cli/volume.py, Wire)."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        words = list(map(str, args)) if isinstance(args, list | tuple) else []
        words = words[words.index("--") + 1 :] if words[1:2] and words[1].endswith("its kubectl") else []
        words = words[4:] if words[:2] == ["sh", "-c"] else words  # cli/pods.py, stoppable
        if words[:2] != ["python", "-m"] or not words[2].startswith("trainer."):
            super()._execute_child(args, *others)  # pyrefly: ignore[missing-attribute]
            return
        notes = Path(args[2])
        with (notes / "connections").open("a") as file:
            file.write("\n")
        own = json.loads((notes / "environment.json").read_text())
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", **own}
        pipes = others[9:15]  # in the order in which Python 3.11 hands them on
        self.pid = fork(words[2:], environment, (pipes[0], pipes[3], pipes[5]))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # pyrefly: ignore[missing-attribute]
