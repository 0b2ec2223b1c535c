"""`trainyard status` and `logs`: what they say of a Job, its pods and its record."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli import CommandError
from cli.__main__ import main
from cli.cluster import TrainingJob
from cli.logs import choose
from cli.status import screen
from cli.target import Target, node_price
from cli.training_status import look, status_file, summarize
from tests.cli.cluster import TARGET, Cluster, answer, ended_job, job, marked_job, pod
from trainer import record
from trainer.contract import EXITS, QUEUED, STOPPED
from trainer.record import Record

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


def failed(code: int, at: str = "12:25:00", index: int = 1, message: str = "", **status: Any) -> dict[str, Any]:
    words = {"message": json.dumps({"message": message})} if message else {}
    return pod(index, "Failed", {"exitCode": code, "finishedAt": f"2026-11-21T{at}Z", **words}, **status)


def without_node(index: int, message: str = "0/1 nodes: Insufficient cpu") -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return {**pod(index, "Pending", conditions=[condition], containerStatuses=None), "spec": {}}


def seconds(clock: str) -> float:
    return datetime.fromisoformat(f"2026-11-21T{clock}Z").timestamp()


def content(clock: str = "12:21:01", **changes: Any) -> dict[str, Any]:
    """What rank 0 writes at a log step."""
    told = {"state": "training", "step": 120, "steps": 500, "loss": 3.21, "tokens_per_second": 1234, "eta_seconds": 80}
    told |= {"world_size": 2, "round": 3, "began": seconds("12:20:30"), "members": {"0": 1, "1": 0}, "incidents": []}
    return told | {"updated": seconds(clock)} | changes


def told(clock: str = "12:21:01", **changes: Any) -> Record:
    found = record.read(content(clock, **changes))
    assert found is not None
    return found


def shown(found: Any) -> str:
    text = io.StringIO()
    Console(file=text, width=400).print(screen(found, TARGET))
    return text.getvalue()


def seen(*given: Any, **options: Any) -> str:
    """The screen at NOW of a Job, its pods and its record."""
    return shown(summarize(*given, **options, now=NOW))


def test_a_running_training_on_one_screen() -> None:
    incident = {"time": seconds("12:20:00"), "worker": "1", "cause": "round 2 ended: a process was lost (SIGKILL)"}
    found = told(checkpoint=100, validation_loss=3.5, bits_per_byte=1.2, incidents=[incident])
    late = pod(0, name="train-small-1-0-later")
    late["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = "2026-11-21T12:25:00Z"
    text = seen(job(), [pod(0), pod(1), late, pod(2, "Pending")], found)
    for expected in [
        "Running for 30:00   trainyard/train-small-1 on trainyard-local",
        "3 of 3 run, 1 failed",
        "round 3  step 120/500  loss 3.210  validation 3.500 (1.200 bits per byte)  1,234 tokens/s  1:20 to go",
        "newest checkpoint: step 100",
        "10:00  worker 1  round 2 ended: a process was lost (SIGKILL)",
        "starting the pods",
    ]:
        assert expected in text, text
    rows = {line.split()[1]: line.split() for line in text.splitlines() if line.startswith(("0 ", "1 "))}
    assert rows["train-small-1-1-abcde"] == ["1", "train-small-1-1-abcde", "node-1", "Running", "10:00", "0"]
    assert rows["train-small-1-0-abcde"][-1] == "1"
    assert rows["train-small-1-0-later"][-1] == "5:00", "it came after the round began"


STEP_AT = dict.fromkeys(("step", "loss", "tokens_per_second"), NOW.timestamp() - 100)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (STEP_AT, "as of    1:40 ago\n"),
        ({}, "as of    the time of the checkpoint it resumed from"),
        (STEP_AT | {"validation_loss": NOW.timestamp() - 700}, "as of    1:40 ago, validation 11:40 ago"),
    ],
)
def test_figures_of_a_record_are_as_old_as_they_are(times: dict[str, float], said: str) -> None:
    """A write that changed other keys, as the next round's first, repeats them."""
    further = {"validation_loss": 3.5} if "validation_loss" in times else {}
    known = told("12:29:55", state="compiling", eta_seconds=None, times=times, **further)
    assert said in seen(job(), [pod(0)], known)


LEFT, KILLED = failed(143, "12:25:02"), failed(137, "12:25:09", 2)
KILLED["metadata"]["deletionTimestamp"] = "2026-11-21T12:25:01Z"
EVICTED = failed(137, conditions=[{"type": "DisruptionTarget", "status": "True"}])
LOST, NAN, OLDER = (
    failed(75, message="a peer is lost"),
    failed(42, "12:24:00", 0, "the loss is NaN"),
    failed(1, "12:23:00", 2, "no memory"),
)
PULL = pod(1, "Pending")
PULL["status"]["containerStatuses"] = [
    {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "403 Forbidden"}}}
]
OF_TWO = job()
OF_TWO["spec"]["template"] = {"spec": {"containers": [{"args": ["--nnodes", "2:1000"]}]}}
FOUND_DONE = json.dumps({"step": 500, "validation_loss": 2.5, "checkpoint": "/data/runs/x/checkpoints/step-00000500"})
STOPPED_AT = "2026-11-21T12:10:00+00:00"
EARLIER = told("12:10:00", started=seconds("11:00:00"), began=seconds("12:00:00"), earlier_seconds=1800)


@pytest.mark.parametrize(
    ("job", "pods", "known", "said"),
    [
        # What has ended took so long; "Complete for 10:00" would say since when.
        (ended_job("Complete"), [], None, "Complete, took 10:00   "),
        (ended_job("Failed", message="exit code 42"), [], None, "Failed (exit code 42) after 10:00   "),
        (ended_job("Suspended", message="Job suspended"), [], None, "Suspended (Job suspended) for 30:00   "),
        # The launcher's words before Kubernetes': those of a pod that failed for good, else the latest.
        (ended_job("Failed"), [LOST, NAN, OLDER], None, "Failed (the loss is NaN)"),
        (ended_job("Failed"), [OLDER, LOST], None, "Failed (a peer is lost)"),
        (ended_job("Failed", reason="DeadlineExceeded"), [LEFT], None, "Failed (the time of job.maxHours is up)"),
        # The Job counts the siblings too that it ends after an exit 42.
        (
            {**ended_job("Failed"), "status": ended_job("Failed")["status"] | {"failed": 3}},
            [NAN, LEFT, KILLED],
            None,
            "0 of 3 run, 1 failed, 2 ended for it",
        ),
        # Up to Kubernetes 1.35 a Job's status lacks a failure while the pod waits in back-off and another is ready.
        (job(failed=0), [pod(0), failed(1), EVICTED, LOST], None, "1 of 3 run, 1 failed\n"),
        (job(failed=4), [pod(0), failed(1)], None, "4 failed"),
        (
            job(active=1),
            [without_node(0)],
            None,
            "Waiting for a node: 0/1 nodes: Insufficient cpu; lower workers.cpu or",
        ),
        (job(), [pod(0)], told(state="compiling", step=None), "no step yet: compiling the model; the first time takes"),
        # The Job counts a pod without a node as active.
        (job(active=3), [pod(1), without_node(0)], None, "Running (1 worker waits for a node: 0/1 nodes: Insufficient"),
        (job(active=3), [pod(1), without_node(0)], None, "1 of 3 run, 1 failed\n"),
        (job(), [pod(0), PULL], None, "Running (ImagePullBackOff: 403 Forbidden)"),
        (
            OF_TWO,
            [pod(0), without_node(1, "none")],
            None,
            "Waiting: holds 1 node for 2.00 USD/h and waits for another; 1 wo",
        ),
        (
            marked_job(QUEUED, f"{STOPPED_AT}/2026-11-21T13:10:00+00:00"),
            [],
            None,
            f"Queued (since {STOPPED_AT}: it held nodes and waited in vain for the rest; it tries again when another "
            "training ends, or from 2026-11-21T13:10:00+00:00 on) after 10:00",
        ),
        # Kubernetes 1.36 removes a suspended Job's startTime; up to 1.35 it begins again at each resume.
        (marked_job(STOPPED, STOPPED_AT, startTime=None), [], EARLIER, " after 40:00   "),
        (marked_job(STOPPED, STOPPED_AT, startTime="2026-11-21T12:09:00Z"), [], EARLIER, " after 40:00   "),
        (marked_job(STOPPED, STOPPED_AT, startTime=None), [], EARLIER, "cost     about $4.00 so far"),
        (job(startTime="2026-11-21T12:19:00Z"), [pod(0)], told(earlier_seconds=7200), "Running for 2:00:31"),
        # Its launcher wrote no record, but its last words.
        (
            job(),
            [pod(0, "Succeeded", {"exitCode": 0, "finishedAt": "2026-11-21T12:25:00Z", "message": FOUND_DONE})],
            None,
            "step 500/?  validation 2.500\nas of    5:00 ago",
        ),
    ],
)
def test_what_status_says_of_a_training(job: Any, pods: list[Any], known: Record | None, said: str) -> None:
    assert said in (text := seen(job, pods, known, price=2.0)), text


def test_causes_of_restarts_each_once_in_order() -> None:
    """A drained node, the round that ended with it, a pod that failed by itself, one that the kernel killed."""
    evicted = {"reason": "EvictionByEvictionAPI", "message": "evicting", "lastTransitionTime": "2026-11-21T12:22:00Z"}
    evicted |= {"type": "DisruptionTarget", "status": "True"}
    drained = failed(143, "12:22:30", 2, "asked to end", conditions=[evicted])
    ended = {"time": seconds("12:22:01"), "worker": "0", "cause": "round 1 ended: left together"}
    found = summarize(job(), [failed(1, "12:26:00", 0), failed(137), drained], told(incidents=[ended]))
    assert [(incident.who[-7:], incident.cause) for incident in found.incidents] == [
        ("2-abcde", "EvictionByEvictionAPI: evicting"),
        ("orker 0", "round 1 ended: left together"),
        ("2-abcde", "ended with 143: asked to end"),
        ("1-abcde", f"ended with 137: {EXITS[137][1]}"),
        ("0-abcde", f"ended with 1: {EXITS[1][1]}"),
    ]


DRIVER = "failed to create containerd task: nvidia-container-cli: initialization error"
REFUSED = "Pod was rejected: Allocate failed due to no healthy devices present"


@pytest.mark.parametrize(
    ("ended", "status", "cause"),
    [
        ({"exitCode": 137, "reason": "OOMKilled"}, {}, "ended with 137: OOMKilled"),
        ({"exitCode": 137, "reason": "Error"}, {}, f"ended with 137: {EXITS[137][1]}"),
        ({"exitCode": 3, "reason": "Error", "message": "not JSON"}, {}, "ended with 3: an error of its own"),
        ({"exitCode": 128, "reason": "StartError", "message": DRIVER}, {}, f"ended with 128: StartError: {DRIVER}"),
        (
            None,
            {"reason": "UnexpectedAdmissionError", "message": REFUSED, "containerStatuses": None},
            f"UnexpectedAdmissionError: {REFUSED}",
        ),
    ],
)
def test_why_a_pod_ended_is_the_nodes_reason_where_the_launcher_has_said_nothing(
    ended: dict[str, Any] | None, status: dict[str, Any], cause: str
) -> None:
    refused = pod(1, "Failed", ended and {"finishedAt": "2026-11-21T12:25:00Z", **ended}, **status)
    assert [incident.cause for incident in summarize(job(), [pod(0), refused]).incidents] == [cause]


def test_the_record_is_the_newest_of_status_json_and_the_logs(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    target = Target("c", "n", "train-a", str(tmp_path), {}, "/data/runs/x")
    assert status_file(target) is None
    folder.mkdir(parents=True)
    api: Any = Trainings([])
    for clock, step in (("12:25:00", 130), ("12:15:00", 120)):
        (folder / "status.json").write_text(json.dumps(content(clock, step=130)))
        assert look(TrainingJob(api, api, target)).figures["step"] == step


def test_a_run_that_was_removed_is_not_just_complete(tmp_path: Path) -> None:
    api: Any = Trainings([])
    job = TrainingJob(api, api, Target("c", "n", "train-done", str(tmp_path), {}, "/data/runs/x"))
    assert look(job).headline == "Complete (run removed)"
    (tmp_path / "runs" / "x").mkdir(parents=True)
    assert look(job).headline == "Complete"


def test_logs_are_those_of_rank_zero_which_writes_the_record() -> None:
    pods = [pod(0), pod(1)]
    first, second = (each["metadata"]["name"] for each in pods)
    assert choose(pods, None, lambda _: {first: told("12:21:01"), second: told("12:22:01")}) == second
    assert choose(pods, 0, lambda _: {}) == first
    newer = pod(0, name="newer")
    newer["metadata"]["creationTimestamp"] = "2026-11-21T12:29:00Z"
    assert {choose([newer, *pods], wanted, lambda _: {}) for wanted in (0, None)} == {"newer"}
    with pytest.raises(CommandError, match="no pod 7 has started; there are: 0, 1"):
        choose(pods, 7, lambda _: {})
    with pytest.raises(CommandError, match="no pod has started yet"):
        choose([], None, lambda _: {})


class Trainings(Cluster):
    """Those of a stack: `a` runs, `done` has ended, `gone` was deleted, and others wait."""

    def __init__(self, nodes: Any) -> None:
        super().__init__()
        self.nodes = nodes

    def read_namespaced_job(self, name: str, *_: Any, **__: Any) -> Any:
        return answer({"train-gone": None, "train-done": ended_job("Complete")}.get(name, job()))

    def list_namespaced_pod(self, *_: Any, label_selector: str, **__: Any) -> Any:
        return answer({"items": [pod(0), pod(1)] if label_selector.endswith("train-a") else [without_node(2)]})

    def logged(self, pod: str) -> str:
        return f"event=round round=3\n{record.line(content())}\nanother line\n" if "-0-" in pod else ""

    def list_node(self, *_: Any, **__: Any) -> Any:
        return super().list_node() if self.nodes is None else answer({"items": self.nodes})


def node(name: str, **labels: str) -> dict[str, Any]:
    labels = {key.replace("__", "/"): value for key, value in labels.items()}
    return {"metadata": {"name": name, "labels": {"node.kubernetes.io/instance-type": "g4dn.xlarge", **labels}}}


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What `trainyard status` prints of a stack with these trainings."""

    def call(names: str, *arguments: str, nodes: Any = ()) -> str:
        targets = [Target("c", "n", f"train-{name}", None, {}, training=name) for name in names.split()]
        api: Any = Trainings(nodes)
        monkeypatch.setattr("cli.status.chosen", lambda *_: targets)
        monkeypatch.setattr("cli.status.node_price", lambda _: 2.0)
        monkeypatch.setattr(TrainingJob, "of", lambda target: TrainingJob(api, api, target))
        assert main(["status", "--stack", "s", *arguments]) == 0
        return capsys.readouterr().out

    return call


def test_all_trainings_of_a_stack_are_a_table(several: Any) -> None:
    nodes = [node("node-0"), node("node-1", **{"eks.amazonaws.com__capacityType": "SPOT"})]
    said = several("a b gone", nodes=nodes)
    rows = [line.split() for line in said.splitlines()]
    assert rows[2][:5] == ["a", "Running", "120/500", "3.210", "2/3"]
    assert "a: on 1 g4dn.xlarge, 1 g4dn.xlarge spot" in said
    assert any(word.startswith("$") for word in rows[2]), "cost so far"
    assert rows[3][:3] == ["b", "Waiting", "0/3"]
    assert rows[4][:2] == ["gone", "Gone"]
    assert "b: Waiting for a node: 0/1 nodes: Insufficient cpu; lower workers.cpu or workers.count" in said
    assert "gone: Gone (Job n/train-gone is gone; " in said


def test_status_as_json(several: Any) -> None:
    for names in ("a", "a b"):
        found = json.loads(several(names, "--json", nodes=None))
        assert [each["training"] for each in found] == names.split()
        assert (found[0]["figures"]["step"], found[0]["told"]["step"]) == (120, "2026-11-21T12:21:01+00:00")
        assert (found[0]["round"], found[0]["pods"][1]["node"]) == (3, "node-1")
        assert found[0]["cost"] > 1000
        assert found[0]["nodes"] == {}, "nobody may read nodes here"


def test_the_price_of_a_node_is_that_of_the_stacks_list() -> None:
    price = node_price("aws-g4dn")
    assert price is not None
    assert 0.1 < price < 5
    assert node_price("local") is None
    assert node_price("no-such-stack") is None
