"""Nodes that do not answer, Jobs that are replaced, rounds and figures of another time: what status and follow say."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from rich.console import Console

from cli import CommandError
from cli.__main__ import main
from cli.cluster import TrainingJob
from cli.follow import Board, report, watch
from cli.status import screen
from cli.target import Target
from cli.training_status import TrainingStatus, summarize
from tests.cli.test_status import NOW, TARGET, job, pod
from trainer import record


def shown(found: Any) -> str:
    text = io.StringIO()
    Console(file=text, width=160).print(screen(found, TARGET, NOW))
    return " ".join(text.getvalue().split())


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"updated": 5, "times": {"step": 100, "loss": 100, "tokens_per_second": 100}}, "as of 1:40 ago"),
        ({"updated": 5, "times": {}}, "as of the time of the checkpoint it resumed from"),
        (
            {"updated": 5, "times": {"step": 100, "loss": 100, "tokens_per_second": 100, "validation_loss": 700}},
            "as of 1:40 ago, validation 11:40 ago",
        ),
    ],
)
def test_figures_of_a_record_are_as_old_as_they_are(status: dict[str, Any], said: str) -> None:
    """A write that changed other keys, as the next round's first, repeats them."""

    def moment(ago: Any) -> Any:
        return {key: moment(each) for key, each in ago.items()} if isinstance(ago, dict) else NOW.timestamp() - ago

    figures = {"step": 120, "steps": 500, "loss": 3.21, "tokens_per_second": 900.0, "state": "compiling"}
    further = {"validation_loss": 3.5} if "validation_loss" in status.get("times", {}) else {}
    found = record.read(figures | further | {key: moment(ago) for key, ago in status.items()})
    assert said in shown(summarize(job(), [pod(0)], found))


def silent_pod(**changes: Any) -> dict[str, Any]:
    lost = pod(1, conditions=[{"type": "Ready", "status": "False"}])
    lost["metadata"] |= {"deletionTimestamp": (NOW - timedelta(minutes=4)).isoformat()}
    lost["status"] |= changes
    return lost


class Nodes:
    """Stands in for the API: Node objects by name, or the status of the refusal."""

    def __init__(self, ready: str | int, since: str = "2026-11-21T12:25:00Z") -> None:
        self.ready, self.since, self.asked = ready, since, 0

    def read_node(self, name: str, **_: Any) -> Any:
        self.asked += 1
        if isinstance(self.ready, int):
            raise ApiException(status=self.ready)
        conditions = [{"type": "Ready", "status": self.ready, "lastTransitionTime": self.since}]
        return SimpleNamespace(data=json.dumps({"status": {"conditions": conditions}}))


DO = (
    "node node-1 has not answered for {}, and its pods are not replaced before it is known to be off. If it is, and no "
    "cloud deletes it: kubectl delete node node-1. To keep the Node, until it is back: kubectl taint nodes node-1 "
    "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
)


@pytest.mark.parametrize(
    ("ready", "lasted"),
    [("Unknown", "5:00"), (403, "4:00"), ("False", None), (404, None)],
    ids=str,
)
def test_status_names_the_node_that_does_not_answer(ready: str | int, lasted: str | None) -> None:
    """A kubelet that reports itself unready answers; a Node that is gone needs nobody."""
    api: Any = Nodes(ready)
    pods = [pod(0), silent_pod()]
    silent = TrainingJob(api, api, Target("c", "n", "j", None, {})).silent_nodes(pods)
    found = summarize(job(), pods, silent=silent)
    assert (DO.format(lasted) in shown(found)) == (lasted is not None)
    assert ("its node does not answer" in shown(found)) == (lasted is not None)


def test_only_nodes_of_doubtful_pods_are_read() -> None:
    api: Any = Nodes("Unknown")
    well = [pod(0), pod(1, "Pending"), pod(2, "Succeeded", {"exitCode": 0}), silent_pod(phase="Failed")]
    assert TrainingJob(api, api, Target("c", "n", "j", None, {})).silent_nodes(well) == {}
    assert api.asked == 0


class Api(Nodes):
    """Each look takes the next Job, or none; the namespace's newest Job has the name `there`."""

    def __init__(self, looks: list[Any], there: str = "", pods: list[dict[str, Any]] | None = None) -> None:
        super().__init__("Unknown", (datetime.now(UTC) - timedelta(seconds=65)).isoformat())
        self.looks, self.there, self.pods = looks, there, pods or []
        self.read: list[str] = []

    def read_namespaced_job(self, name: str, *_: Any, **__: Any) -> Any:
        self.read.append(name)
        look = self.looks.pop(0)
        if look is None:
            raise ApiException(status=404)
        return SimpleNamespace(data=json.dumps(look))

    def list_namespaced_pod(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(data=json.dumps({"items": self.pods}))

    def list_namespaced_event(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(data=json.dumps({"items": []}))

    def list_namespaced_job(self, *_: Any, label_selector: str, **__: Any) -> Any:
        kind = "app.kubernetes.io/name=trainyard,app.kubernetes.io/component=trainer"
        assert label_selector == f"{kind},!trainyard/training", "not those of named trainings beside it"
        made = [{"name": self.there, "creationTimestamp": "2026-11-21T12:00:00Z"}] if self.there else []
        old = {"name": "old", "creationTimestamp": "2026-11-21T13:00:00Z", "deletionTimestamp": "2026-11-21T13:01:00Z"}
        return SimpleNamespace(data=json.dumps({"items": [{"metadata": each} for each in (*made, old)]}))

    def read_namespaced_pod_log(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(data=b"")


RUNS, DONE = job(), job([{"type": "Complete", "status": "True"}])


def test_a_job_in_anothers_place_has_not_the_run_of_the_other() -> None:
    api: Any = Api([], there="new")
    new = TrainingJob(api, api, Target("c", "n", "old", "/volume", {}, "/data/runs/of-the-old")).successor()
    assert new is not None
    assert (new.name, new.target.run_directory) == ("new", None), "its record would be shown as the new one's"


def followed(api: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    """What the user is told, and how it ended."""
    monkeypatch.setattr("cli.follow.POLL_SECONDS", 0.01)
    text = io.StringIO()
    try:
        end = watch(TrainingJob(api, api, Target("c", "n", "j", None, {})), Board(Console(file=text))).condition
    except CommandError as error:
        end = str(error)
    return text.getvalue().splitlines(), end


def test_the_command_follows_the_job_that_takes_the_others_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api: Any = Api([RUNS, None, DONE], "j2")
    monkeypatch.setattr("cli.follow.POLL_SECONDS", 0.01)
    monkeypatch.setattr("cli.follow.chosen", lambda *_: [TARGET])
    monkeypatch.setattr("cli.follow.TrainingJob.of", lambda *_: TrainingJob(api, api, Target("c", "n", "j", None, {})))
    assert main(["follow", "--stack", "gcp-c3"]) == 0
    assert "Job j was replaced; following j2" in capsys.readouterr().out


def test_a_job_that_never_was_or_never_comes_back_ends_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert followed(Api([None]), monkeypatch)[1].startswith("Job n/j is gone")
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr("cli.follow.time", clock)
    monkeypatch.setattr("cli.follow.SUCCESSOR_SECONDS", 0.05)
    told, end = followed(Api([RUNS, *[None] * 100]), monkeypatch)
    assert end.startswith("Job n/j is gone")
    assert "Job j is gone; waiting for the one that `pulumi up` makes in its place" in told


def test_follow_says_once_which_node_is_silent_and_that_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    api: Any = Api([RUNS, RUNS, RUNS, DONE], pods=[silent_pod()])
    real = api.read_node

    def read_node(name: str, **given: Any) -> Any:
        api.ready = "Unknown" if api.asked < 2 else "True"
        return real(name, **given)

    api.read_node = read_node
    told = [text for text in followed(api, monkeypatch)[0] if text.startswith("node ")]
    assert told == [DO.format("1:05"), "node node-1 answers again, or its pods are replaced"]


@pytest.mark.parametrize(
    ("record", "title"),
    [
        ({"checkpoint": "/data/r"}, "The model, for transformers, on the shared volume:"),
        (
            {"checkpoint": "/data/r", "adapter_of": "/data/weights/q"},
            "The adapter of /data/weights/q, for peft, on the",
        ),
    ],
)
def test_the_end_calls_an_adapter_an_adapter(record: dict[str, Any], title: str) -> None:
    text = io.StringIO()
    ended = TrainingStatus("j", "Complete", result=record)
    report(Console(file=text, width=200), Target("c", "n", "j", None, {}), ended, "s", False)
    assert title in text.getvalue()
