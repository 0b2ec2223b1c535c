"""The nursery: workers as forks, their signals and exit codes, and what is left when it or the launcher is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.conftest import wait_until
from tests.trainer.processes import context
from trainer.contract import EXIT_RESTART, WORKER
from trainer.elastic import nursery
from trainer.elastic.agent import process_state
from trainer.errors import Stop


def work(arguments: list[str]) -> int:
    """A worker that is told what to do."""
    what, path = arguments
    if what == "raise":
        raise RuntimeError("a bug")
    if what == "stay":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
        Path(path).write_text(f"{os.environ['RANK']} {len(os.environ)}")
        time.sleep(60)
    return int(what)


def alive(pid: int) -> bool:
    return process_state(pid) not in ("", "Z")


@pytest.fixture
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[nursery.Nursery]:
    """A nursery whose workers need as many seconds as the parameter says until they ask to end with it."""
    system, seconds = nursery.ctypes.CDLL, getattr(request, "param", 0)
    monkeypatch.setattr(nursery.ctypes, "CDLL", lambda name: (time.sleep(seconds), system(name))[1])
    yield (found := nursery.Nursery(work))
    found._link.close()
    os.waitpid(found.pid, 0)


def test_workers_end_with_their_own_codes(made: nursery.Nursery, tmp_path: Path) -> None:
    for what, code in (("0", 0), ("42", 42), ("raise", 1)):
        assert made.start([what, ""], {}).wait(30) == code
    path = tmp_path / "here"
    workers = [made.start(["stay", f"{path}{rank}"], {"RANK": str(rank)}) for rank in range(2)]
    wait_until(lambda: all(Path(f"{path}{rank}").exists() for rank in range(2)), 30, "both")
    assert [worker.poll() for worker in workers] == [None, None]
    with pytest.raises(subprocess.TimeoutExpired):
        workers[0].wait(0.1)
    pids = [worker.pid for worker in workers]
    assert os.getpgid(pids[1]) == pids[1]
    wait_until(lambda: Path(f"{path}1").read_text() == "1 1", 30, "an environment of its own")
    assert Path(f"/proc/{pids[0]}/comm").read_text() == f"{WORKER}\n"
    os.killpg(pids[0], signal.SIGTERM)
    os.killpg(pids[1], signal.SIGKILL)
    assert [worker.wait(30) for worker in workers] == [75, -signal.SIGKILL]


def test_a_worker_that_has_ended_takes_signals_until_the_launcher_knows(made: nursery.Nursery) -> None:
    """As a subprocess.Popen does before its poll: torch raises for a group that is gone, and the launcher would end."""
    worker = made.start(["3", ""], {})
    wait_until(lambda: not alive(worker.pid), 30, "its end")
    time.sleep(0.2)  # the nursery has told it
    os.killpg(worker.pid, signal.SIGKILL)
    assert made.start(["0", ""], {}).wait(30) == 0
    assert worker.poll() == 3
    assert not Path(f"/proc/{worker.pid}").exists(), "and leaves nothing"


@pytest.mark.parametrize("made", [0, 1], indirect=True)
def test_without_the_nursery_workers_end_and_none_begins(made: nursery.Nursery, tmp_path: Path) -> None:
    worker = made.start(["stay", str(tmp_path / "here")], {"RANK": "0"})
    os.kill(made.pid, signal.SIGKILL)
    assert worker.wait(30) == -signal.SIGKILL
    wait_until(lambda: not alive(worker.pid), 30, "the worker's end")
    with pytest.raises(Stop) as stop:
        made.start(["0", ""], {})
    assert stop.value.code == EXIT_RESTART


def launcher(path: Path) -> None:
    """Signals of its group do not reach the nursery."""
    os.setpgid(0, 0)
    made = nursery.Nursery(work)
    worker = made.start(["stay", str(path)], {"RANK": "0"})
    signal.signal(signal.SIGTERM, lambda *_: path.with_suffix(".code").write_text(str(worker.poll())))
    wait_until(path.exists, 30, "the worker")
    os.killpg(0, signal.SIGTERM)
    path.with_suffix(".pids").write_text(f"{made.pid} {worker.pid}")
    time.sleep(60)


def test_a_lost_launcher_leaves_nothing(tmp_path: Path) -> None:
    process: Any = context().Process(target=launcher, args=(tmp_path / "here",))
    process.start()
    pids = tmp_path / "here.pids"
    wait_until(lambda: pids.exists() and " " in pids.read_text(), 30, "the launcher")
    assert (tmp_path / "here.code").read_text() == "None"
    there = [int(pid) for pid in pids.read_text().split()]
    process.kill()
    process.join()
    wait_until(lambda: not any(map(alive, there)), 30, "the end of nursery and worker")


def test_an_open_driver_forbids_forks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert nursery.is_safe()
    monkeypatch.setattr(nursery, "DRIVERS", (str(tmp_path),))
    with (tmp_path / "nvidia0").open("w"):
        assert not nursery.is_safe()
