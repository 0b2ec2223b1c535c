"""Nodes as real processes, a real etcd: members lost and replaced, signals, exit codes, last words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import processes
from tests.trainer.conftest import (
    EtcdServer,
    Launcher,
    Settings,
    done,
    losses,
    newest,
    reached,
    status,
    termination,
    wait_until,
)
from tests.trainer.processes import HOLD, ROOT
from trainer import launch
from trainer.checkpoint.format import list_checkpoints
from trainer.config.schema import load
from trainer.data.batches import open_dataset
from trainer.elastic import nursery
from trainer.elastic.etcd import Etcd, access
from trainer.elastic.rendezvous_etcd import PREFIX
from trainer.errors import Stop
from trainer.files import write_json

Start = Callable[..., Launcher]


def test_a_lost_node_is_replaced_and_no_step_is_lost(start_launcher: Start, settings: Settings, tmp_path: Path) -> None:
    """kill -9 of one node of two; the other makes a new round with its replacement; a late joiner finds DONE."""
    run = tmp_path / "run"
    arguments = settings(run, steps=40, micro_batch=8, metrics__every=1, checkpoint__every_steps=10)
    two = ["--nnodes", "2:2"]
    survivor = start_launcher(arguments, two)
    victim = start_launcher(arguments, two)
    wait_until(lambda: len(list_checkpoints(run)) > 0, 120, "a checkpoint")
    victim.kill()
    assert not (run / "DONE").exists(), "the kill came too late to test anything"
    replacement = start_launcher(arguments, two)
    wait_until(lambda: "event=round round=2 world_size=2" in survivor.output, 120, "a second round")
    assert survivor.wait(120) == 0
    assert replacement.wait(60) == 0
    for node in (survivor, replacement):
        assert node.output.splitlines()[-1].startswith("event=done step=40 validation_loss=")
        assert str(run / "checkpoints" / "step-00000040") in node.output
    outputs = survivor.output + replacement.output
    assert "event=resume step=" in outputs
    assert list(losses(run)) == list(range(1, 41))

    late = start_launcher(arguments, two)
    assert late.wait(60) == 0, "it waits for a second node, for 120 s"
    assert late.output.startswith("event=done step=40 ")
    words = termination(tmp_path, 3)
    assert words["step"] == 40
    assert words == {**done(run), "sample": words["sample"]}


def test_a_newcomer_is_taken_in_and_a_notice_costs_no_step(
    start_launcher: Start, settings: Settings, tmp_path: Path
) -> None:
    """1 -> 2 nodes while it runs, then SIGTERM to the first: it saves and ends with 143, the other goes on alone."""
    arguments = settings(tmp_path, steps=100_000, metrics__every=5)
    first = start_launcher(arguments, ["--nnodes", "1:2"])
    wait_until(lambda: reached(tmp_path, 20), 90, "step 20")
    second = start_launcher(arguments, ["--nnodes", "1:2"])
    wait_until(lambda: "world_size=2" in first.output + second.output, 60, "two nodes in a round")
    joined = first.output + second.output
    assert "event=checkpoint step=" in joined, "the workers save before they make room"
    step = max(losses(tmp_path))
    wait_until(lambda: reached(tmp_path, step + 10), 60, "both nodes train")
    causes = [each["cause"] for each in status(tmp_path)["incidents"]]
    # On a busy machine an exchange may be slow, too.
    assert [each for each in causes if each.startswith("round")] == ["round 1 ended: 1 worker to join"]

    first.terminate()
    assert first.wait(40) == 143
    assert termination(tmp_path, 0)["state"] == "terminated"
    wait_until(lambda: "event=round round=3 world_size=1 rank=0" in second.output, 60, "the other goes on alone")
    wait_until(lambda: "event=resume step=" in second.output.split("event=round round=3")[1], 60, "from the checkpoint")
    assert f"event=resume step={newest(tmp_path).step} " in second.output.split("event=round round=3")[1]
    second.terminate()
    assert second.wait(40) == 143


def test_a_checkpoint_longer_than_hung_workers_are_given_is_completed(
    start_launcher: Start, settings: Settings, tmp_path: Path
) -> None:
    """Two nodes; a worker crashes while rank 0 writes its checkpoint for longer than hung workers get to end."""
    hold, run = tmp_path / "storage-is-back", tmp_path / "run"
    arguments = settings(run, steps=100_000, checkpoint__every_steps=20)
    first, second = (start_launcher(arguments, ["--nnodes", "2:2"], environment={HOLD: str(hold)}) for _ in range(2))
    writing = lambda: list((run / "checkpoints").glob(".step-*"))  # noqa: E731
    wait_until(lambda: len(writing()) > 0, 120, "a checkpoint")
    for pid in second.workers():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "event=new_round after=1 lost_members=0" in first.output, 60, "the end of the round")
    time.sleep(processes.HUNG_SECONDS + 1)
    hold.touch()
    # From this checkpoint, or the next one, where step 40 was reached before the kill.
    wait_until(lambda: "event=resume step=" in first.output, 60, "the next round from this checkpoint")


def test_sigterm_while_it_waits_for_others_ends_at_once(
    start_launcher: Start, shared_etcd: EtcdServer, settings: Settings, tmp_path: Path
) -> None:
    alone = start_launcher(settings(tmp_path), ["--nnodes", "2:2"])
    etcd = Etcd(access(shared_etcd.endpoint, {}, {}))
    wait_until(lambda: etcd.get(f"{PREFIX}{tmp_path.name}/state") is not None, 60, "it has joined a round")
    alone.terminate()
    assert alone.wait(60) == 143, "it waits on for others, for 120 s"
    assert "Traceback" not in alone.output


def test_sigterm_in_its_first_moments_is_heard(start_launcher: Start, settings: Settings, tmp_path: Path) -> None:
    node = start_launcher(settings(tmp_path, steps=100_000))
    wait_until(lambda: (tmp_path / "checkpoints").exists(), 20, "the launcher began")
    node.terminate()
    assert node.wait(15) == 143


def test_sigterm_inside_of_a_callback_is_heard_a_moment_later() -> None:
    """Python reports what is raised in a finalizer or around a fork, and goes on."""
    script = """
import signal, sys, time
from trainer import launch

class Callback:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

def began(arguments):
    del arguments
    Callback()
    time.sleep(300)

launch.parse = began
sys.exit(launch.main([]))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 143, done.stderr
    assert done.stderr == "asked to end by SIGTERM\n"


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({"stepz": 5}, ["--standalone"], "did you mean steps?"),
        ({}, ["--rdzv-endpoint", "etcd.invalid"], None),
        ({}, ["--standalone", "--rdzv-conf", "join_timeout=0"], "--rdzv-conf: The join timeout (0:00:00) must be"),
    ],
)
def test_bad_arguments_end_with_42_and_one_line(
    settings: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    options: list[str],
    said: str | None,
) -> None:
    monkeypatch.setenv("TRAINYARD_TERMINATION_LOG", str(tmp_path / "termination"))
    monkeypatch.setattr(launch, "REACH_SECONDS", 0)
    monkeypatch.setattr(nursery, "is_safe", lambda: False)  # no fork of a process that runs other tests
    code = launch.main([*options, "--", *settings(tmp_path / "run", **change)])
    error = capsys.readouterr().err
    words = json.loads((tmp_path / "termination").read_text())
    assert error.count("\n") == 1
    assert words["message"] == error.strip()
    if (
        said is None
    ):  # a name that does not resolve (.invalid never does: RFC 2606) may do so later: not this run's fault
        assert (code, words["state"]) == (75, "restart")
        assert "--rdzv-endpoint etcd.invalid:2379 not reachable" in error
    else:
        assert (code, words["state"]) == (42, "failed")
        assert said in error


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nnodes", "3:2"], "invalid nodes value: '3:2'"),
        (["--standalone", "--rdzv-conf", "x"], "invalid pairs value: 'x'"),
        ([], "--rdzv-endpoint: missing; give HOST:PORT, or --standalone on one machine"),
    ],
)
def test_options_are_argparses(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        launch.main([*options, "--"])
    assert said in capsys.readouterr().err


def test_a_workers_fatal_error_ends_the_node_with_its_message(
    start_launcher: Start, settings: Settings, tmp_path: Path
) -> None:
    node = start_launcher(settings(tmp_path / "run", data__directory=tmp_path))
    assert node.wait(60) == 42
    words = termination(tmp_path, 0)
    assert words["state"] == "failed"
    assert "holds no index.json" in words["message"]
    assert "Traceback" not in node.output


def test_last_words_fit_what_kubernetes_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "termination"
    path.write_text("old")
    monkeypatch.setenv("TRAINYARD_TERMINATION_LOG", str(path))
    launch.last_words({"step": 5, "sample": "ÆÆ" * 5000, "checkpoint": "/data/x"})
    assert path.stat().st_size <= 4096
    words = json.loads(path.read_text("utf-8"))
    assert (words["step"], words["checkpoint"]) == (5, "/data/x")
    assert len(words["sample"]) > 1000


@pytest.mark.parametrize("changed", [True, False])
def test_a_run_that_is_done_says_that_its_data_have_changed_since(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: bool
) -> None:
    given = settings(tmp_path)
    digest = open_dataset(load(given).data.directory).digest
    write_json(tmp_path / "DONE", {"step": 4, "data": "other" if changed else digest})
    with pytest.raises(Stop, match="done before this launcher began"):
        launch.launch(*launch.parse(["--standalone", "--", *given]), tmp_path)
    told = f"event=data_changed before=other now={digest[:12]} then='this run is done and learns nothing of them"
    assert (told in capsys.readouterr().out) == changed
