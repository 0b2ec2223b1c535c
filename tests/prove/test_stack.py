"""A proof asks its commands to stop once and waits for them, also when the proof itself is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faults.fault import until
from faults.stack import Stack
from infra.stackfiles import ROOT
from prove import close
from prove.stack import Proved, started

#: A proof that only runs `pulumi up`.
DRIVER = """
import os, signal, sys
from pathlib import Path
from prove.stack import Proved, stop_signals
stack = Proved("prove-x", Path(sys.argv[1]), dict(os.environ), {"cluster": {}})
with stop_signals(signal.default_int_handler):
    stack.up()
"""


def proved(folder: Path, **given: Any) -> Proved:
    folder.mkdir(exist_ok=True)
    return Proved("prove-x", folder, dict(os.environ), {"cluster": {}}, **given)


def log(folder: Path) -> list[str]:
    path = folder / "log.txt"
    return [line for line in path.read_text().splitlines() if line and line[0] != "$"] if path.exists() else []


def wait_for(word: str, folder: Path) -> None:
    until(lambda: word in log(folder), 60, word, lambda: log(folder))


@pytest.fixture
def driver(pulumi: Path, tmp_path: Path) -> subprocess.Popen[bytes]:
    """A proof in the middle of its `up`; its log is in the folder `run`."""
    folder = tmp_path / "run"
    folder.mkdir()
    pulumi.write_text("{}")
    process = subprocess.Popen([sys.executable, "-c", DRIVER, folder], cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_for("begun", folder)
    until(proved(folder).child.exists, 60, "its Pulumi is noted, a moment after it began")
    return process


def test_a_command_is_asked_to_stop_once_and_waited_for(pulumi: Path, tmp_path: Path) -> None:
    """Pulumi needs this: a second signal kills it, with a resource half created and the stack locked."""
    calls: list[int] = []

    def tick() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    pulumi.write_text("{}")
    stack = proved(tmp_path / "run", tick=tick)
    with pytest.raises(KeyboardInterrupt):
        stack.up()
    assert log(tmp_path / "run") == ["begun", "asked", "stopped"]
    assert not stack.child.exists()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_terminal_that_closes_or_a_second_ctrl_c_leaves_no_pulumi_behind(
    number: int, driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    driver.send_signal(number)
    wait_for("asked", tmp_path / "run")
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        driver.send_signal(again)
    assert driver.wait(60) != 0
    assert log(tmp_path / "run") == ["begun", "asked", "stopped"]


def test_a_lock_is_taken_away_when_the_pulumi_of_a_killed_proof_has_ended(
    driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    driver.kill()
    driver.wait()
    said: list[str] = []
    proved(tmp_path / "run", say=said.append).unlock()
    assert log(tmp_path / "run") == ["begun", "asked", "stopped", "unlocked"]
    assert "ends what it has begun" in said[0]


def test_a_proof_that_is_killed_while_it_waits_has_asked_its_pulumi_already(
    driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    driver.send_signal(signal.SIGINT)
    wait_for("asked", tmp_path / "run")
    driver.kill()
    driver.wait()
    proved(tmp_path / "run").unlock()
    assert log(tmp_path / "run") == ["begun", "asked", "stopped", "unlocked"]


def test_a_process_that_has_the_number_of_one_that_ended_is_left_alone(pulumi: Path, tmp_path: Path) -> None:
    pulumi.write_text("{}")
    stack = proved(tmp_path / "run")
    with subprocess.Popen(["sleep", "60"]) as other:
        now = started(other.pid)
        assert now
        stack.child.write_text(json.dumps({"pid": other.pid, "started": "before", "asked": False}))
        stack.unlock()
        assert started(other.pid) == now
        other.kill()
    assert log(tmp_path / "run") == ["unlocked"]


def test_a_failed_command_says_its_last_lines(tmp_path: Path) -> None:
    stack = proved(tmp_path / "run")
    with pytest.raises(Exception, match="ended with 3: error: it is broken"):
        stack.done(["sh", "-c", "echo error: it is broken; exit 3"])


@pytest.mark.parametrize("kind", [Stack, Proved])
def test_nothing_of_a_protected_stack_is_destroyed_and_its_volume_is_not_emptied(
    kind: type[Stack], pulumi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urn = "urn:pulumi:prove-x::trainyard::gcp:compute/disk:Disk::data"
    protected = {"urn": urn, "type": "gcp:compute/disk:Disk", "protect": True}
    pulumi.write_text(json.dumps({"version": 3, "deployment": {"resources": [protected]}}))
    emptied, changed = [], []
    monkeypatch.setattr(close, "_tidy", emptied.append)
    monkeypatch.setattr(kind, "change", lambda self, *command: changed.append(command[0]))
    stack = kind("prove-x", tmp_path, dict(os.environ), {"cluster": {}})
    subject: Any = SimpleNamespace(stack=stack, state=None)
    for destroy in (stack.destroy, stack.remove, lambda: close.destroy(subject)):
        with pytest.raises(AssertionError, match="its state protects gcp:compute/disk:Disk data"):
            destroy()
    assert (emptied, changed) == ([], ["cancel"])
