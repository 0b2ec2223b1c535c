"""`trainyard follow`: what a terminal and a log get of a training as it goes on, and what its end says."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from rich.console import Console
from urllib3.exceptions import ProtocolError

from cli.__main__ import main
from cli.cluster import TrainingJob
from cli.follow import Log, display, report
from cli.target import Target
from cli.training_status import TrainingStatus, summarize
from tests.cli.cluster import TARGET, Cluster, answer, job, pod
from tests.cli.test_status import content, seconds
from trainer import record


def a_look(pods: list[dict[str, Any]] | None = None, **changes: Any) -> TrainingStatus:
    """What is seen of a training whose record says this."""
    return summarize(job(), [pod(0)] if pods is None else pods, record.read(content(**changes)))


def said(*looks: TrainingStatus) -> list[str]:
    """The lines that a log gets."""
    log = Log(Console(file=(text := io.StringIO()), width=20))
    for each in looks:
        log.show(each, TARGET)
    return text.getvalue().splitlines()


def test_rounds_their_ends_and_checkpoints_are_told_once_and_by_the_record() -> None:
    lost = {"time": seconds("12:20:00"), "worker": "1", "cause": "round 3 ended: a process was lost (SIGKILL)"}
    gone = {"time": seconds("12:20:01"), "worker": "", "cause": "round 4 begins without worker 2"}
    later = {"round": 4, "world_size": 2, "resumed": 100, "incidents": [lost, gone]}
    looks = [
        a_look(world_size=3, validation_loss=8.5, bits_per_byte=3.25),
        *(a_look(checkpoint=c, **later) for c in (150, 200)),
    ]
    assert said(*(each for each in looks for _ in range(2))) == [
        "round 3 begins with 3 processes",
        "step 120/500  loss 3.210  validation 8.500 (3.250 bits per byte)  1,234 tokens/s  1:20 to go",
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
    assert said(*looks, looks[-1])[2:] == [
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
    monkeypatch.setattr("cli.follow.time", clock := Clock())
    return clock


def test_a_log_hears_within_15_s_what_a_silent_training_does(clock: Clock) -> None:
    log = Log(Console(file=(text := io.StringIO()), width=200))
    told: list[tuple[float, str]] = []
    waits = TrainingStatus("train-small-1", "Waiting", "waiting for a node: none has a GPU")
    compiles, evaluates = a_look(state="compiling", loss=None), a_look(state="training", loss=None)
    for lasts, found in (
        (20, waits),
        (20, summarize(job(), [pod(0)])),
        (40, compiles),
        (3, evaluates),
        (32, a_look()),
    ):
        for _ in range(lasts):
            before = len(text.getvalue())
            log.show(found, TARGET)
            told.extend((clock.now - 100, line) for line in text.getvalue()[before:].splitlines())
            clock.now += 1
    assert told == [
        (0, "Waiting for a node: none has a GPU"),
        (15, "… Waiting for a node: none has a GPU (15 s)"),
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
    log = Log(Console(file=(text := io.StringIO())))
    for step in range(1, 41):
        log.show(a_look(step=step, steps=40, times={"loss": clock.now}), TARGET)
        clock.now += 1
    steps = [line.split()[1] for line in text.getvalue().splitlines() if line.startswith("step ")]
    assert steps == ["1/40", "16/40", "31/40", "40/40"]


@pytest.mark.parametrize("width", [36, 80, 200])
def test_a_terminal_shows_all_of_a_training_in_place_of_what_was_there(width: int) -> None:
    console = Console(file=(text := io.StringIO()), width=width, height=50, force_terminal=True)
    figures = {"validation_loss": 8.5, "bits_per_byte": 3.25, "tokens_per_second": 1234567.8, "eta_seconds": 8000}
    with display(console) as show:
        show(TrainingStatus("j", "Waiting", "waiting for the Job controller"), TARGET)
        show(a_look(step=1200, steps=100_000, loss=7.1234, state="compiling", resumed=1200, **figures), TARGET)
    found = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", re.split(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*", text.getvalue())[-1])
    assert all(len(line.rstrip()) <= width for line in found.splitlines()), found
    assert "…" not in found, "nothing is cut"
    words = "step 1200/100000  loss 7.123  validation 8.500 (3.250 bits per byte)  1,234,568 tokens/s  2:13:20 to go"
    for part in (*words.split(), "━", "resumed from step 1200", "compiling the model;"):
        assert part in " ".join(found.split()), found


def silent_pod(**changes: Any) -> dict[str, Any]:
    lost = pod(1, conditions=[{"type": "Ready", "status": "False"}])
    lost["status"] |= changes
    return lost


class Looks(Cluster):
    """Each look takes the next Job, an error, or None; node-1 is in this condition since 65 s, or refused."""

    def __init__(self, *looks: Any, ready: str | int = "Unknown", pods: list[Any] | None = None) -> None:
        super().__init__(None, pods)
        self.looks, self.ready, self.asked = list(looks), ready, 0

    def read_node(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        if isinstance(self.ready, int):
            raise ApiException(status=self.ready)
        since = (datetime.now(UTC) - timedelta(seconds=65)).isoformat()
        condition = {"type": "Ready", "status": self.ready, "lastTransitionTime": since}
        return answer({"status": {"conditions": [condition]}})

    def read_namespaced_job(self, name: str, *_: Any, **__: Any) -> Any:
        if isinstance(look := self.looks.pop(0), Exception):
            raise look
        return answer(look and {**look, "metadata": {"name": name}})


DO = (
    "node node-1 has not answered for 1:05, and its pods are not replaced before it is known to be off. If it is, and "
    "no cloud deletes it: kubectl delete node node-1. To keep the Node, until it is back: kubectl taint nodes node-1 "
    "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
)


@pytest.mark.parametrize(("ready", "silent"), [("Unknown", True), ("False", False), (403, False), (404, False)])
def test_a_node_that_does_not_answer_is_named_with_what_to_do(ready: str | int, silent: bool) -> None:
    """A kubelet that reports itself unready answers; a Node that is gone needs nobody."""
    api: Any = Looks(ready=ready)
    pods = [
        pod(0),
        silent_pod(),
        pod(2, "Succeeded", {"exitCode": 0}),
        {**silent_pod(phase="Failed"), "spec": {"nodeName": "x"}},
    ]
    found = summarize(job(), pods, silent=TrainingJob(api, api, TARGET).silent_nodes(pods))
    assert (DO in said(found)) == silent
    assert api.asked == 1, "only where a pod runs that is not ready"
    assert (found.pods[1].state == "its node does not answer") == silent


@pytest.fixture
def followed(clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`trainyard follow` of a stack whose outputs name these Jobs, one after the other: exit code, lines and error."""

    def call(api: Any, *jobs: str) -> tuple[int, list[str], str]:
        named = list(jobs)
        targets = lambda *_: [Target("c", "n", named.pop(0) if named[1:] else named[0], None, {})]  # noqa: E731
        monkeypatch.setattr("cli.follow.chosen", targets)
        monkeypatch.setattr(TrainingJob, "of", lambda target: TrainingJob(api, api, target))
        code = main(["follow", "--stack", "gcp-c3"])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return call


RUNS, DONE, AWAY = job(), job([{"type": "Complete", "status": "True"}]), ProtocolError("refused")


def test_follow_goes_on_after_an_outage_and_with_the_job_that_another_up_makes_in_place_of_the_first(
    followed: Any,
) -> None:
    code, lines, _ = followed(Looks(RUNS, AWAY, None, None, DONE), "j", "j", "j2")
    assert code == 0
    assert "Gone (Job j: waiting for the one that `pulumi up` makes in its place)" in lines
    assert "Job j was replaced; following j2" in lines


def test_a_cluster_that_stays_away_and_a_job_that_never_was_or_never_comes_back_end_follow(
    followed: Any, clock: Clock
) -> None:
    assert followed(Looks(RUNS, *[AWAY] * 60), "j")[::2] == (1, "error: the cluster does not answer: refused\n")
    assert 60 < clock.now - 100 < 70
    clock.now = 100.0
    assert followed(Looks(None), "j")[::2] == (
        1,
        "error: Job n/j is gone; `trainyard resume` starts the training again\n",
    )
    code, _, error = followed(Looks(RUNS, *[None] * 200), "j")
    assert (code, error.startswith("error: Job n/j is gone")) == (1, True)
    assert 300 < clock.now - 100 < 310


def test_follow_says_once_which_node_is_silent_and_that_it_is_back(followed: Any) -> None:
    api = Looks(RUNS, RUNS, RUNS, DONE, pods=[silent_pod()])
    real = api.read_node

    def read_node(*given: Any, **options: Any) -> Any:
        api.ready = "Unknown" if api.asked < 2 else "True"
        return real(*given, **options)

    api.read_node = read_node
    told = [line for line in followed(api, "j")[1] if line.startswith("node ")]
    assert told == [DO, "node node-1 answers again, or its pods are replaced"]


DONE_RECORD = {
    "step": 200,
    "validation_loss": 5.512,
    "initial_validation_loss": 10.83,
    "exact_match": 83.96,
    "f1": 90.87,
    "sample": "The [light] of",
    "checkpoint": "/data/runs/r/checkpoints/step-00000200",
}
COMMANDS = {
    "sampleCommand": "kubectl exec x",
    "logsCommand": "kubectl logs x",
    "fetchCommand": "trainyard fetch x",
    "resumeCommand": "trainyard resume --stack s",
}


@pytest.mark.parametrize(
    ("status", "stack", "folder", "parts", "never"),
    [
        (
            TrainingStatus("j", "Complete", result=DONE_RECORD),
            "local",
            "/srv",
            "10.83 -> 5.51 (F1 90.9, exact match 84.0) in 200 steps|The [light] of|The model, for transformers:"
            "|/srv/runs/r/checkpoints/step-00000200/model|Next|local env|kubectl exec x|trainyard upload|make up"
            "|.venv/bin/trainyard doctor --stack gcp-c3\n",
            "fetch",
        ),
        (
            TrainingStatus("j", "Complete", result=DONE_RECORD | {"adapter_of": "/data/weights/q"}),
            "gcp-c3",
            None,
            "The adapter of /data/weights/q, for peft, on the shared volume:|/data/runs/r/checkpoints|kubectl exec x"
            "|fetch x|upload|pulumi up --stack gcp-c3",
            "local env",
        ),
        (
            TrainingStatus("j", "Failed", "loss is nan at step 3"),
            "local",
            None,
            "The training failed: loss is nan at step 3|local env|logs: kubectl logs x|trainyard resume --stack s",
            "Next",
        ),
        (
            TrainingStatus("j", "Stopped", "by `trainyard stop`"),
            "gcp-c3",
            None,
            "The training is stopped by `trainyard stop`|trainyard resume --stack s",
            "logs",
        ),
    ],
)
def test_the_end_says_how_it_went_and_which_commands_come_next(
    status: TrainingStatus, stack: str, folder: str | None, parts: str, never: str
) -> None:
    console = Console(file=(text := io.StringIO()), width=200)
    report(console, Target("c", "n", "j", folder, COMMANDS), status, stack, local=stack == "local")
    places = [text.getvalue().find(part) for part in parts.split("|")]
    assert -1 not in places, (places, text.getvalue())
    assert places == sorted(places), "as a person wants them"
    assert never not in text.getvalue()
