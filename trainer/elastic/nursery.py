"""Workers as forks of a process that has imported what they need, in place of programs that begin anew in each round.

A worker's imports take 6 s of processor time and 470 MB. The launcher makes them once and forks the nursery before it
starts a thread of its own: a fork of a process with threads may find a lock that nobody will release. The workers are
forks of the nursery, and share the memory that none of them writes to.
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from trainer import log
from trainer.contract import EXIT_BROKEN, EXIT_RESTART, WORKER
from trainer.errors import Stop

DRIVERS = ("/dev/nvidia", "/dev/kfd", "/dev/neuron", "/dev/accel", "/dev/dri")
"""Devices that no fork can use once they are open."""
MESSAGE_BYTES = 1 << 20
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
"""linux/prctl.h."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Nursery:
    """A process that forks workers and tells how they ended."""

    def __init__(self, work: Callable[[list[str]], int]) -> None:
        """work: what a worker does with its arguments; returns its exit code."""
        self._codes: dict[int, int] = {}
        """Process id -> how it ended."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._link, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
        # A signal for the launcher must not run its handler in the nursery.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            self._link.close()
            _serve(theirs, work)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        theirs.close()

    def adopt(self) -> None:
        """Have torch's agent start its workers here."""
        handler: Any = SubprocessHandler
        handler._popen = lambda _, command, environment: self.start(list(command[3:]), environment)

    def start(self, arguments: list[str], environment: dict[str, str]) -> "Worker":
        """Fork a worker, in a process group of its own. Raises Stop if the nursery is gone."""
        try:
            self._link.send(json.dumps([arguments, environment]).encode())
            while (began := self._hear()) is None:
                pass
        except OSError:
            raise Stop(EXIT_RESTART, "the process that forks the workers was killed") from None
        self._codes.pop(began, None)
        return Worker(self, began)

    def code(self, pid: int, seconds: float = 0) -> int | None:
        """How a worker ended, as subprocess.Popen says it; None if it still runs after these seconds."""
        deadline = time.monotonic() + seconds
        while pid not in self._codes:
            if not select.select([self._link], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            try:
                self._hear()
            except OSError:
                return -signal.SIGKILL  # its workers end with the nursery
        return self._codes[pid]

    def _hear(self) -> int | None:
        """Read one message; return the process id of a worker that began. Raises OSError if the nursery is gone."""
        data = self._link.recv(MESSAGE_BYTES)
        if not data:
            raise ConnectionResetError
        pid, code = json.loads(data)
        if code is None:
            return pid
        self._codes[pid] = code
        return None


class Worker:
    """A fork, with what torch's agent uses of a subprocess.Popen."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid

    def poll(self) -> int | None:
        return self._nursery.code(self.pid)

    def wait(self, timeout: float) -> int:
        code = self._nursery.code(self.pid, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(WORKER, timeout)
        return code


def is_safe() -> bool:
    """Whether no import has opened an accelerator's driver, which works in no fork of the process that opened it."""
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if os.readlink(descriptor).startswith(DRIVERS):
                return False
        except OSError:  # of the listing itself
            continue
    return True


def _serve(link: socket.socket, work: Callable[[list[str]], int]) -> NoReturn:
    """Fork a worker at each message, tell how workers end, and end with the launcher."""
    os.setsid()  # a pod's init signals the launcher's process group, a terminal its session
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    _receive_signals()
    signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the loop
    running: list[int] = []
    ended: list[int] = []
    own = os.getpid()
    while True:
        ready = select.select([link, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
        for pid in list(running):
            if found := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                running.remove(pid)
                ended.append(pid)
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                link.send(json.dumps([pid, code]).encode())
        if link in ready:
            if not (data := link.recv(MESSAGE_BYTES)):
                os._exit(0)
            # Not before the launcher has heard of it: torch signals the group of a worker that runs as far as it knows.
            while ended:
                os.waitpid(ended.pop(), 0)
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                link.close()
                _live(own, work, *json.loads(data))
            os.setpgid(pid, pid)  # the agent signals the worker's group from now on
            running.append(pid)
            link.send(json.dumps([pid, None]).encode())


def _live(
    nursery: int, work: Callable[[list[str]], int], arguments: list[str], environment: dict[str, str]
) -> NoReturn:
    """Be a worker."""
    code = EXIT_BROKEN
    try:
        _receive_signals()
        system = ctypes.CDLL(None)
        system.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        system.prctl(PR_SET_NAME, WORKER.encode())
        if os.getppid() != nursery:  # it was killed before this process asked to end with it
            log.leave(EXIT_RESTART)
        os.environ.clear()
        os.environ.update(environment)
        code = work(arguments)
    except BaseException:
        traceback.print_exc()
    log.leave(code)


def _receive_signals() -> None:
    """Give signals back the meaning that they have in a new program, and let them come."""
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.unraisablehook = sys.__unraisablehook__
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
