"""How the agent judges its workers' exits, and how long it waits for them; neither needs a round."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from tests.trainer.conftest import wait_until
from trainer.checkpoint.format import list_checkpoints
from trainer.contract import DONE, STATUS
from trainer.elastic import agent
from trainer.elastic.agent import Agent
from trainer.elastic.rendezvous import RoundOver
from trainer.errors import Stop
from trainer.files import write_json

PATIENCE = 3


def failure(code: int, message: Any = "", told: int | None = None, at: int = 0) -> ProcessFailure:
    found = ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file="/nowhere")
    found.message, found.timestamp = message, at
    if told is not None:
        found.error_file_data = {"message": {"message": "", "extraInfo": {"exit_code": told}}}
    return found


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """An agent of a run whose status.json and DONE are in tmp_path."""
    made = object.__new__(Agent)
    made._run, made._patience, made._best, made._fruitless, made._stopped = tmp_path, PATIENCE, 0, 0, {}
    handler: Any = SimpleNamespace(round=1)
    made._unclear, made._handler = "", handler
    monkeypatch.setattr(agent, "CALM_SECONDS", 0)
    return made


def reach(run: Path, step: int) -> None:
    write_json(run / STATUS, {"step": step}, durable=False)


@pytest.mark.parametrize(
    ("failures", "code", "said"),
    [
        ([failure(75), failure(42, {"message": "data.directory is missing"})], 42, "data.directory is missing"),
        # Its peers on this node end first, but the worker wrote its error file before they could notice.
        ([failure(75), failure(-15, {"message": "no such model"}, told=42)], 42, "no such model"),
        ([failure(143), failure(143)], 143, "asked to end"),
    ],
)
def test_where_no_other_round_helps_the_node_ends(
    judge: Agent, failures: list[ProcessFailure], code: int, said: str
) -> None:
    with pytest.raises(Stop, match=said) as end:
        judge._judge(failures)
    assert end.value.code == code


@pytest.mark.parametrize(
    "failures",
    [
        [failure(75), failure(75, {"message": "the reason"}, told=75)],
        [failure(1, "connection closed by peer", at=101), failure(-9, "the reason", at=100)],
    ],
)
def test_who_told_a_reason_is_heard_and_else_who_ended_first(
    judge: Agent, failures: list[ProcessFailure], capsys: pytest.CaptureFixture[str]
) -> None:
    judge._judge(failures)
    assert "reason='the reason'" in capsys.readouterr().out


def test_a_round_that_loses_a_member_as_it_forms_is_followed_by_another(
    judge: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nobody is missing at the next look: who was lost is back, or who waited has gone."""
    ends: list[Exception | None] = [RoundOver("nobody is left to write it"), None]

    def begin(*_: object) -> None:
        if end := ends.pop(0):
            raise end

    monkeypatch.setattr(agent.LocalElasticAgent, "_initialize_workers", begin)
    handler: Any = SimpleNamespace(round=1, forming=True, lost_members=lambda: 0, changed=lambda: "")
    judge._handler, group = handler, SimpleNamespace()
    judge._initialize_workers(group)  # pyrefly: ignore[bad-argument-type]
    assert (ends, handler.forming) == ([], False)


def test_a_loss_after_the_end_is_no_loss(judge: Agent, tmp_path: Path) -> None:
    write_json(tmp_path / DONE, {"step": 5})
    with pytest.raises(Stop) as end:
        judge._judge([failure(-9)])
    assert end.value.code == 0


def test_rounds_go_on_for_as_long_as_they_bring_steps(judge: Agent, tmp_path: Path) -> None:
    """Many preemptions, each after one more step."""
    for step in range(1, 3 * PATIENCE):
        reach(tmp_path, step)
        judge._judge([failure(75)])


def test_what_was_saved_is_reached_though_the_status_was_lost(judge: Agent, tmp_path: Path) -> None:
    for step in range(1, 2 * PATIENCE):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        judge._judge([failure(75)])


WORKER = """
import os, signal, sys, time
from pathlib import Path
run = Path(sys.argv[1])
{signals}
begun = run / "checkpoints" / f".step-00000010.{{os.getpid()}}"
{begin}
(run / "ready").touch()
while not (run / "finish").exists():
    time.sleep(0.01)
begun.rename(begun.with_name("step-00000010"))
"""
HANGS = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Agent]]:
    """Start an agent's workers, the first of which runs WORKER, and wait until that is ready."""
    monkeypatch.setattr(agent, "HUNG_SECONDS", 0.2)
    (tmp_path / "checkpoints").mkdir()
    started: list[Agent] = []

    def make(signals: str, begin: str, left: int = 0, first: int = 0, others: tuple[str, ...] = ()) -> Agent:
        handler: Any = SimpleNamespace(
            round=2,
            left_members=lambda: left,
            lost_members=lambda: left,
            changed=lambda: "",
            get_run_id=lambda: "run",
        )
        scripts = [WORKER.format(signals=signals, begin=begin), *others]
        made = Agent(handler, len(scripts), ["python"], tmp_path, str(tmp_path), grace=90, patience=PATIENCE)
        made._pcontext = start_processes(
            "trainer",
            sys.executable,
            args={rank: ("-c", script, str(tmp_path)) for rank, script in enumerate(scripts)},
            envs={rank: dict[str, str]() for rank in range(len(scripts))},
            logs_specs=DefaultLogsSpecs(log_dir=str(tmp_path)),
        )
        for rank, worker in enumerate(made._worker_group.workers):
            worker.id, worker.global_rank = made._pcontext.pids()[rank], first + rank
        started.append(made)
        wait_until((tmp_path / "ready").exists, 30, "the worker runs")
        return made

    yield make
    for made in started:
        made._shutdown(signal.SIGKILL)


def exit_code(made: Agent) -> int:
    context: Any = made._pcontext
    return context.subprocess_handlers[0].proc.wait(10)


def test_workers_whose_peers_left_hang_and_are_not_waited_for(start: Callable[..., Agent]) -> None:
    made = start(HANGS, "", left=1)
    made._stop_workers(made._worker_group)
    assert exit_code(made) == -signal.SIGKILL


def test_a_folder_of_another_pods_worker_is_not_waited_for(start: Callable[..., Agent]) -> None:
    """Its process id may be the same; only global rank 0 writes."""
    made = start(HANGS, "begun.mkdir()", left=1, first=1)
    made._stop_workers(made._worker_group)
    assert exit_code(made) == -signal.SIGKILL


def test_a_checkpoint_is_waited_for_when_another_worker_of_the_node_ended(
    start: Callable[..., Agent], tmp_path: Path
) -> None:
    """torch ends the others then, and kills them after 30 s."""
    made = start("", "begun.mkdir()", others=("import sys; sys.exit(75)",))
    wait_until(lambda: len(made._running()) == 1, 30, "the second worker's end")
    threading.Timer(1, (tmp_path / "finish").touch).start()
    result = made._monitor_workers(made._worker_group)
    assert result.failures[1].exitcode == 75
    exit_code(made)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000010"]


def test_rounds_without_a_step_end_the_job_with_the_reason(judge: Agent, tmp_path: Path) -> None:
    reach(tmp_path, 40)
    judge._judge([failure(1, "first")])  # step 40 is new to this agent
    for _ in range(PATIENCE - 1):
        judge._judge([failure(1, "the driver is broken")])
    with pytest.raises(Stop, match=r"3 rounds in a row ended without a step beyond 40; .*the driver is broken") as end:
        judge._judge([failure(1, "the driver is broken")])
    assert end.value.code == 42


def test_a_stopped_worker_is_killed_after_a_while_and_not_before(judge: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = subprocess.Popen(["sleep", "60"])
    try:
        pids: Any = SimpleNamespace(pids=lambda: {0: worker.pid})
        judge._pcontext = pids
        now, stopped = time.monotonic(), True
        monkeypatch.setattr(agent.time, "monotonic", lambda: now)
        monkeypatch.setattr(agent, "process_state", lambda _: "T" if stopped else "S")
        judge._end_stopped()
        now, stopped = now + agent.STOPPED_SECONDS + 1, False  # a debugger that let go
        judge._end_stopped()
        stopped = True
        judge._end_stopped()
        assert worker.poll() is None, "its time began anew"
        now += agent.STOPPED_SECONDS + 1
        judge._end_stopped()
        assert worker.wait(60) == -signal.SIGKILL
    finally:
        worker.kill()
        worker.wait()
