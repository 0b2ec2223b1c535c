"""The trainer's processes as the tests start them: forked from one that has imported torch and transformers.

Each import takes seconds of processor time, and the tests start hundreds of workers and launchers.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.unprivileged import drop_privileges

ROOT = Path(__file__).parents[2]
PRELOAD = [
    "tests.trainer.processes",
    "tests.trainer.checkpoint.saving",
    "torch.distributed",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "transformers.models.gpt2.modeling_gpt2",
    "trainer.train.__main__",
    "trainer.train.loop",
    "trainer.tasks.pretrain",
    "trainer.parallel.ddp",
    "trainer.parallel.deepspeed",
    "trainer.parallel.fsdp",
    "trainer.prepare",
    "transformers.models.llama.modeling_llama",
    "encodings.idna",
    "trainer.launch",
    "trainer.elastic.agent",
    "trainer.elastic.rendezvous_etcd",
    "torch.utils.cpp_extension",
    "tests.trainer.conftest",
    "tests.trainer.toy",
    "tests.trainer.warm",
]
"""Modules that the fork server loads before it forks."""


HOLD = "TRAINYARD_TESTS_HOLD_SAVES"
"""Variable that names a file: until it exists, a launcher's workers complete no checkpoint, as on slow storage."""
HUNG_SECONDS = 0.5
"""So long that launcher waits for hung workers which write no checkpoint."""


FOLDER: Path | None = None
"""Temporary folder of a test run whose processes share one fork server: its imports take 8 s of CPU time."""


def context() -> ForkServerContext:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOAD)
    if FOLDER is not None:
        _share_server(FOLDER)
    return found


def _share_server(folder: Path) -> None:
    """Fork from the server that another process of the run has started, or start it.

    The server ends with the last process that has its pipe open.
    """
    server: Any = forkserver._forkserver
    if server._forkserver_address is not None:
        return
    with (folder / "forkserver.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        with contextlib.suppress(ValueError, FileNotFoundError):  # not started yet, or its starter has ended
            address, pipe, key = json.load(file)
            server._forkserver_alive_fd = os.open(pipe, os.O_WRONLY)
            server._forkserver_address = address
            server._forkserver_authkey = bytes.fromhex(key)
            server.ensure_running = resource_tracker.ensure_running  # its own expects a child process
            return
        # Put the server's socket into the shared folder: this process deletes its own temporary folder at its end.
        multiprocessing.current_process()._config["tempdir"] = str(folder)  # pyrefly: ignore[missing-attribute]
        server.ensure_running()
        file.truncate(0)
        pipe = f"/proc/{os.getpid()}/fd/{server._forkserver_alive_fd}"
        key = getattr(server, "_forkserver_authkey", b"")  # Python 3.14 asks for it
        file.write(json.dumps([server._forkserver_address, pipe, key.hex()]))


def enter(environment: dict[str, str], log: str) -> None:
    """Give this process an environment, and a file as its output."""
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def run_worker(environment: dict[str, str], arguments: list[str], log: str) -> None:
    """Run one worker, like `python -m trainer.train`."""
    enter(environment, log)
    from trainer.train.__main__ import main

    sys.exit(main(arguments))


def run_launcher(environment: dict[str, str], arguments: list[str], log: str) -> None:
    """Run a node, like `python -m trainer.launch`."""
    os.setsid()
    os.chdir(ROOT)
    os.environ.clear()
    enter(environment, log)
    gc.freeze()  # do not collect the server's objects: they would close descriptors whose numbers are reused
    if HOLD in environment:
        _hold_saves(Path(environment[HOLD]))
    from trainer import launch

    sys.exit(launch.main(arguments))


def run_unprivileged(folder: str, arguments: list[str], log: str) -> None:
    """Run `python -m ARGUMENTS` in a folder, held by file modes as pods are."""
    os.setsid()
    os.chdir(folder)
    enter({}, log)
    gc.freeze()  # as in run_launcher
    drop_privileges()
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _hold_saves(until: Path) -> None:
    from trainer.checkpoint import format as written
    from trainer.elastic import agent

    agent.HUNG_SECONDS = HUNG_SECONDS  # pyrefly: ignore[bad-assignment]
    real = written._write_files

    def slow(*arguments: Any) -> None:
        while not until.exists():
            time.sleep(0.02)
        real(*arguments)

    written._write_files = slow  # pyrefly: ignore[bad-assignment]


class Workers:
    """The workers of one round, as processes."""

    def __init__(self, processes: list[BaseProcess], log: Path) -> None:
        self.processes, self._log = processes, log

    @property
    def output(self) -> str:
        return self._log.read_text("utf-8") if self._log.exists() else ""

    def wait(self, seconds: float = 60) -> list[int | None]:
        """Wait for the end of all workers; return their exit codes, None for one that still runs."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def kill(self, number: signal.Signals = signal.SIGKILL, only: int | None = None) -> None:
        for rank, process in enumerate(self.processes):
            if process.pid is not None and process.is_alive() and only in (None, rank):
                os.kill(process.pid, number)


def start_round(world: int, arguments: list[str], log: Path, target: Callable[..., None] = run_worker) -> Workers:
    """A round of `world` workers, each of which runs `target`."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    processes = []
    for rank in range(world):
        environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = context().Process(target=target, args=(environment, arguments, str(log)))
        process.start()
        processes.append(process)
    return Workers(processes, log)  # pyrefly: ignore[bad-argument-type]


class Launcher:
    """A node in a session of its own, as a pod would run it."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        log.touch()
        self._process = context().Process(target=run_launcher, args=(environment, arguments, str(log)))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        return self._log.read_text("utf-8")

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float) -> int:
        self._process.join(seconds)
        code = self.poll()
        assert code is not None, f"launcher still runs after {seconds} s:\n{self.output}"
        return code

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the launcher and its workers at once, as the loss of the machine would."""
        for pid in [self.pid, *self.workers()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait(10)

    def workers(self) -> list[int]:
        """The children of the nursery, which is the launcher's only one."""
        return [worker for nursery in children(self.pid) for worker in children(nursery)]


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []
