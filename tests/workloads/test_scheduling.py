"""What waits for a node is said in the scheduler's words, with what to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from review.recording import record
from workloads import scheduling

#: Messages of kube-scheduler 1.36 for one pod, and what each must advise.
MESSAGES = [
    ("0/1 nodes are available: 1 Insufficient cpu.", "lower workers.cpu or workers.count"),
    ("0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient memory.", "workers.cpu"),
    ("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", "workers.nodeSelector"),
    ("0/2 nodes are available: 2 node(s) didn't match pod affinity rules.", "storage.className"),
    ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "storage.kind"),
]
PREEMPTION = " no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found."


def pending(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Pending", "conditions": [condition]}}


@pytest.mark.parametrize(("message", "advice"), MESSAGES)
def test_a_pod_without_a_node_shows_the_schedulers_message_and_what_to_do(message: str, advice: str) -> None:
    for text in (message, message + PREEMPTION):
        said = scheduling.waiting([pending(text), {"metadata": {}, "spec": {}, "status": {"phase": "Running"}}])
        assert said.startswith(f"1 worker waits for a node: {message.rstrip('.')}")
        assert advice in said.partition("; ")[2]
        assert "preemption" not in said


def test_an_unknown_message_is_shown_and_a_leaving_pod_is_not() -> None:
    assert scheduling.waiting([pending("of its own")] * 2) == "2 workers wait for a node: of its own"
    leaving = {**pending("x"), "metadata": {"name": "p", "deletionTimestamp": "2026-11-25T08:00:00Z"}}
    assert not scheduling.waiting([leaving])


@pytest.mark.parametrize(
    ("placed", "wanted", "condition", "warns"),
    [
        (2, 3, None, True),
        (3, 3, None, False),
        (0, 3, ("Suspended", "True"), False),
        (0, 3, ("Suspended", "False"), True),  # stopped once, and resumed; or a queue has admitted it
        (0, 3, ("FailureTarget", "True"), False),
    ],
)
def test_up_ends_with_what_waits_after_some_patience(
    placed: int, wanted: int, condition: tuple[str, str] | None, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [{"spec": {"nodeName": "n"}, "metadata": {}, "status": {}}] * placed + [pending(MESSAGES[0][0])] * (
        wanted - placed
    )
    told = [SimpleNamespace(type=condition[0], status=condition[1])] if condition else None
    job = SimpleNamespace(
        spec=SimpleNamespace(parallelism=wanted, suspend=False), status=SimpleNamespace(conditions=told)
    )
    batch = SimpleNamespace(read_namespaced_job=lambda *_, **__: job)
    core = SimpleNamespace(list_namespaced_pod=lambda *_, **__: SimpleNamespace(items=pods))
    api = SimpleNamespace(sanitize_for_serialization=lambda pod: pod)
    monkeypatch.setattr("kubernetes.client.BatchV1Api", lambda _: batch)
    monkeypatch.setattr("kubernetes.client.CoreV1Api", lambda _: core)
    monkeypatch.setattr(scheduling, "api_client", lambda *_: api)
    monkeypatch.setattr(scheduling, "PATIENCE", 0.1)
    assert ("Insufficient cpu" in scheduling._look("f", "c", "n", "j")) is warns


@pytest.mark.usefixtures("as_pulumi")
@pytest.mark.parametrize("text", ["1 worker waits for a node", ""])
def test_an_up_looks_at_the_job_that_it_made_and_warns_of_what_waits(
    text: str, local_kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked: list[tuple[str, ...]] = []

    def look(*at: str) -> str:
        looked.append(at)
        return text

    monkeypatch.setattr(scheduling, "_look", look)
    job = record("local").one("Job", "training").inputs["metadata"]
    assert looked == [(str(local_kubeconfig), "trainyard-local", job["namespace"], job["name"])]
    warned = [line for line in caplog.messages if "a node" in line]
    assert warned == ([f"{text}; the training goes on with the others, if workers.min allows"] if text else [])
    record("local", known=False)
    assert len(looked) == 1, "a preview has made none"


def test_a_cluster_that_does_not_answer_ends_no_up(tmp_path: Any) -> None:
    assert scheduling._look(str(tmp_path / "absent"), "c", "n", "j") == ""
