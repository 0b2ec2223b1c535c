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

from tests.trainer.conftest import EtcdServer, Launcher, Workers, losses, reached, termination, wait_until
from tests.trainer.processes import HOLD, ROOT
from trainer import launch
from trainer.checkpoint.format import list_checkpoints, newest_checkpoint
from trainer.contract import DEVICE
from trainer.elastic import agent
from trainer.elastic.etcd import Etcd, access
from trainer.elastic.rendezvous_etcd import PREFIX

Start = Callable[..., Launcher]
Settings = Callable[..., list[str]]


def test_a_lost_node_is_replaced_and_the_loss_curve_stays_the_same(
    start_launcher: Start,
    start_workers: Callable[[int, list[str]], Workers],
    settings: Settings,
    tmp_path: Path,
) -> None:
    """kill -9 of one node of two; the other makes a new round with its replacement; a late joiner finds DONE."""
    straight, run = tmp_path / "straight", tmp_path / "run"
    changes = {"steps": 80, "micro_batch": 8, "metrics__every": 5}
    arguments = settings(run, checkpoint__every_steps=10, **changes)
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
        assert node.output.splitlines()[-1].startswith("event=done step=80 validation_loss=")
        assert str(run / "checkpoints" / "step-00000080") in node.output
    outputs = survivor.output + replacement.output
    assert "event=resume step=" in outputs

    reference = start_workers(1, settings(straight, **changes))
    assert reference.wait(120) == [0]
    assert list(losses(run)) == list(losses(straight))
    # fp32 sums in another order drift apart; a lost or repeated step would show as a jump.
    assert list(losses(run).values()) == pytest.approx(list(losses(straight).values()), abs=2e-2)
    assert list(losses(run).values())[:6] == pytest.approx(list(losses(straight).values())[:6], abs=1e-4)

    late = start_launcher(arguments, two)
    assert late.wait(60) == 0, "it waits for a second node, for 120 s"
    assert late.output.startswith("event=done step=80 ")
    words = termination(tmp_path, 3)
    assert words["step"] == 80
    assert words == {**json.loads((run / "DONE").read_text()), "sample": words["sample"]}


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
    causes = [each["cause"] for each in json.loads((tmp_path / "status.json").read_text())["incidents"]]
    # On a busy machine an exchange may be slow, too.
    assert [each for each in causes if each.startswith("round")] == ["round 1 ended: 1 worker to join"]

    first.terminate()
    assert first.wait(40) == 143
    assert termination(tmp_path, 0)["state"] == "terminated"
    wait_until(lambda: "event=round round=3 world_size=1 rank=0" in second.output, 60, "the other goes on alone")
    wait_until(lambda: "event=resume step=" in second.output.split("event=round round=3")[1], 60, "from the checkpoint")
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert f"event=resume step={found.step} " in second.output.split("event=round round=3")[1]
    second.terminate()
    assert second.wait(40) == 143


@pytest.mark.parametrize("fault", ["a worker crashes", "etcd loses its data"])
def test_a_checkpoint_longer_than_hung_workers_are_given_is_completed(
    start_launcher: Start, own_etcd: EtcdServer, settings: Settings, tmp_path: Path, fault: str
) -> None:
    """Two nodes; rank 0 writes its checkpoint for longer than hung workers get to end."""
    hold, run = tmp_path / "storage-is-back", tmp_path / "run"
    crash = fault == "a worker crashes"
    arguments = settings(run, steps=100_000, checkpoint__every_steps=20 if crash else 0)
    options = ["--nnodes", "2:2", "--rdzv-endpoint", own_etcd.endpoint]
    first, second = (start_launcher(arguments, options, environment={HOLD: str(hold)}) for _ in range(2))

    def writing() -> list[Path]:
        return list((run / "checkpoints").glob(".step-*"))

    if crash:
        wait_until(lambda: len(writing()) > 0, 120, "a checkpoint")
        for pid in second.workers():
            os.kill(pid, signal.SIGKILL)
    else:
        wait_until(lambda: reached(run, 5), 120, "step 5")
        own_etcd.lose_data()
        own_etcd.start()
        wait_until(lambda: len(writing()) > 0, 60, "a checkpoint before the next round")
        went = "reason='the rendezvous went away, and came back without this round'"
        wait_until(lambda: went in first.output, 60, "what is known of the cause")
    step = int(writing()[0].name.split(".")[1].removeprefix("step-"))
    wait_until(lambda: "event=new_round after=1 lost_members=0" in first.output, 60, "the end of the round")
    time.sleep(agent.HUNG_SECONDS + 1)
    hold.touch()
    wait_until(lambda: f"event=resume step={step} " in first.output, 60, "the next round from this checkpoint")


def test_sigterm_while_it_waits_for_others_ends_at_once(
    start_launcher: Start, shared_etcd: EtcdServer, settings: Settings, tmp_path: Path
) -> None:
    alone = start_launcher(settings(tmp_path), ["--nnodes", "2:2"])
    etcd = Etcd(access(shared_etcd.endpoint, {}, {}))
    wait_until(lambda: etcd.count(f"{PREFIX}{tmp_path.name}/beats/") > 0, 60, "it has joined a round")
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
        ({}, ["--nnodes", "3:2"], "--nnodes 3:2: write MIN:MAX"),
        ({}, [], "--rdzv-endpoint: missing; give HOST:PORT, or --standalone on one machine"),
        ({}, ["--rdzv-endpoint", "etcd.invalid"], None),
        ({}, ["--nonsense"], "unrecognized arguments: --nonsense"),
        ({}, ["--standalone", "--rdzv-conf", "join_timeout=0"], "join_timeout=0: must be a number from 0.001 to"),
        ({}, ["--standalone", "--rdzv-conf", "close_timeout=nan"], "close_timeout=nan: must be a number"),
        ({}, ["--standalone", "--rdzv-conf", "last_call_timeout=1e300"], "last_call_timeout=1e300: must be a number"),
        ({}, ["--standalone", "--rdzv-conf", "keep_alive_max_attempt=2.5"], "2.5: must be a whole number from 1 to"),
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


def test_a_workers_fatal_error_ends_the_node_with_its_message(
    start_launcher: Start, settings: Settings, tmp_path: Path
) -> None:
    node = start_launcher(settings(tmp_path / "run", data__directory=tmp_path))
    assert node.wait(60) == 42
    words = termination(tmp_path, 0)
    assert words["state"] == "failed"
    assert "holds no index.json" in words["message"]
    assert "Traceback" not in node.output


def test_a_node_without_its_accelerator_leaves_the_others_alone_and_says_why(
    start_launcher: Start, settings: Settings, tmp_path: Path
) -> None:
    """The run has a checkpoint, so other nodes have accelerators: 42 would end the Job and all its pods."""
    (tmp_path / "run" / "checkpoints" / "step-00000010").mkdir(parents=True)
    environment = {DEVICE: "cuda", "CUDA_VISIBLE_DEVICES": ""}
    node = start_launcher(settings(tmp_path / "run"), ["--patience", "2"], environment=environment)
    assert node.wait(60) == 1, node.output
    words = termination(tmp_path, 0)
    assert words["state"] == "broken"
    assert words["message"].startswith("no CUDA device: torch")
    assert "event=new_round" not in node.output


CRASH = """
import os
forks = []
def forked():
    forks.append(1)
    if len(forks) == 2:  # the launcher forks its nursery, which forks workers
        os._exit(1)
os.register_at_fork(after_in_child=forked)
"""


def test_rounds_without_progress_end_with_42(start_launcher: Start, settings: Settings, tmp_path: Path) -> None:
    """A worker that crashes each time at its start is not restarted for ever."""
    (tmp_path / "sitecustomize.py").write_text(CRASH)
    node = start_launcher(
        settings(tmp_path / "run"), ["--patience", "2"], real=True, environment={"PYTHONPATH": str(tmp_path)}
    )
    assert node.wait(90) == 42
    assert node.output.count("event=workers_ended codes=1") == 2
    assert "2 rounds in a row ended without a step beyond 0" in termination(tmp_path, 0)["message"]


def test_last_words_fit_what_kubernetes_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "termination"
    path.write_text("old")
    monkeypatch.setenv("TRAINYARD_TERMINATION_LOG", str(path))
    launch.last_words({"step": 5, "sample": "ÆÆ" * 5000, "checkpoint": "/data/x"})
    assert path.stat().st_size <= 4096
    words = json.loads(path.read_text("utf-8"))
    assert (words["step"], words["checkpoint"]) == (5, "/data/x")
    assert len(words["sample"]) > 1000
