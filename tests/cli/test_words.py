"""What the trainer logs, in a person's words."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cli.cluster import INDEX
from cli.follow import JobWatch
from cli.progress import Board, parse_logfmt
from cli.words import SENTENCES, left, sentence
from infra.stackfiles import ROOT
from tests.cli.test_status import content
from trainer import record
from trainer.record import Record


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("event=round round=2 world_size=3 rank=1", ""),
        ("event=done step=5", ""),
        (
            "event=workers_ended codes=-9,75 reason='signal 9' step=240",
            "worker 2: a process was lost (SIGKILL) after step 240",
        ),
        (
            "event=workers_ended codes=75 reason='a peer is lost' step=7",
            "worker 2: begins again after step 7: a peer is lost",
        ),
        ("event=workers_ended codes=x", "worker 2: ended: x"),
        (
            "event=new_round after=2 lost_members=1 reason='1 worker left the round'",
            "worker 2: a new round: 1 worker left the round",
        ),
        ("event=new_round after=2 lost_members=0 reason=''", ""),
        ("event=resume step=230 checkpoint=/data/runs/r/checkpoints/step-00000230", "resuming from step 230"),
        ("event=checkpoint step=100 seconds=1.5", "checkpoint of step 100 saved"),
        ("event=compile compile=false reason='too short'", "does not compile the model (too short)"),
        ("event=step_skipped step=7", "step 7 is left out: ?"),
        ("event=packed split=train windows=12", "packed: split train, windows 12"),
    ],
)
def test_an_event_is_a_sentence(line: str, said: str) -> None:
    assert sentence("pod 2", parse_logfmt(line)) == said


def test_every_sentence_is_of_an_event_that_the_trainer_logs() -> None:
    text = "".join(path.read_text() for path in (ROOT / "trainer").rglob("*.py"))
    assert [event for event in SENTENCES if f'"{event}"' not in text and f"event={event}" not in text] == []


def test_a_round_is_told_once_and_by_the_record() -> None:
    text = io.StringIO()
    board = Board(Console(file=text, width=100))
    for number in range(3):
        board.line(f"pod {number}", f"event=round round=1 world_size=3 rank={number}")
    for _ in range(2):
        board.line("pod 0", record.line(content(round=4, world_size=3)))
    board.line("pod 1", "event=workers_ended codes=-9 step=240")
    board.line("pod 0", "event=resume step=230")
    assert [line for line in text.getvalue().splitlines() if not line.startswith("step ")] == [
        "round 4 begins with 3 processes",
        "worker 1: a process was lost (SIGKILL) after step 240",
        "resuming from step 230",
    ]


WARNINGS = [
    "/usr/lib/python3/site-packages/torch/x.py:12: UserWarning: this is slow",
    "  warnings.warn(",
    "[W1128 09:00:00.123456789 ProcessGroupGloo.cpp:760] Unable to resolve hostname",
    "[rank1]:[W1128 09:00:00.123456789 socket.cpp:200] The server socket is slow",
    "W1128 09:00:00.123456 7 torch/_dynamo/convert_frame.py:900] torch._dynamo hit config.recompile_limit",
]


def test_warnings_of_libraries_are_one_counted_line() -> None:
    text = io.StringIO()
    with Board(Console(file=text, width=100)) as board:
        for line in WARNINGS * 20:
            board.line("pod 0", line)
        board.line("pod 0", "RuntimeError: no memory")
    assert text.getvalue().splitlines() == [
        "pod 0: RuntimeError: no memory",
        "100 warnings of libraries; `trainyard logs` has the text",
    ]


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        (75, "a peer is lost", ""),
        (143, "", "worker 1 was asked to leave, and has left"),
        (137, "OOMKilled", "worker 1 was lost (OOMKilled)"),
        (137, "Error", "worker 1 was lost (SIGKILL)"),
        (42, "the loss is NaN", "worker 1 has failed: the loss is NaN"),
        (1, "", "worker 1 has failed: exit code 1"),
    ],
)
def test_why_a_pod_has_ended(code: int, reason: str, said: str) -> None:
    assert left("worker 1", code, reason) == said


def test_a_worker_whose_log_ends_without_a_word_is_told_once() -> None:
    def pod(number: int, name: str, ended: dict[str, Any] | None = None) -> dict[str, Any]:
        state = {"terminated": ended} if ended else {"running": {}}
        metadata = {"name": name, "labels": {INDEX: str(number)}}
        phase = "Failed" if ended else "Running"
        return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": [{"state": state}]}}

    told: list[str] = []
    member = Record(members={"0": 0})
    board: Any = SimpleNamespace(record=member, print=lambda text, style: told.append(text))
    watch = JobWatch(SimpleNamespace())  # pyrefly: ignore[bad-argument-type]
    looks = [
        [pod(0, "a"), pod(1, "b")],
        [pod(0, "a"), pod(1, "b", {"exitCode": 137, "reason": "OOMKilled"})],
        [pod(0, "a"), pod(1, "b", {"exitCode": 137, "reason": "OOMKilled"}), pod(1, "c")],
        [pod(1, "c")],
        [],
    ]
    for look in [each for each in looks for _ in range(2)]:
        watch._tell_lost(board, look)
    assert told == [
        "worker 1 was lost (OOMKilled)",
        "the pod of worker 0 is gone",
        "the pod of worker 1 is gone; it took part in no round",
    ]


@pytest.mark.parametrize(("per_step", "said"), [("1", "1 micro-batch of size 8"), ("3", "3 micro-batches of size 8")])
def test_how_often_a_process_computes_in_a_step(per_step: str, said: str) -> None:
    fields = {"event": "batch", "per_step": per_step, "micro_batch": "8"}
    assert sentence("pod 0", fields) == f"in a step each process computes {said}"
