"""The progress line and the end of a training, as a person sees them."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from rich.console import Console

from cli.cluster import TrainingJob, why_waiting
from cli.follow import JobWatch, Outcome, outcome, report
from cli.progress import Bar, Board, parse_logfmt, time_to_go
from cli.target import Target
from trainer import record
from trainer.record import Record


def record_line(step: int = 20, steps: int = 200, **changes: Any) -> str:
    """The record's line at a log step."""
    told = {"state": "training", "step": step, "steps": steps, "loss": 7.1234, "tokens_per_second": 1234.5}
    told |= {"eta_seconds": 80, "world_size": 2, "updated": 1000.0 + step, "times": {"loss": 1000.0 + step}}
    return record.line(told | changes)


STEP = record_line()


def plain() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=200), text


def pod(exit_code: int | None = None, message: str = "", **status: Any) -> dict[str, Any]:
    if exit_code is not None:
        status["containerStatuses"] = [{"state": {"terminated": {"exitCode": exit_code, "message": message}}}]
    return {"metadata": {"name": "train-0"}, "status": status}


def job(kind: str, message: str = "") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": "True", "message": message}]}}


def test_a_step_becomes_one_line_with_loss_speed_and_time_to_go() -> None:
    console, text = plain()
    with Board(console) as board:
        board.line("train-0", record_line(validation_loss=8.5, bits_per_byte=3.25))
    assert (
        text.getvalue() == "step 20/200  loss 7.123  validation 8.500 (3.250 bits/byte)  1,234 tokens/s  1:20 to go\n"
    )


def test_questions_and_their_end_show_f1() -> None:
    console, text = plain()
    with Board(console) as board:
        board.line("train-0", record_line(validation_loss=1.5, exact_match=83.96, f1=90.87))
    done = {"initial_validation_loss": 5.9, "validation_loss": 1.5, "step": 200, "exact_match": 83.96, "f1": 90.87}
    report(console, Target("c", "n", "j", None, {}), Outcome(succeeded=True, result=done), "gcp-c3", False)
    assert "loss 7.123  validation 1.500 (F1 90.9)  1,234 tokens/s" in text.getvalue()
    assert "Validation loss 5.90 -> 1.50, F1 90.9, exact match 84.0 in 200 steps" in text.getvalue()


def test_events_and_errors_are_shown_raw_and_noise_is_not() -> None:
    console, text = plain()
    board = Board(console, raw=True)
    board.line("train-1", "event=round round=1 world_size=2 rank=0")
    board.line("train-1", "some library says hello")
    board.line("train-1", "RuntimeError: no memory")
    assert text.getvalue().splitlines() == [
        "train-1: event=round round=1 world_size=2 rank=0",
        "train-1: RuntimeError: no memory",
    ]


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("cli.progress.time", clock)
    return clock


def test_a_log_hears_within_15_s_what_a_silent_training_does(clock: Clock) -> None:
    console, text = plain()
    board = Board(console)
    told: list[tuple[float, str]] = []

    def pass_by(seconds: int, waiting: str = "") -> None:
        for _ in range(seconds):
            before = len(text.getvalue())
            board.look(waiting)
            told.extend((clock.now - 100, line) for line in text.getvalue()[before:].splitlines())
            clock.now += 1

    pass_by(20, "waiting for a node: none has a GPU")
    pass_by(20)
    board.line("pod 0", "event=compile compile=true reason=gain")
    pass_by(40)
    board.line("pod 0", "event=compiled seconds=38")
    pass_by(3)
    board.line("pod 0", STEP)
    pass_by(32)
    assert told == [
        (0, "waiting for a node: none has a GPU"),
        (15, "… waiting for a node: none has a GPU (15 s)"),
        (20, "the pods start Python and load the model"),
        (35, "… the pods start Python and load the model (15 s)"),
        (40, "compiling the model; the first time takes a minute or more"),
        (55, "… compiling the model; the first time takes a minute or more (15 s)"),
        (70, "… compiling the model; the first time takes a minute or more (30 s)"),
        (80, "the first evaluation and the first steps"),
        (98, "… step 20/200 is the newest (15 s)"),
        (113, "… step 20/200 is the newest (30 s)"),
    ]


def test_a_log_gets_a_step_every_15_s_and_the_last(clock: Clock) -> None:
    console, text = plain()
    board = Board(console)
    for step in range(1, 41):
        board.line("pod 0", record_line(step, 40))
        board.look("")
        clock.now += 1
    assert [line.split()[1] for line in text.getvalue().splitlines()] == ["1/40", "16/40", "31/40", "40/40"]


def test_a_line_of_a_log_is_not_wrapped() -> None:
    text = io.StringIO()
    Board(Console(file=text, width=80)).line("pod 0", f"event=advice text={'x' * 200}")
    assert len(text.getvalue().splitlines()) == 1


def test_a_terminal_shows_brackets_of_what_kubernetes_says() -> None:
    text = io.StringIO()
    with Board(Console(file=text, force_terminal=True, width=120)) as board:
        board.look("ErrImagePull: not in [/etc/certs.d]")
    assert "not in [/etc/certs.d]" in text.getvalue()


def test_a_transfer_says_every_15_s_in_a_log_how_far_it_is(clock: Clock) -> None:
    console, text = plain()
    with Bar(console) as bar:
        bar.expect(2, 80_000_000)
        for _ in range(40):
            bar.advance(2_000_000)
            clock.now += 1
    told = [line.split(" (")[0] for line in text.getvalue().splitlines() if line.startswith("…")]
    assert told == ["… 2 files: 32.0 MB of 80.0 MB", "… 2 files: 62.0 MB of 80.0 MB"]


@pytest.mark.parametrize("line", ["", "plain words", 'unclosed "quote', "a=1 b"])
def test_lines_of_others_are_not_mistaken_for_metrics(line: str) -> None:
    assert parse_logfmt(line) == {}


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (80, "1:20"), (3725, "1:02:05")])
def test_time_to_go(seconds: float, text: str) -> None:
    assert time_to_go(seconds) == text


def test_the_job_runs_until_a_condition_says_otherwise() -> None:
    assert outcome({"status": {}}, []) is None
    assert outcome({"status": {"conditions": [{"type": "Complete", "status": "False"}]}}, []) is None


def test_a_complete_job_carries_the_record_of_the_pod_that_finished() -> None:
    record = {"step": 200, "validation_loss": 5.5}
    pods = [pod(143, "terminated"), pod(0, json.dumps(record))]
    assert outcome(job("Complete"), pods) == Outcome(succeeded=True, result=record)


def test_a_failed_job_says_why_in_the_trainers_words_before_kubernetes() -> None:
    cause = json.dumps({"state": "failed", "message": "the loss is NaN at step 12"})
    assert outcome(job("Failed", "PodFailurePolicy"), [pod(42, cause)]) == Outcome(
        succeeded=False, message="the loss is NaN at step 12", result={}
    )
    failed = outcome(job("Failed", "Job was active longer than deadline"), [])
    assert failed is not None
    assert failed.message == "Job was active longer than deadline"


def test_what_no_retry_helps_is_the_reason_before_what_was_tried_again() -> None:
    """A pod that asked for a restart stays in the list."""

    def ended(code: int, message: str, at: str) -> dict[str, Any]:
        terminated = {"exitCode": code, "message": json.dumps({"message": message}), "finishedAt": at}
        return {"status": {"containerStatuses": [{"state": {"terminated": terminated}}]}}

    lost, older = ended(75, "a peer is lost", "2026-11-22T10:00:00Z"), ended(1, "no memory", "2026-11-22T09:00:00Z")
    nan = ended(42, "the loss is NaN", "2026-11-22T09:30:00Z")
    for pods, reason in (([lost, nan, older], "the loss is NaN"), ([older, lost], "a peer is lost")):
        found = outcome(job("Failed"), pods)
        assert found is not None
        assert found.message == reason


class Api:
    """Stands in for both API groups: each look takes the next (Job, pods), each request for a log the next log."""

    def __init__(self, looks: list[tuple[dict[str, Any], list[dict[str, Any]]]], logs: list[list[bytes] | Exception]):
        self.looks, self.logs = looks, logs

    def read_namespaced_job(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(data=json.dumps(self.looks[0][0]))

    def list_namespaced_pod(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(data=json.dumps({"items": self.looks.pop(0)[1]}))

    def read_namespaced_pod_log(self, *_: Any, **__: Any) -> Any:
        log = self.logs.pop(0) if self.logs else []
        if isinstance(log, Exception):
            raise log
        return SimpleNamespace(stream=lambda **_: log)


def test_a_log_stream_that_breaks_is_taken_up_again_without_a_line_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.follow.POLL_SECONDS", 0.1)
    first, second, third = (b"2026-01-01T00:00:0%d.000000000Z line %d\n" % (number, number) for number in (1, 2, 3))
    running, ended = pod(phase="Running"), pod(exit_code=0, message='{"step": 3}', phase="Succeeded")
    looks = [({"status": {}}, [running])] * 3 + [(job("Complete"), [ended])]
    api: Any = Api(looks, [[first, second], [first, second], [first, second, third]])
    seen: list[str] = []
    observer: Any = SimpleNamespace(
        record=Record(), look=lambda waiting: None, line=lambda pod, line: seen.append(line)
    )
    assert JobWatch(TrainingJob(api, api, "n", "j")).follow(observer) == Outcome(succeeded=True, result={"step": 3})
    assert seen == ["line 1", "line 2", "line 3"]


@pytest.mark.parametrize("ends_at", [1, 3], ids=["with the Job", "before the Job"])
def test_a_log_of_an_ended_pod_that_cannot_be_read_is_read_later(ends_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.follow.POLL_SECONDS", 0.1)
    ended = pod(exit_code=0, message='{"step": 3}', phase="Succeeded")
    looks = [({"status": {}}, [ended])] * (ends_at - 1) + [(job("Complete"), [ended])]
    api: Any = Api(looks, [ApiException(status=502), [b"2026-01-01T00:00:01.000000000Z line 1\n"]])
    seen: list[str] = []
    observer: Any = SimpleNamespace(
        record=Record(), look=lambda waiting: None, line=lambda pod, line: seen.append(line)
    )
    JobWatch(TrainingJob(api, api, "n", "j")).follow(observer)
    assert seen == ["line 1"]
    assert not api.logs


def test_waiting_says_for_what() -> None:
    image = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    assert why_waiting([pod(containerStatuses=[image])]) == "ImagePullBackOff: not found"
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}
    said = "waiting for a node: 0/1 nodes: Insufficient cpu; lower workers.cpu or workers.count"
    assert why_waiting([pod(conditions=[condition])]) == said
    assert why_waiting([]) == "waiting for the Job controller"
    assert why_waiting([], "exceeded quota: gpus") == "the cluster refuses the pods: exceeded quota: gpus"


def test_a_worker_that_waits_while_others_train_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By no log line: it has no log."""
    monkeypatch.setattr("cli.follow.POLL_SECONDS", 0.05)
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}
    pods = [pod(phase="Running"), {**pod(phase="Pending", conditions=[condition]), "metadata": {"name": "train-1"}}]
    answers = [({"status": {}}, pods)] * 3 + [(job("Complete"), [pod(exit_code=0, phase="Succeeded")])]
    api: Any = Api(answers, [])
    told: list[str] = []
    observer: Any = SimpleNamespace(
        record=Record(), look=lambda _: None, line=lambda pod, line: None, print=lambda text, style: told.append(text)
    )
    JobWatch(TrainingJob(api, api, "n", "j")).follow(observer)
    assert told == ["1 worker waits for a node: 0/1 nodes: Insufficient cpu; lower workers.cpu or workers.count"]


def test_a_quota_or_a_policy_that_refuses_the_pods_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pod exists that could say it: the Job controller gives the reason in an event of the Job."""
    monkeypatch.setattr("cli.follow.POLL_SECONDS", 0.05)

    class Refusing(Api):
        def list_namespaced_event(self, *_: Any, field_selector: str, **__: Any) -> Any:
            assert field_selector == "involvedObject.kind=Job,involvedObject.name=j,reason=FailedCreate"
            told = [("2026-01-01T00:00:02Z", "unable to validate\n against any SCC"), ("2026-01-01T00:00:01Z", "old")]
            events = [{"lastTimestamp": when, "message": message} for when, message in told]
            return SimpleNamespace(data=json.dumps({"items": events}))

    api: Any = Refusing([({"status": {}}, []), (job("Complete"), [pod(exit_code=0, phase="Succeeded")])], [])
    waited: list[str] = []
    observer: Any = SimpleNamespace(record=Record(), look=waited.append, line=lambda pod, line: None)
    JobWatch(TrainingJob(api, api, "n", "j")).follow(observer)
    assert waited[0] == "the cluster refuses the pods: unable to validate against any SCC"


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
    report(console, Target("c", "n", "j", folder, COMMANDS), Outcome(succeeded=True, result=DONE), stack, local)
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


def test_a_model_that_this_machine_does_not_see_is_fetched_and_make_up_is_for_the_stack_local_alone() -> None:
    """On kind, and for a cloud's stack with its state in .local/."""
    on_kind = ended(True, "local", None)
    assert in_order(on_kind, "local env", "kubectl exec x", "fetch x", "upload", "make up", "doctor")
    cloud = ended(True, "gcp-c3", None)
    assert in_order(cloud, "local env", "kubectl exec x", "fetch x", "upload", "pulumi up --stack gcp-c3")
    assert "make up" not in cloud
    assert "doctor" not in cloud


def test_a_failure_shows_its_reason_and_how_to_try_again() -> None:
    console = Console(file=io.StringIO(), width=100, record=True)
    commands = {"logsCommand": "kubectl logs", "resumeCommand": "trainyard resume --stack s"}
    report(
        console,
        Target("c", "n", "job", None, commands),
        Outcome(succeeded=False, message="loss is nan at step 3"),
        "s",
        True,
    )
    shown = console.export_text()
    assert in_order(
        shown, "The training failed: loss is nan at step 3", "local env", "kubectl logs", "trainyard resume --stack s"
    )
