"""`trainyard stop` and `resume`: what they say and change, by how the training has ended; e2e has the real ones."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from cli import CommandError, lifecycle, target
from cli.cluster import TrainingJob, end_of
from cli.target import Target
from trainer.contract import QUEUED, STOPPED

AT = "2026-11-25T08:00:00+00:00"


class Cluster:
    """Both API groups: a Job, its pods, and what they log; a suspended Job's pods are gone after `polls` looks."""

    def __init__(self, job: dict[str, Any] | None, pods: list[dict[str, Any]], log: str = "", polls: int = 2):
        self.job, self.pods, self.log, self.polls = job, pods, log, polls
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.api_client = None

    def read_namespaced_job(self, *_: Any, **__: Any) -> Any:
        if self.job is None:
            raise ApiException(status=404, reason="Not Found")
        return SimpleNamespace(data=json.dumps(self.job))

    def list_namespaced_pod(self, *_: Any, **__: Any) -> Any:
        self.polls -= 1
        return SimpleNamespace(data=json.dumps({"items": self.pods if self.polls >= 0 else []}))

    def list_namespaced_event(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(data='{"items": []}')

    def read_namespaced_pod_log(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(stream=lambda **_: [self.log.encode()])

    def patch_namespaced_job(self, name: str, namespace: str, body: dict[str, Any]) -> None:
        assert self.job is not None
        self.patches.append(("Job", body))
        self.job["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        self.job["spec"] |= body.get("spec", {})


def a_job(kind: str = "", reason: str = "", message: str = "", **metadata: Any) -> dict[str, Any]:
    conditions = [{"type": kind, "status": "True", "reason": reason, "message": message}] if kind else []
    return {"metadata": {"name": "train", **metadata}, "spec": {}, "status": {"conditions": conditions}}


def a_pod(phase: str = "Running", ended: dict[str, Any] | None = None) -> dict[str, Any]:
    state = {"terminated": ended} if ended else {"running": {}}
    labels = {"batch.kubernetes.io/job-completion-index": "0"}
    return {
        "metadata": {"name": "train-0-x", "labels": labels},
        "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 1},
        "status": {"phase": phase, "containerStatuses": [{"state": state}]},
    }


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What is run instead of Pulumi."""
    ran: list[list[str]] = []

    class Ran:
        def __init__(self, command: list[str], **_: Any) -> None:
            ran.append(command)

        def __enter__(self) -> Any:
            return SimpleNamespace(wait=lambda: 0)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(target.subprocess, "Popen", Ran)
    monkeypatch.setattr(lifecycle, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(lifecycle, "LATE", 0.2)
    monkeypatch.setattr(lifecycle, "chosen", lambda *_: [Target("c", "n", "train", None, {})])
    return ran


def use(monkeypatch: pytest.MonkeyPatch, cluster: Any) -> None:
    monkeypatch.setattr(
        TrainingJob, "of", lambda *_: TrainingJob(cluster, cluster, Target("c", "n", "train", None, {}))
    )


@pytest.mark.parametrize(
    ("job", "pods", "said"),
    [
        (None, [], "train: was deleted; starts again"),
        (
            a_job("Failed", "PodFailurePolicy", "exit code 42"),
            [a_pod("Failed", {"exitCode": 42, "message": '{"state": "failed", "message": "loss is nan at step 3"}'})],
            "train: had failed: loss is nan at step 3; starts again",
        ),
        (
            # Its pods were merely asked to end, and say so.
            a_job("Failed", "DeadlineExceeded", "Job was active longer than specified deadline"),
            [a_pod("Failed", {"exitCode": 143, "message": '{"message": "asked to end by SIGTERM"}'})],
            "train: had failed: the time of job.maxHours is up; starts again",
        ),
    ],
)
def test_a_training_that_ended_before_it_was_done_is_made_again_with_its_reason(
    job: dict[str, Any] | None,
    pods: list[dict[str, Any]],
    said: str,
    commands: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use(monkeypatch, Cluster(job, pods))
    assert lifecycle.resume("gcp-c3") == 0
    assert said in capsys.readouterr().out
    assert commands[0][:5] == ["pulumi", "up", "--stack", "gcp-c3", "--yes"]
    assert commands[0][-2:] == ["--replace", "**Job::training"]


def test_one_that_is_failing_is_made_again_once_its_pods_have_left(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after an `up` with fewer workers than were given up: Kubernetes calls it Failed when its pods have saved."""
    failing = a_job("FailureTarget", "FailedIndexes", "Job has failed indexes")

    class Failing(Cluster):
        def list_namespaced_pod(self, *_: Any, **__: Any) -> Any:
            if self.polls <= 0:
                failing["status"] = a_job("Failed", "FailedIndexes", "Job has failed indexes")["status"]
            return super().list_namespaced_pod()

    use(monkeypatch, Failing(failing, [a_pod()]))
    assert lifecycle.go_on("gcp-c3", asked=False) == 0
    assert "train: had failed: Job has failed indexes; starts again" in capsys.readouterr().out
    assert commands[0][-2:] == ["--replace", "**Job::training"]


def test_another_is_left_alone(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for job, said in (
        (a_job(), "it has not ended"),
        (a_job("Suspended", "JobSuspended", "Job suspended"), "it is suspended: Job suspended"),
    ):
        use(monkeypatch, cluster := Cluster(job, []))
        assert lifecycle.resume("local") == lifecycle.go_on("local", asked=False) == 0
        assert capsys.readouterr().out == f"train: nothing to resume: {said}\n"
        assert not commands
        assert not cluster.patches


def test_a_pod_that_may_still_write_is_named_and_no_second_training_begins(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Job was deleted, and its node does not answer."""
    use(monkeypatch, Cluster(None, [a_pod()], polls=10_000))
    with pytest.raises(CommandError, match=r"train-0-x on n1 has not left in time .* delete that node, or the pod by"):
        lifecycle.resume("local")
    assert not commands


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            'record {"state":"training","checkpoint":100,"updated":1}\nstep=110 loss=3\n'
            'record {"state":"terminated","message":"","checkpoint":117,"updated":2}',
            "at step 117, which",
        ),
        ("a library speaks: it's fine\n", "before its first checkpoint"),
    ],
)
def test_stop_suspends_the_job_with_a_mark_and_says_what_is_saved(
    log: str, said: str, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(a_job(), [a_pod()], log, polls=4)
    use(monkeypatch, cluster)
    lifecycle.stop("local")
    shown = capsys.readouterr().out
    assert "1 pod saves and leaves" in shown
    assert f"stopped {said}" in shown
    assert "to go on: trainyard resume" in shown
    ((kind, body),) = cluster.patches
    assert (kind, body["spec"]) == ("Job", {"suspend": True})
    assert body["metadata"]["annotations"][STOPPED].startswith("20")
    lifecycle.stop("local")
    assert "nothing to stop: it is stopped: by `trainyard stop` at 20" in capsys.readouterr().out
    assert lifecycle.go_on("local", asked=False) == 0
    assert "train: stays stopped; to go on: trainyard resume" in capsys.readouterr().out
    assert len(cluster.patches) == 1, "`trainyard up` starts nothing that was stopped"
    assert lifecycle.resume("local") == 0
    assert "was stopped by `trainyard stop` at 20" in capsys.readouterr().out
    freed = {"metadata": {"annotations": {STOPPED: None, QUEUED: None}}, "spec": {"suspend": False}}
    assert cluster.patches[1][1] == freed
    assert not commands


def test_one_in_the_queue_is_stopped_or_tries_at_once_when_a_person_says_so(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`trainyard up` leaves it there: it tries by itself."""
    queued = a_job("Suspended", annotations={QUEUED: "2026-11-25T08:00:00+00:00/2026-11-25T09:00:00+00:00"})
    queued["spec"] = {"suspend": True}
    cluster = Cluster(queued, [])
    use(monkeypatch, cluster)
    assert lifecycle.go_on("local", asked=False) == 0
    assert not cluster.patches
    lifecycle.stop("local")
    assert "was queued, and is stopped; to go on: trainyard resume" in capsys.readouterr().out
    assert end_of(queued)["type"] == "Stopped"
    queued["metadata"]["annotations"] = {QUEUED: "2026-11-25T08:00:00+00:00/2026-11-25T09:00:00+00:00"}
    assert lifecycle.resume("local") == 0
    assert "was queued since 2026-11-25T08:00:00+00:00: it held nodes" in capsys.readouterr().out
    assert queued["spec"] == {"suspend": False}
    assert not queued["metadata"]["annotations"][QUEUED]
    assert not commands


def test_a_training_that_was_done_while_it_was_being_stopped_is_trained(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kubernetes deletes the pod that ended with 0, counts it for nothing, and would make others at `resume`."""
    cluster = Cluster(a_job(), [a_pod()], 'record {"state":"done","step":120,"checkpoint":120,"updated":2}')
    use(monkeypatch, cluster)
    lifecycle.stop("local")
    assert "its last step was done before it could be stopped: it is trained" in capsys.readouterr().out
    assert lifecycle.resume("local") == 0
    assert "nothing to resume: it is trained" in capsys.readouterr().out
    assert [body.get("spec") for _, body in cluster.patches] == [{"suspend": True}, None]
    assert end_of(cluster.job or {})["type"] == "Complete", "for status, follow and the rest"
    assert not commands


def test_a_last_checkpoint_that_failed_is_an_error(commands: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    message = "the checkpoint of step 117 could not be written: No space left on device"
    log = f'record {{"state":"terminated","checkpoint":100,"updated":2,"message":"{message}"}}'
    use(monkeypatch, Cluster(a_job(), [a_pod()], log))
    with pytest.raises(CommandError, match=r"could not be written: No space left on device, so the steps since"):
        lifecycle.stop("local")


def test_a_train_job_is_suspended_itself_for_its_controllers_set_the_job_back(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[tuple[Any, ...]] = []
    custom = SimpleNamespace(patch_namespaced_custom_object=lambda *given: changed.append(given))
    monkeypatch.setattr(lifecycle.client, "CustomObjectsApi", lambda _: custom)
    cluster = Cluster(a_job(ownerReferences=[{"kind": "JobSet", "name": "train-small"}]), [])
    cluster.job |= {"spec": {"suspend": True}}  # pyrefly: ignore[unsupported-operation]
    use(monkeypatch, cluster)
    lifecycle.stop("local")
    assert [list(body) for _, body in cluster.patches] == [["metadata"]]
    assert changed == [
        ("trainer.kubeflow.org", "v1alpha1", "n", "trainjobs", "train-small", {"spec": {"suspend": True}})
    ]
