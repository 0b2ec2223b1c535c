"""What `trainyard follow` says besides steps: events of the trainer, rounds by the record, ends of pods by the API."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cli.cluster import TrainingJob
from cli.follow import JobWatch
from cli.progress import Board
from tests.cli.test_follow import Api, job
from tests.cli.test_status import content, pod, seconds
from trainer import record


def said(*lines: str) -> list[str]:
    text = io.StringIO()
    with Board(Console(file=text, width=100)) as board:
        for line in lines:
            board.line("pod 0", line)
    return [line for line in text.getvalue().splitlines() if not line.startswith("step ")]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("event=round round=2 world_size=3 rank=1", []),
        ("event=done step=5", []),
        ("event=workers_ended codes=-9,75 reason='signal 9' step=240", []),
        ("event=checkpoint step=100 seconds=1.5", []),
        ("event=checkpoint_failed step=7 reason='no space'", ["checkpoint failed: step 7, reason no space"]),
        ("event=compile compile=false reason='too short'", ["compile: compile false, reason too short"]),
    ],
)
def test_an_event_is_told_unless_the_record_tells_it(line: str, expected: list[str]) -> None:
    assert said(line, line) == expected


def test_rounds_their_ends_and_checkpoints_are_told_once_and_by_the_record() -> None:
    lost = {"time": seconds("12:20:00"), "worker": "1", "cause": "round 3 ended: a process was lost (SIGKILL)"}
    gone = {"time": seconds("12:20:01"), "worker": "", "cause": "round 4 begins without worker 2"}
    steps = [
        content(world_size=3),
        content("12:22:00", round=4, world_size=2, checkpoint=100, incidents=[lost, gone]),
        content("12:23:00", round=4, world_size=2, checkpoint=150, incidents=[lost, gone]),
    ]
    assert said(*(record.line(each) for each in steps for _ in range(2))) == [
        "round 3 begins with 3 processes",
        "worker 1: round 3 ended: a process was lost (SIGKILL)",
        "round 4 begins without worker 2",
        "round 4 begins with 2 processes, resuming from step 100",
        "checkpoint of step 150 saved",
    ]


WARNINGS = [
    "/usr/lib/python3/site-packages/torch/x.py:12: UserWarning: this is slow",
    "  warnings.warn(",
    "[W1128 09:00:00.123456789 ProcessGroupGloo.cpp:760] Unable to resolve hostname",
    "[rank1]:[W1128 09:00:00.123456789 socket.cpp:200] The server socket is slow",
    "W1128 09:00:00.123456 7 torch/_dynamo/convert_frame.py:900] torch._dynamo hit config.recompile_limit",
]


def test_warnings_of_libraries_are_one_counted_line() -> None:
    assert said(*WARNINGS * 20, "RuntimeError: no memory") == [
        "pod 0: RuntimeError: no memory",
        "100 warnings of libraries; `trainyard logs` has the text",
    ]


def test_how_a_pod_ended_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.follow.POLL_SECONDS", 0.05)
    killed = pod(1, "Failed", {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-21T12:25:00Z"})
    pods = [[pod(0), pod(1)], [pod(0), killed], [pod(0), killed], [pod(0), pod(1, name="later")]]
    api: Any = Api([*(({"status": {}}, look) for look in pods), (job("Complete"), pods[-1])], [])
    told: list[str] = []
    board: Any = SimpleNamespace(look=lambda _: None, line=lambda *_: None, print=lambda text, style: told.append(text))
    JobWatch(TrainingJob(api, api, "n", "j")).follow(board)
    assert told == ["train-small-1-1-abcde: ended with 137: OOMKilled"]
