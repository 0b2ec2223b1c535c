"""The temporary stack of a proof, and the commands that change it; the proof waits for each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
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

    def run(self, command: list[str], timeout: float = 7200) -> subprocess.CompletedProcess[str]:
        self._end_former()
        with open(self.folder / "log.txt", "a+", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            begin = log.tell()
            # Not the Automation API's own process. A session of its own: Ctrl-C at a terminal must reach Pulumi once,
            # because a second SIGINT kills it. And the cost limit, or the proof's end, must be able to end it.
            process = subprocess.Popen(
                command, env=self.environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
            deadline = time.monotonic() + timeout
            try:
                self._note(process.pid)
                while process.poll() is None:
                    expect(time.monotonic() < deadline, f"{' '.join(command[:3])}: not done after {timeout:.0f} s")
                    self.tick()
                    time.sleep(0.5)
            finally:
                if process.poll() is None:
                    self._stop(process.pid, lambda: process.poll() is not None)
                    process.wait()
                self.child.unlink(missing_ok=True)
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

    # The running command.

    @property
    def child(self) -> Path:
        """Records the running command, so that the next proof finds one that a killed proof left."""
        return self.folder / "child.json"

    def _note(self, pid: int, asked: bool = False) -> None:
        self.child.write_text(json.dumps({"pid": pid, "started": started(pid), "asked": asked}))

    def _end_former(self) -> None:
        """Stop the command that a killed proof left: two Pulumis must not write one state."""
        try:
            noted = json.loads(self.child.read_text())
        except (OSError, ValueError):
            return
        pid, since = noted["pid"], noted["started"]
        if since and started(pid) == since:
            self._stop(pid, lambda: started(pid) != since, noted["asked"])

    def _stop(self, pid: int, ended: Callable[[], bool], asked: bool = False) -> None:
        """Ask a command to stop and wait; kill it if it does not. Ctrl-C does not end the wait."""
        with stop_signals(signal.SIG_IGN):
            with contextlib.suppress(OSError):  # the terminal may be gone
                self.say(f"process {pid} ends what it has begun, in {LEAVE_SECONDS} s at most")
            if not asked:
                # Noted before the signal: a second signal would kill Pulumi.
                self._note(pid, asked=True)
                _signal(os.kill, pid, signal.SIGINT)
            deadline = time.monotonic() + LEAVE_SECONDS
            while not ended():
                if time.monotonic() > deadline:
                    _signal(os.killpg, pid, signal.SIGKILL)
                    return
                time.sleep(0.1)


def started(pid: int) -> str | None:
    """Start time of a process, to tell it from a later one with its id; None: it has ended, or this is not Linux."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # A first thread that ended leaves state Z while others still work.
    return None if fields[0] in "ZX" and int(fields[17]) < 2 else f"{boot} {fields[19]}"


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        send(pid, number)


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
