"""`trainyard follow`: what it says of a training as it goes on, and at its end."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cli.cluster import TrainingJob
from cli.follow import Board, report
from cli.progress import time_to_go
from cli.target import Target
from cli.training_status import TrainingStatus, summarize
from tests.cli.test_status import TARGET, content, job, pod, seconds
from trainer import record


def a_look(pods: list[dict[str, Any]] | None = None, **changes: Any) -> TrainingStatus:
    """What is seen of a training whose record says this."""
    return summarize(job(), [pod(0)] if pods is None else pods, record.read(content(**changes)))


def plain() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=200), text


def said(*looks: TrainingStatus) -> list[str]:
    """The lines that a log gets, but for steps."""
    console, text = plain()
    with Board(console) as board:
        for each in looks:
            board.show(each)
    return [line for line in text.getvalue().splitlines() if not line.startswith("step ")]


def test_a_step_becomes_one_line_with_loss_speed_and_time_to_go() -> None:
    console, text = plain()
    with Board(console) as board:
        board.show(a_look(validation_loss=8.5, bits_per_byte=3.25))
    assert (
        text.getvalue().splitlines()[-1]
        == "step 120/500  loss 3.210  validation 8.500 (3.250 bits/byte)  1,234 tokens/s  1:20 to go"
    )


def test_questions_and_their_end_show_f1() -> None:
    console, text = plain()
    with Board(console) as board:
        board.show(a_look(validation_loss=1.5, exact_match=83.96, f1=90.87))
    done = {"initial_validation_loss": 5.9, "validation_loss": 1.5, "step": 200, "exact_match": 83.96, "f1": 90.87}
    report(console, TARGET, TrainingStatus("j", "Complete", result=done), "gcp-c3", False)
    assert "loss 3.210  validation 1.500 (F1 90.9)  1,234 tokens/s" in text.getvalue()
    assert "Validation loss 5.90 -> 1.50, F1 90.9, exact match 84.0 in 200 steps" in text.getvalue()


def test_rounds_their_ends_and_checkpoints_are_told_once_and_by_the_record() -> None:
    lost = {"time": seconds("12:20:00"), "worker": "1", "cause": "round 3 ended: a process was lost (SIGKILL)"}
    gone = {"time": seconds("12:20:01"), "worker": "", "cause": "round 4 begins without worker 2"}
    looks = [
        a_look(world_size=3),
        a_look(round=4, world_size=2, resumed=100, checkpoint=150, incidents=[lost, gone]),
        a_look(round=4, world_size=2, resumed=100, checkpoint=200, incidents=[lost, gone]),
    ]
    assert said(*(each for each in looks for _ in range(2))) == [
        "round 3 begins with 3 processes",
        "worker 1: round 3 ended: a process was lost (SIGKILL)",
        "round 4 begins without worker 2",
        "round 4 begins with 2 processes, resuming from step 100",
        "checkpoint of step 150 saved",
        "checkpoint of step 200 saved",
    ]


def test_how_a_pod_ended_and_which_worker_waits_is_told_once() -> None:
    killed = pod(1, "Failed", {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-21T12:25:00Z"})
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}
    waits = pod(1, "Pending", name="later", conditions=[condition], containerStatuses=None)
    looks = [a_look([pod(0), pod(1)]), a_look([pod(0), killed]), a_look([pod(0), killed]), a_look([pod(0), waits])]
    assert said(*looks, looks[-1]) == [
        "round 3 begins with 2 processes",
        "train-small-1-1-abcde: ended with 137: OOMKilled",
        "1 worker waits for a node: 0/1 nodes: Insufficient cpu; lower workers.cpu or workers.count",
    ]


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("follow", "progress"):
        monkeypatch.setattr(f"cli.{module}.time", clock)
    return clock


def test_a_log_hears_within_15_s_what_a_silent_training_does(clock: Clock) -> None:
    console, text = plain()
    board = Board(console)
    told: list[tuple[float, str]] = []

    def pass_by(seconds: int, found: TrainingStatus) -> None:
        for _ in range(seconds):
            before = len(text.getvalue())
            board.show(found)
            told.extend((clock.now - 100, line) for line in text.getvalue()[before:].splitlines())
            clock.now += 1

    pass_by(20, TrainingStatus("j", "Waiting", "waiting for a node: none has a GPU"))
    pass_by(20, TrainingStatus("j", "Running"))
    pass_by(40, a_look(state="compiling", loss=None))
    pass_by(3, a_look(state="training", loss=None))
    pass_by(32, a_look())
    assert told == [
        (0, "waiting for a node: none has a GPU"),
        (15, "… waiting for a node: none has a GPU (15 s)"),
        (20, "the pods start Python and load the model"),
        (35, "… the pods start Python and load the model (15 s)"),
        (40, "round 3 begins with 2 processes"),
        (40, "compiling the model; the first time takes a minute or more"),
        (55, "… compiling the model; the first time takes a minute or more (15 s)"),
        (70, "… compiling the model; the first time takes a minute or more (30 s)"),
        (80, "the first evaluation and the first steps"),
        (83, "step 120/500  loss 3.210  1,234 tokens/s  1:20 to go"),
        (98, "… step 120/500 is the newest (15 s)"),
        (113, "… step 120/500 is the newest (30 s)"),
    ]


def test_a_log_gets_a_step_every_15_s_and_the_last(clock: Clock) -> None:
    console, text = plain()
    board = Board(console)
    for step in range(1, 41):
        board.show(a_look(step=step, steps=40, times={"loss": clock.now}))
        clock.now += 1
    steps = [line.split()[1] for line in text.getvalue().splitlines() if line.startswith("step ")]
    assert steps == ["1/40", "16/40", "31/40", "40/40"]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (80, "1:20"), (3725, "1:02:05")])
def test_time_to_go(seconds: float, text: str) -> None:
    assert time_to_go(seconds) == text


def test_the_end_of_a_log_is_what_was_written_since() -> None:
    asked: list[Any] = []

    def read_namespaced_pod_log(*_: Any, **options: Any) -> Any:
        asked.append({key: value for key, value in options.items() if not key.startswith("_")})
        return SimpleNamespace(data=record.line(content()).encode())

    api: Any = SimpleNamespace(read_namespaced_pod_log=read_namespaced_pod_log)
    for since in (None, 12):
        assert TrainingJob(api, api, Target("c", "n", "j", None, {})).records([pod(0)], since)
    assert asked == [{"tail_lines": 1000}, {"since_seconds": 12}]


DONE = {
    "step": 200,
    "validation_loss": 5.512,
    "initial_validation_loss": 10.83,
    "sample": "The [light] of",
    "checkpoint": "/data/runs/r/checkpoints/step-00000200",
}
COMMANDS = {"sampleCommand": "kubectl exec x", "logsCommand": "kubectl logs x", "fetchCommand": "trainyard fetch x"}


def ended(local: bool, stack: str, folder: str | None) -> str:
    console, text = plain()
    report(console, Target("c", "n", "j", folder, COMMANDS), TrainingStatus("j", "Complete", result=DONE), stack, local)
    return text.getvalue()


def in_order(text: str, *parts: str) -> bool:
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


def test_the_end_shows_loss_sample_model_and_the_next_commands_as_a_person_wants_them() -> None:
    shown = ended(True, "local", "/srv")
    model = "/srv/runs/r/checkpoints/step-00000200/model"
    assert in_order(shown, "10.83 -> 5.51 in 200 steps", "The [light] of", model, "Next", "kubectl exec x")
    # First the shell's environment, then sample, own text and cloud.
    assert in_order(shown, "local env", "kubectl exec x", "trainyard upload", "make up", "doctor --stack gcp-c3")
    assert shown.splitlines()[-1].strip() == ".venv/bin/trainyard doctor --stack gcp-c3"


def test_the_end_on_a_cloud_brings_the_model_here_and_needs_no_local_environment() -> None:
    shown = ended(False, "gcp-c3", None)
    assert in_order(
        shown, "/data/runs/r/checkpoints", "kubectl exec x", "fetch x", "upload", "pulumi up --stack gcp-c3"
    )
    assert "local env" not in shown


def test_a_failure_shows_its_reason_and_how_to_try_again() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    commands = {"logsCommand": "kubectl logs", "resumeCommand": "trainyard resume --stack s"}
    failed = TrainingStatus("j", "Failed", "loss is nan at step 3")
    report(console, Target("c", "n", "job", None, commands), failed, "s", True)
    shown = console.export_text()
    assert in_order(
        shown, "The training failed: loss is nan at step 3", "local env", "kubectl logs", "trainyard resume --stack s"
    )
