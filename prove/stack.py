"""The temporary stack of a proof, and the commands that change it; the proof waits for each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pulumi import automation

from faults.fault import expect
from faults.stack import Stack
from infra.stackfiles import ROOT

PYTHON = sys.executable
LEAVE_SECONDS = 300
"""Seconds for an interrupted command to stop: Pulumi waits for the resource that it is making."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Command(automation.CommandError):
    """A command failed; the text has the last lines of its output, and not all of it."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)


@dataclass
class Proved(Stack):
    """The temporary stack; commands write to the log of the run and stop at the cost limit."""

    tick: Callable[[], None] = lambda: None
    """Called twice a second while a command runs; may raise OverLimit."""
    say: Callable[[str], None] = lambda _: None
    """Shows what the run waits for."""
    held: tuple[int, ...] = ()
    """Files that a command keeps open, such as the lock of the run: where the proof is killed, the command holds it on,
    so that two Pulumis never write one state."""

    def run(self, command: list[str], timeout: float = 7200) -> subprocess.CompletedProcess[str]:
        with open(self.folder / "log.txt", "a+", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            begin = log.tell()
            # Not the Automation API's own process. A session of its own: Ctrl-C at a terminal must reach Pulumi once,
            # because a second SIGINT kills it. And the cost limit, or the proof's end, must be able to end it.
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self.held,
            )
            deadline = time.monotonic() + timeout
            try:
                while process.poll() is None:
                    expect(time.monotonic() < deadline, f"{' '.join(command[:3])}: not done after {timeout:.0f} s")
                    self.tick()
                    time.sleep(0.5)
            finally:
                if process.poll() is None:
                    self._stop(process)
            log.seek(begin)
            said = log.read()
        return subprocess.CompletedProcess(command, process.returncode, said, said)

    def done(self, command: list[str]) -> str:
        """Run a command that must succeed; return its output. Raises Command."""
        ran = self.run(command)
        if ran.returncode:
            lines = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
            told = [line for line in lines if "error" in line.lower()] or lines
            raise Command(f"{' '.join(command[:4])} ended with {ran.returncode}: {' / '.join(told[-3:])}")
        return ran.stdout

    def change(self, *arguments: str) -> str:
        return self.done(["pulumi", *arguments, "--stack", self.name, "--color", "never", "--non-interactive"])

    def tool(self, command: str, *arguments: str) -> str:
        return self.done([PYTHON, "-m", "cli", command, "--stack", self.name, *arguments])

    def _stop(self, process: subprocess.Popen[Any]) -> None:
        """Ask a command once to stop and wait; kill it if it does not. Ctrl-C does not end the wait."""
        with stop_signals(signal.SIG_IGN):
            with contextlib.suppress(OSError):  # the terminal may be gone
                self.say(f"pulumi ends what it has begun, in {LEAVE_SECONDS} s at most")
            process.send_signal(signal.SIGINT)
            try:
                process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def stop_signals(handler: Any) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP with `handler`; a signal that `nohup` ignores stays ignored."""
    numbers = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)
