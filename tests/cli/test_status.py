"""`trainyard status` and `logs`, from API objects that a real cluster returned (shortened)."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from rich.console import Console

from cli import CommandError
from cli.__main__ import main
from cli.cluster import INDEX, TrainingJob
from cli.logs import choose
from cli.status import screen
from cli.target import Target, node_price
from cli.training_status import look, status_file, summarize
from trainer import record
from trainer.contract import EXITS, QUEUED, STOPPED
from trainer.record import Record

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
TARGET = Target("trainyard-local", "trainyard", "train-small-1", None, {})


def job(conditions: list[dict[str, Any]] | None = None, **status: Any) -> dict[str, Any]:
    told = {"startTime": "2026-11-21T12:00:00Z", "active": 2, "failed": 1, **status, "conditions": conditions or []}
    return {"metadata": {"name": "train-small-1"}, "spec": {"parallelism": 3}, "status": told}


def pod(
    index: int, phase: str = "Running", ended: dict[str, Any] | None = None, name: str = "", **status: Any
) -> dict[str, Any]:
    state = {"terminated": ended} if ended else {"running": {"startedAt": "2026-11-21T12:20:00Z"}}
    if phase == "Pending":
        state = {"waiting": {"reason": "ContainerCreating"}}
    return {
        "metadata": {
            "name": name or f"train-small-1-{index}-abcde",
            "labels": {INDEX: str(index)},
            "creationTimestamp": "2026-11-21T12:19:00Z",
        },
        "spec": {"nodeName": f"node-{index}"},
        "status": {
            "phase": phase,
            "startTime": "2026-11-21T12:19:30Z",
            "containerStatuses": [{"state": state}],
            **status,
        },
    }


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


STEP = record.line(content())


def shown(found: Any) -> str:
    text = io.StringIO()
    Console(file=text, width=160).print(screen(found, TARGET, NOW))
    return text.getvalue()


def test_a_running_training_on_one_screen() -> None:
    incident = {"time": seconds("12:20:00"), "worker": "1", "cause": "round 2 ended: a process was lost (SIGKILL)"}
    found = told(checkpoint=100, validation_loss=3.5, bits_per_byte=1.2, incidents=[incident])
    late = pod(0, name="train-small-1-0-later")
    late["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = "2026-11-21T12:25:00Z"
    text = shown(summarize(job(), [pod(0), pod(1), late, pod(2, "Pending")], found))
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


def test_causes_of_restarts_each_once_in_order() -> None:
    """A drained node, the round that ended with it, a pod that failed by itself, one that the kernel killed."""
    drained = pod(
        2,
        "Failed",
        {"exitCode": 143, "finishedAt": "2026-11-21T12:22:30Z", "message": json.dumps({"message": "asked to end"})},
        conditions=[
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
                "lastTransitionTime": "2026-11-21T12:22:00Z",
            }
        ],
    )
    killed = pod(1, "Failed", {"exitCode": 137, "finishedAt": "2026-11-21T12:25:00Z", "reason": "OOMKilled"})
    crashed = pod(0, "Failed", {"exitCode": 1, "finishedAt": "2026-11-21T12:26:00Z"})
    ended = {"time": seconds("12:22:01"), "worker": "0", "cause": "round 1 ended: left together"}
    found = summarize(job(), [pod(0), killed, drained, crashed], told(incidents=[ended]))
    assert [(incident.who, incident.cause) for incident in found.incidents] == [
        ("train-small-1-2-abcde", "EvictionByEvictionAPI: Eviction API: evicting"),
        ("worker 0", "round 1 ended: left together"),
        ("train-small-1-2-abcde", "ended with 143: asked to end"),
        ("train-small-1-1-abcde", "ended with 137: OOMKilled"),
        ("train-small-1-0-abcde", f"ended with 1: {EXITS[1][1]}"),
    ]
    assert "what happened" in shown(found)


DRIVER = "failed to create containerd task: nvidia-container-cli: initialization error"
REFUSED = "Pod was rejected: Allocate failed due to no healthy devices present"


@pytest.mark.parametrize(
    ("ended", "status", "cause"),
    [
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
    failed = pod(1, "Failed", ended and {"finishedAt": "2026-11-21T12:25:00Z", **ended}, **status)
    assert [incident.cause for incident in summarize(job(), [pod(0), failed]).incidents] == [cause]


def test_a_worker_whose_image_does_not_come_is_told_though_others_run() -> None:
    pull = pod(1, "Pending")
    waits = {"reason": "ImagePullBackOff", "message": "403 Forbidden"}
    pull["status"]["containerStatuses"][0]["state"] = {"waiting": waits}
    assert "1 of 3 run, 1 failed; ImagePullBackOff: 403 Forbidden" in shown(summarize(job(), [pod(0), pull]))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"type": "Complete"}, "Complete, took 10:00   "),
        (
            {"type": "Failed", "reason": "PodFailurePolicy", "message": "exit code 42"},
            "Failed (exit code 42) after 10:00   ",
        ),
        ({"type": "Suspended", "message": "Job suspended"}, "Suspended (Job suspended) for 30:00   "),
    ],
)
def test_the_end_is_the_jobs_own_word(condition: dict[str, Any], expected: str) -> None:
    """What has ended took so long; "Complete for 10:00" would say since when."""
    condition |= {"status": "True", "lastTransitionTime": "2026-11-21T12:10:00Z"}
    assert shown(summarize(job([condition]), [])).startswith(expected)


def test_nodes_that_are_held_in_vain_are_told_with_their_price_and_then_that_they_were_let_go() -> None:
    """One of two workers has a node: its pod runs, and nothing trains."""
    late = pod(1, "Pending", conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}])
    late["spec"] = {}
    of_two = job()
    of_two["spec"]["template"] = {"spec": {"containers": [{"args": ["--nnodes", "2:1000"]}]}}
    both = [pod(0), late]
    found = summarize(of_two, both, price=0.526)
    assert (found.condition, found.why) == ("Waiting", "holds 1 node for 0.53 USD/h and waits for another")
    assert found.waiting == "1 worker waits for a node: 0/1 nodes"
    assert summarize(of_two, both).why == "holds 1 node and waits for another"
    assert summarize(job(), both).condition == "Running", "one is enough"
    of_two["spec"]["suspend"] = True
    of_two["metadata"]["annotations"] = {QUEUED: "2026-11-21T12:10:00+00:00/2026-11-21T13:10:00+00:00"}
    found = summarize(of_two, [])
    assert (found.condition, found.has_ended) == ("Queued", False)
    assert found.why.startswith("since 2026-11-21T12:10:00+00:00: it held nodes")
    assert "or from 2026-11-21T13:10:00+00:00 on" in found.why
    assert found.ended is not None, "what it costs does not grow meanwhile"


STOPPED_AT = "2026-11-21T12:10:00+00:00"


@pytest.mark.parametrize(("started", "lasted"), [(None, "40:00"), ("2026-11-21T12:09:00Z", "40:00")])
def test_a_stopped_training_keeps_start_and_duration(started: str | None, lasted: str) -> None:
    """Kubernetes 1.36 removes a suspended Job's startTime; up to 1.35 it begins again at each resume."""
    stopped = job([{"type": "Suspended", "status": "True"}], startTime=started)
    stopped["metadata"]["annotations"] = {STOPPED: STOPPED_AT}
    known = told("12:10:00", started=seconds("11:00:00"), began=seconds("12:00:00"), earlier_seconds=1800)
    found = summarize(stopped, [], known, price=2.0)
    assert found.started == datetime(2026, 11, 21, 11, 0, tzinfo=UTC)
    assert f" after {lasted}   " in shown(found)
    assert found.cost(NOW) == pytest.approx(2.0 * 3 * 40 / 60)


def test_a_resumed_training_does_not_count_from_zero() -> None:
    known = told("12:21:00", started=seconds("09:00:00"), began=seconds("12:20:00"), earlier_seconds=7200)
    assert "Running for 2:01:00" in shown(summarize(job(startTime="2026-11-21T12:19:00Z"), [pod(0)], known))


def test_what_is_ended_for_anothers_failure_has_not_failed() -> None:
    """The Job counts the siblings too that it ends after an exit 42."""
    failed = job([{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}], failed=3)
    left = pod(1, "Failed", {"exitCode": 143, "finishedAt": "2026-11-21T12:25:02Z"})
    killed = pod(2, "Failed", {"exitCode": 137, "finishedAt": "2026-11-21T12:25:09Z"})
    killed["metadata"]["deletionTimestamp"] = "2026-11-21T12:25:01Z"
    found = summarize(failed, [pod(0, "Failed", {"exitCode": 42, "finishedAt": "2026-11-21T12:25:00Z"}), left, killed])
    assert (found.failed, found.ended_for_it) == (1, 2)
    assert "0 of 3 run, 1 failed, 2 ended for it" in shown(found)


def test_a_failure_counts_before_the_job_knows_of_it() -> None:
    """Up to Kubernetes 1.35 a Job's status lacks it while the pod waits in back-off and another is ready."""
    crashed = pod(1, "Failed", {"exitCode": 1, "finishedAt": "2026-11-21T12:25:00Z"})
    evicted = pod(2, "Failed", {"exitCode": 137}, conditions=[{"type": "DisruptionTarget", "status": "True"}])
    asked = pod(2, "Failed", {"exitCode": 75, "finishedAt": "2026-11-21T12:25:00Z"})
    assert summarize(job(failed=0), [pod(0), crashed, evicted, asked]).failed == 1
    assert summarize(job(failed=4), [pod(0), crashed]).failed == 4, "pods that are gone"


def ended(code: int, message: str, at: str = "") -> dict[str, Any]:
    finished = {"finishedAt": at} if at else {}
    return pod(0, "Failed", {"exitCode": code, "message": json.dumps({"message": message}), **finished})


def test_a_failed_training_says_why_in_the_launchers_words_before_kubernetes() -> None:
    lost, older = ended(75, "a peer is lost", "2026-11-22T10:00:00Z"), ended(1, "no memory", "2026-11-22T09:00:00Z")
    nan = ended(42, "the loss is NaN", "2026-11-22T09:30:00Z")
    failed = job([{"type": "Failed", "status": "True", "message": "backoff limit"}])
    for pods, why in (
        ([lost, nan, older], "the loss is NaN"),
        ([older, lost], "a peer is lost"),
        ([], "backoff limit"),
    ):
        assert (found := summarize(failed, pods)).why == why
        assert (found.condition, found.has_ended) == ("Failed", True)
    late = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "longer than deadline"}
    assert summarize(job([late]), [ended(143, "asked to leave")]).why == "the time of job.maxHours is up"


def test_before_the_first_pod_it_says_what_is_waited_for() -> None:
    unschedulable = pod(0, "Pending")
    unschedulable["status"] |= {
        "containerStatuses": None,
        "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}],
    }
    text = shown(summarize(job(active=1), [unschedulable]))
    assert "Waiting for a node: 0/1 nodes: Insufficient cpu; lower workers.cpu or workers.count" in text
    assert "no step yet" in text
    # The Job counts a pod without a node as active.
    beside = shown(summarize(job(active=3), [pod(1), pod(2), unschedulable]))
    assert "2 of 3 run, 1 failed; 1 worker waits for a node: 0/1 nodes: Insufficient cpu; lower" in beside


def test_the_record_is_the_newest_of_status_json_and_the_logs(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    target = Target("c", "n", "train-a", str(tmp_path), {}, "/data/runs/x")
    assert status_file(target) is None
    api: Any = Api([])
    for clock, step in (("12:25:00", 130), ("12:15:00", 120)):
        (folder / "status.json").write_text(json.dumps(content(clock, step=130)))
        assert look(TrainingJob(api, api, target)).figures["step"] == step


def test_a_run_that_was_removed_is_not_just_complete(tmp_path: Path) -> None:
    target = Target("c", "n", "j", str(tmp_path), {}, "/data/runs/x")
    ended = job([{"type": "Complete", "status": "True", "lastTransitionTime": "2026-11-21T12:10:00Z"}])
    silent: Any = SimpleNamespace(
        target=target, read=lambda: (ended, []), records=lambda *_: {}, refusal=str, silent_nodes=lambda _: {}
    )
    assert shown(look(silent)).startswith("Complete (run removed), took 10:00")
    (tmp_path / "runs" / "x").mkdir(parents=True)
    assert shown(look(silent)).startswith("Complete, took 10:00")


def test_a_job_that_found_its_run_done_shows_the_end() -> None:
    """Its launcher wrote no record, but its last words."""
    words = json.dumps({"step": 500, "validation_loss": 2.5, "checkpoint": "/data/runs/x/checkpoints/step-00000500"})
    ended = pod(0, "Succeeded", {"exitCode": 0, "finishedAt": "2026-11-21T12:25:00Z", "message": words})
    silent: Any = SimpleNamespace(
        target=TARGET, read=lambda: (job(), [ended]), records=lambda *_: {}, silent_nodes=lambda _: {}
    )
    assert "step 500/?  validation 2.500" in (text := shown(look(silent)))
    assert "as of    5:00 ago" in text


def test_logs_are_those_of_rank_zero_which_writes_the_record() -> None:
    pods = [pod(0), pod(1)]
    first, second = (each["metadata"]["name"] for each in pods)
    assert choose(pods, None, lambda _: {first: told("12:21:01"), second: told("12:22:01")}) == second
    assert choose(pods, 0, lambda _: {}) == first
    newer = pod(0, name="train-small-1-0-newer")
    newer["metadata"]["creationTimestamp"] = "2026-11-21T12:29:00Z"
    assert (
        choose([newer, *pods], 0, lambda _: {}) == choose([newer, *pods], None, lambda _: {}) == "train-small-1-0-newer"
    )
    with pytest.raises(CommandError, match="no pod 7 has started; there are: 0, 1"):
        choose(pods, 7, lambda _: {})
    with pytest.raises(CommandError, match="no pod has started yet"):
        choose([], None, lambda _: {})


class Api:
    """The API server's answers about two trainings and their nodes."""

    def __init__(self, nodes: Any) -> None:
        self.nodes = nodes

    def read_namespaced_job(self, name: str, *_: Any, **__: Any) -> Any:
        if name == "train-gone":
            raise ApiException(status=404, reason="Not Found")
        return SimpleNamespace(data=json.dumps(job() if name == "train-a" else job(active=0)))

    def list_namespaced_pod(self, *_: Any, label_selector: str, **__: Any) -> Any:
        waiting = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient cpu"}
        pods = [pod(0), pod(1)] if label_selector.endswith("train-a") else [pod(2, "Pending", conditions=[waiting])]
        pods[-1]["status"]["containerStatuses"] = pods[-1]["status"]["containerStatuses"] if pods[1:] else None
        return SimpleNamespace(data=json.dumps({"items": pods}))

    def read_namespaced_pod_log(self, name: str, *_: Any, **__: Any) -> Any:
        text = f"event=round round=3\n{STEP}\nanother line\n" if "-0-" in name else ""
        return SimpleNamespace(data=text.encode())

    def list_node(self, *_: Any, **__: Any) -> Any:
        if self.nodes is None:
            raise ApiException(status=403, reason="Forbidden")
        return SimpleNamespace(data=json.dumps({"items": self.nodes}))

    def read_node(self, *_: Any, **__: Any) -> Any:
        raise ApiException(status=403, reason="Forbidden")


def node(name: str, **labels: str) -> dict[str, Any]:
    labels = {key.replace("__", "/"): value for key, value in labels.items()}
    return {"metadata": {"name": name, "labels": {"node.kubernetes.io/instance-type": "g4dn.xlarge", **labels}}}


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`trainyard status` of a stack with these trainings: exit code, output and error."""

    def call(names: str, *arguments: str, nodes: Any = ()) -> tuple[int, str, str]:
        targets = [Target("c", "n", f"train-{name}", None, {}, training=name) for name in names.split()]
        api: Any = Api(nodes)
        monkeypatch.setattr("cli.status.chosen", lambda *_: targets)
        monkeypatch.setattr("cli.status.node_price", lambda _: 2.0)
        monkeypatch.setattr(TrainingJob, "of", lambda target: TrainingJob(api, api, target))
        capsys.readouterr()
        code = main(["status", "--stack", "s", *arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def test_all_trainings_of_a_stack_are_a_table(several: Any) -> None:
    nodes = [node("node-0"), node("node-1", **{"eks.amazonaws.com__capacityType": "SPOT"})]
    code, said, _ = several("a b gone", nodes=nodes)
    assert code == 0
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
        code, said, _ = several(names, "--json", nodes=None)
        found = json.loads(said)
        assert code == 0
        assert [each["training"] for each in found] == names.split()
        assert found[0]["figures"]["step"] == 120
        assert found[0]["told"]["step"] == "2026-11-21T12:21:01+00:00"
        assert found[0]["pods"][1]["node"] == "node-1"
        assert found[0]["nodes"] == {}, "nobody may read nodes here"


def test_the_price_of_a_node_is_that_of_the_stacks_list() -> None:
    price = node_price("aws-g4dn")
    assert price is not None
    assert 0.1 < price < 5
    assert node_price("local") is None
    assert node_price("no-such-stack") is None
