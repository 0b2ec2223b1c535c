"""Workers that are started before their round: they get its environment, and end with their launcher."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, api, start_processes

from tests.trainer.conftest import ROOT, wait_until
from trainer.elastic.ahead import SIGN, Ahead, wait_for_place

WORKER = """
from trainer.elastic.ahead import wait_for_place
wait_for_place()
import os, sys
sys.exit(int(os.environ["RANK"]))
"""


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ahead]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = Ahead([sys.executable, "-c", WORKER], 2)
    yield made
    made.end()


def test_each_gets_the_place_that_it_is_given(ahead: Ahead) -> None:
    ahead.start()
    ahead.start()  # two and no more
    workers = [ahead.take({"RANK": str(rank)}) for rank in (7, 8)]
    assert ahead.take({"RANK": "9"}) is None
    assert [worker.wait(30) for worker in workers if worker is not None] == [7, 8]


def test_one_that_died_is_replaced(ahead: Ahead) -> None:
    ahead.start()
    dead = ahead._waiting[1]
    dead.kill()
    dead.wait()
    worker = ahead.take({"RANK": "5"})
    assert worker is not None
    assert worker.wait(30) == 5
    assert ahead.take({"RANK": "6"}) is None
    ahead.start()
    assert len({process.pid for process in ahead._waiting} - {dead.pid}) == 2


def test_one_that_ends_at_once_is_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code is for the agent: another must not take its place in silence."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ahead = Ahead([sys.executable, "-c", WORKER], 1)
    ahead.start()
    quick = ahead._waiting[0]
    monkeypatch.setattr(quick, "poll", quick.wait)  # as if the launcher had slept after it wrote the place
    worker = ahead.take({"RANK": "5"})
    assert worker is quick
    assert quick.wait(30) == 5


def test_it_is_a_leader_of_its_group_as_torch_needs_it(ahead: Ahead) -> None:
    """torch ends a worker by signalling its process group."""
    ahead.start()
    wait_until(lambda: all(os.getpgid(each.pid) == each.pid for each in ahead._waiting), 10, "groups of their own")


def test_torch_starts_its_workers_from_them(ahead: Ahead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "get_subprocess_handler"
    monkeypatch.setattr(api, name, getattr(api, name))  # put back at the end
    ahead.install()
    ahead.start()
    waiting = {process.pid for process in ahead._waiting}
    context = start_processes(
        "trainer",
        sys.executable,
        args={rank: ("-c", WORKER) for rank in range(2)},
        envs={0: {"RANK": "0"}, 1: {"RANK": "3"}},
        logs_specs=DefaultLogsSpecs(log_dir=str(tmp_path)),
    )
    try:
        assert set(context.pids().values()) == waiting
        result = context.wait(60)
    finally:
        context.close()
    assert result is not None
    assert result.failures[1].exitcode == 3


def test_none_waits_after_the_end(ahead: Ahead) -> None:
    ahead.start()
    waiting = list(ahead._waiting)
    ahead.end()
    assert [process.returncode for process in waiting] == [-signal.SIGKILL] * 2


def unread(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_it_ends_when_its_launcher_is_gone() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, env={**os.environ, SIGN: "1", "PYTHONPATH": str(ROOT)}
    )
    assert worker.stdin is not None
    os.write(worker.stdin.fileno(), b'{"RANK": "3"')  # killed while it wrote
    wait_until(lambda: unread(worker.stdin) == 0, 30, "the worker has read it")
    assert worker.poll() is None
    worker.stdin.close()
    assert worker.wait(30) == 0


def test_a_worker_that_was_not_started_ahead_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SIGN, raising=False)
    wait_for_place()
