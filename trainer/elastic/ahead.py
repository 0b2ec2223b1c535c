"""Start workers ahead: they import while the round still forms, then wait for their place in it.

Importing torch and transformers takes a worker 5 s of CPU time, as much as the rest of a new round. So the launcher
starts the next worker when a round ends, not when the next one begins; no spare worker runs while they train.
"""

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

SIGN = "TRAINYARD_STARTED_AHEAD"
"""Set for a worker that reads its place, the variables of its round, from standard input."""


def wait_for_place() -> None:
    """Wait for the environment of this worker's round; return at once if it was not started ahead.

    If standard input ends without it, the launcher is gone and this process exits.
    """
    if os.environ.pop(SIGN, None) is None:
        return
    place = sys.stdin.readline()
    if not place.endswith("\n"):
        sys.exit(0)
    os.environ.update(json.loads(place))


class Ahead:
    """The launcher's side: the workers of the next round, one for each of this node's ranks."""

    def __init__(self, command: list[str], count: int) -> None:
        self._command, self._count = command, count
        self._waiting: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the missing workers. If that fails, the round starts its workers itself and reports the error."""
        self._waiting = [process for process in self._waiting if process.poll() is None]
        environment = {**os.environ, SIGN: "1"}
        with contextlib.suppress(OSError):
            while len(self._waiting) < self._count:
                # In its own session, like torch's workers: the agent ends workers by process group.
                process = subprocess.Popen(
                    self._command, env=environment, stdin=subprocess.PIPE, start_new_session=True
                )
                self._waiting.append(process)

    def take(self, place: dict[str, str]) -> subprocess.Popen[bytes] | None:
        """Give a waiting worker its place and return it; None if none is alive.

        The pipe to a dead worker is broken. A worker that has its place belongs to the round, even if it ends at once.
        """
        while self._waiting:
            process = self._waiting.pop()
            assert process.stdin is not None
            with contextlib.suppress(OSError), process.stdin as pipe:
                pipe.write(json.dumps(place).encode() + b"\n")
                pipe.flush()
                return process
            process.kill()
            process.wait()
        return None

    def end(self) -> None:
        """Kill the waiting workers: they have done nothing yet."""
        for process in self._waiting:
            process.kill()
            process.wait()
        self._waiting = []

    def install(self) -> None:
        """Make torch's agents in this process take their workers from here."""
        from torch.distributed.elastic.multiprocessing import api  # torch 2.15 has no public place for this
        from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

        ahead = self

        class Handler(SubprocessHandler):
            def _popen(self, args: tuple[Any, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
                return ahead.take(env) or super()._popen(args, env)

        api.get_subprocess_handler = Handler  # pyright: ignore[reportPrivateImportUsage]
