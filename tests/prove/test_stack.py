"""A proof asks its commands to stop once and waits for them, also when the proof itself is killed."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.__main__ import main
from faults.fault import Expected, until
from faults.stack import Stack, stop_signals
from prove import close


def log(folder: Path) -> list[str]:
    path = folder / "log.txt"
    return [line for line in path.read_text().splitlines() if line and line[0] != "$"] if path.exists() else []


def wait_for(word: str, folder: Path) -> None:
    until(lambda: word in log(folder), 60, word, lambda: log(folder))


def prove(folder: Path) -> None:
    """As a proof: hold the lock, and run `pulumi up`."""
    with open(folder / "lock", "w") as lock, stop_signals(signal.default_int_handler):
        fcntl.flock(lock, fcntl.LOCK_EX)
        Stack("prove-x", folder, dict(os.environ), {"cluster": {}}, held=(lock.fileno(),)).up()


@pytest.fixture
def proof(pulumi: Path, tmp_path: Path) -> Any:
    """The process of a proof in the middle of its `up`; its log is in the folder `run`."""
    (folder := tmp_path / "run").mkdir()
    pulumi.write_text("{}")
    process = multiprocessing.get_context("fork").Process(target=prove, args=(folder,))
    process.start()
    wait_for("begun", folder)
    return process


def test_a_terminal_that_closes_and_a_second_ctrl_c_leave_no_pulumi_behind(proof: Any, tmp_path: Path) -> None:
    os.kill(proof.pid, signal.SIGHUP)
    wait_for("asked", tmp_path / "run")
    for again in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(proof.pid, again)
    proof.join(60)
    assert proof.exitcode == 1
    assert log(tmp_path / "run") == ["begun", "asked", "stopped"]


def test_the_pulumi_of_a_killed_proof_keeps_the_next_proof_out_until_it_has_ended(
    proof: Any, pulumi: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two Pulumis must not write one state."""
    proof.kill()
    proof.join()
    again = ["prove", "--stack", "gcp-c3", "--destroy", "--folder", str(tmp_path / "run")]
    assert main(again) == 2
    assert "or a command that a killed one has begun; wait for it" in capsys.readouterr().err
    os.kill(int(Path(f"{pulumi}.pid").read_text()), signal.SIGINT)
    wait_for("stopped", tmp_path / "run")
    until(lambda: main(again) == 2 and "no run of gcp-c3" in capsys.readouterr().err, 60, "the lock is free")


def test_a_failed_command_says_its_last_lines(tmp_path: Path) -> None:
    stack = Stack("prove-x", tmp_path, dict(os.environ), {"cluster": {}})
    with pytest.raises(Expected, match="ended with 3: error: it is broken"):
        stack.change(["sh", "-c", "echo error: it is broken; exit 3"])


def test_a_stack_of_which_nothing_is_known_is_not_taken_for_one_that_is_gone(pulumi: Path, tmp_path: Path) -> None:
    """A destroy would say that nothing was made, and a bill would end."""
    stack = Stack("prove-x", tmp_path, dict(os.environ), {"cluster": {}})
    assert not stack.exists()
    pulumi.mkdir()
    with pytest.raises(Expected, match=r"stack export --stack ended with 1: cat: .*Is a directory"):
        stack.exists()


def test_nothing_of_a_protected_stack_is_destroyed_and_its_volume_is_not_emptied(
    pulumi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urn = "urn:pulumi:prove-x::trainyard::gcp:compute/disk:Disk::data"
    protected = {"urn": urn, "type": "gcp:compute/disk:Disk", "protect": True}
    pulumi.write_text(json.dumps({"version": 3, "deployment": {"resources": [protected]}}))
    emptied, changed = [], []
    monkeypatch.setattr(close, "_tidy", emptied.append)
    monkeypatch.setattr(Stack, "change", lambda self, command: changed.append(command[1]))
    stack = Stack("prove-x", tmp_path, dict(os.environ), {"cluster": {}})
    subject: Any = SimpleNamespace(stack=stack, state=None)
    for destroy in (stack.destroy, stack.remove, lambda: close.destroy(subject)):
        with pytest.raises(AssertionError, match="its state protects gcp:compute/disk:Disk data"):
            destroy()
    assert (emptied, changed) == ([], ["cancel"])
