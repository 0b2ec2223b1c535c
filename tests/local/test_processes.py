"""Daemons are told apart from strangers, restarted when they change, and explained when they fail. No root needed."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from faults.fault import until
from local import paths, processes, shell
from local.processes import Daemon
from local.shell import LocalError


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "PROCESSES", tmp_path / "processes")
    monkeypatch.setattr(paths, "LOGS", tmp_path / "log")
    monkeypatch.setattr(processes, "GRACE", 0.3)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Daemon]:
    # The directory's name makes the command line unique to this test.
    command = [sys.executable, "-c", "import time; time.sleep(60)", str(tmp_path)]
    yield Daemon("sleeper", command, lambda: None, netns="", stop_seconds=2, start_seconds=5)
    processes.stop("sleeper")


def pid() -> int:
    record = processes.read_record("sleeper")
    assert record
    return record.pid


def test_a_healthy_daemon_is_started_once_and_again_when_anything_of_it_changes(
    sleeper: Daemon, tmp_path: Path
) -> None:
    file = tmp_path / "configuration"
    file.write_text("a")
    daemon = replace(sleeper, files=(file,))
    assert processes.ensure(daemon)
    first = pid()
    assert not processes.ensure(daemon)
    assert pid() == first
    daemon = replace(daemon, command=[*sleeper.command, "--new"])
    assert processes.ensure(daemon)
    assert pid() != first
    assert processes.start_time(first) is None
    file.write_text("b")
    assert processes.ensure(daemon)
    second = pid()
    assert processes.ensure(replace(daemon, health=lambda: "no answer"))
    assert pid() != second


def test_a_recycled_process_id_is_not_ours(sleeper: Daemon) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        time.sleep(0.05)  # the kernel counts start times in hundredths of a second
        processes.ensure(sleeper)
        record = processes.read_record("sleeper")
        assert record
        recycled = replace(record, pid=stranger.pid)
        assert not processes.is_alive(recycled)
        processes.record_path("sleeper").write_text(
            f'{{"pid": {stranger.pid}, "started": {record.started}, "boot": "{record.boot}", "digest": "", "since": 0}}'
        )
        assert not processes.stop("sleeper")
        assert stranger.poll() is None
        stranger.kill()
    processes.end_all([record.pid], 1)


@pytest.mark.parametrize("text", ["{", '{"pid": 1}'])
def test_a_broken_record_counts_as_none(text: str) -> None:
    paths.PROCESSES.mkdir()
    processes.record_path("sleeper").write_text(text)
    assert processes.read_record("sleeper") is None
    assert not processes.stop("sleeper")


def test_one_that_was_started_but_not_recorded_is_ended_first(sleeper: Daemon) -> None:
    processes.ensure(sleeper)
    first = pid()
    processes.record_path("sleeper").unlink()
    while processes.strays(sleeper.command) != [first]:
        time.sleep(0.01)  # the kernel lets Popen go on a moment before the new command line can be read
    assert processes.ensure(sleeper)
    assert processes.start_time(first) is None


def test_one_that_ends_at_once_is_an_error_with_its_last_words(sleeper: Daemon) -> None:
    command = [sys.executable, "-c", "print('the disk is on fire'); raise SystemExit(1)"]
    daemon = replace(sleeper, command=command, health=lambda: "no answer")
    processes.ensure(daemon)
    with pytest.raises(LocalError, match=r"sleeper ended before it served: the disk is on fire \(log: .*\.log\)"):
        processes.wait(daemon)


def test_one_that_never_serves_is_an_error_with_the_reason(sleeper: Daemon) -> None:
    daemon = replace(sleeper, health=lambda: "HTTP 500", start_seconds=0.5)
    processes.start(daemon)
    with pytest.raises(LocalError, match=r"does not serve after 0 s \(HTTP 500\)"):
        processes.wait(daemon)


def test_one_that_ignores_sigterm_is_killed(sleeper: Daemon) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    processes.start(replace(sleeper, command=[sys.executable, "-c", code]))
    until(lambda: "deaf" in processes.log_path("sleeper").read_text(), 10, "it is deaf")
    first = pid()
    assert processes.stop("sleeper", 0.3)
    assert processes.start_time(first) is None


def test_one_whose_first_thread_has_ended_lives_while_another_has_its_port() -> None:
    """As when etcd ends: its first thread is a zombie before the last one has closed the port."""
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=lambda: print('begun', flush=True) or time.sleep(60)).start()\n"
        # exit(2) ends the calling thread alone.
        f"ctypes.CDLL(None).syscall({60 if platform.machine() == 'x86_64' else 93}, 0)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        stat = Path(f"/proc/{process.pid}/stat")
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 10, "its first thread has ended")
        assert processes.start_time(process.pid)
        process.kill()


@pytest.mark.usefixtures("strict_umask")
def test_pods_can_read_what_daemons_and_helpers_make_for_them(sleeper: Daemon, tmp_path: Path) -> None:
    daemon, helper = tmp_path / "of a daemon", tmp_path / "of a helper"
    processes.start(replace(sleeper, command=["mkdir", str(daemon)]))
    shell.run(["mkdir", str(helper)], "make a folder")
    until(daemon.exists, 10, "its folder")
    assert [folder.stat().st_mode & 0o777 for folder in (daemon, helper)] == [0o755, 0o755]


def test_the_daemons_get_none_of_the_caller_s_proxies(sleeper: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:1")
    assert "HTTPS_PROXY" not in processes.environment(sleeper)
