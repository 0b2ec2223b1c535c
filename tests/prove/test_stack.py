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

from cli.__main__ import main
from faults.fault import until
from faults.stack import Stack
from infra.stackfiles import ROOT
from prove import close
from prove.stack import Proved

#: A proof that holds its lock and only runs `pulumi up`.
DRIVER = """
import fcntl, os, signal, sys
from pathlib import Path
from prove.stack import Proved, stop_signals
folder = Path(sys.argv[1])
lock = open(folder / "lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
stack = Proved("prove-x", folder, dict(os.environ), {"cluster": {}}, held=(lock.fileno(),))
with stop_signals(signal.default_int_handler):
    stack.up()
"""


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
    return process


def test_a_terminal_that_closes_and_a_second_ctrl_c_leave_no_pulumi_behind(
    driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    driver.send_signal(signal.SIGHUP)
    wait_for("asked", tmp_path / "run")
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        driver.send_signal(again)
    assert driver.wait(60) != 0
    assert log(tmp_path / "run") == ["begun", "asked", "stopped"]


def test_the_pulumi_of_a_killed_proof_keeps_the_next_proof_out_until_it_has_ended(
    driver: subprocess.Popen[bytes], pulumi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two Pulumis must not write one state."""
    driver.kill()
    driver.wait()
    again = ["prove", "--stack", "gcp-c3", "--destroy", "--folder", str(tmp_path / "run")]
    assert main(again) == 2
    assert "or a command that a killed one has begun; wait for it" in capsys.readouterr().err
    os.kill(int(Path(f"{pulumi}.pid").read_text()), signal.SIGINT)
    wait_for("stopped", tmp_path / "run")
    until(lambda: main(again) == 2 and "no run of gcp-c3" in capsys.readouterr().err, 60, "the lock is free")


def test_a_failed_command_says_its_last_lines(tmp_path: Path) -> None:
    stack = Proved("prove-x", tmp_path, dict(os.environ), {"cluster": {}})
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
