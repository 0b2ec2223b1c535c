"""`trainyard stop` and `resume`: what they say and change, by how the training has ended; e2e has the real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cli import CommandError, lifecycle
from cli.cluster import TrainingJob, end_of
from tests.cli.cluster import TARGET, Cluster, answer, ended_job, job, marked_job, pod
from trainer.contract import QUEUED, STOPPED

Commands = list[tuple[str, ...]]
Patch, Capture = pytest.MonkeyPatch, pytest.CaptureFixture[str]


class Leaves(Cluster):
    """A Job that can be changed; a suspended one's pods are gone after `polls` looks."""

    def __init__(self, job: dict[str, Any] | None, pods: list[dict[str, Any]], log: str = "", polls: int = 2):
        super().__init__(job, pods, log)
        self.polls, self.patches = polls, list[dict[str, Any]]()

    def list_namespaced_pod(self, *_: Any, **__: Any) -> Any:
        self.polls -= 1
        return super().list_namespaced_pod() if self.polls >= 0 else answer({"items": []})

    def patch_namespaced_job(self, name: str, namespace: str, body: dict[str, Any]) -> None:
        assert self.job is not None
        self.patches.append(body)
        self.job["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        self.job["spec"] |= body.get("spec", {})


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """What is run instead of Pulumi."""
    ran: Commands = []
    monkeypatch.setattr(lifecycle, "run", lambda *command: ran.append(command) or 0)
    monkeypatch.setattr(lifecycle, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(lifecycle, "LATE", 0.2)
    monkeypatch.setattr(lifecycle, "GRACE", 0.1)
    monkeypatch.setattr(lifecycle, "chosen", lambda *_: [TARGET])
    return ran


def use(monkeypatch: pytest.MonkeyPatch, cluster: Any) -> None:
    monkeypatch.setattr(TrainingJob, "of", lambda target: TrainingJob(cluster, cluster, target))


RUNS = pod(0)


def test_one_that_is_failing_is_made_again_once_its_pods_have_left(
    commands: Commands, monkeypatch: Patch, capsys: Capture
) -> None:
    """As after an `up` with fewer workers than were given up: Kubernetes calls it Failed when its pods have saved."""
    failing = ended_job("FailureTarget", message="Job has failed indexes")

    class Failing(Leaves):
        def list_namespaced_pod(self, *_: Any, **__: Any) -> Any:
            if self.polls <= 0:
                failing["status"] = ended_job("Failed", message="Job has failed indexes")["status"]
            return super().list_namespaced_pod()

    use(monkeypatch, Failing(failing, [RUNS]))
    assert lifecycle.go_on("gcp-c3", asked=False) == 0
    assert "had failed: Job has failed indexes; starts again" in capsys.readouterr().out
    assert commands[0][:5] == ("pulumi", "up", "--stack", "gcp-c3", "--yes")
    assert commands[0][-2:] == ("--replace", "**Job::training")


def test_another_is_left_alone(commands: Commands, monkeypatch: Patch, capsys: Capture) -> None:
    for found, said in (
        (job(), "it has not ended"),
        (ended_job("Suspended", message="Job suspended"), "it is suspended: Job suspended"),
    ):
        use(monkeypatch, cluster := Leaves(found, []))
        assert lifecycle.resume("local") == lifecycle.go_on("local", asked=False) == 0
        assert capsys.readouterr().out == f"train-small-1: nothing to resume: {said}\n"
        assert not commands
        assert not cluster.patches


def test_a_pod_that_may_still_write_is_named_and_no_second_training_begins(
    commands: Commands, monkeypatch: Patch
) -> None:
    """Its Job was deleted, and its node does not answer."""
    use(monkeypatch, Leaves(None, [RUNS], polls=10_000))
    with pytest.raises(CommandError, match=r"-0-abcde on node-0 has not left in time .* delete that node, or the pod"):
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
    log: str, said: str, commands: Commands, monkeypatch: Patch, capsys: Capture
) -> None:
    use(monkeypatch, cluster := Leaves(job(), [RUNS], log, polls=4))
    lifecycle.stop("local")
    shown = capsys.readouterr().out
    assert "1 pod saves and leaves" in shown
    assert f"stopped {said}" in shown
    assert "to go on: trainyard resume" in shown
    (body,) = cluster.patches
    assert body["spec"] == {"suspend": True}
    assert body["metadata"]["annotations"][STOPPED].startswith("20")
    lifecycle.stop("local")
    assert "nothing to stop: it is stopped: by `trainyard stop` at 20" in capsys.readouterr().out
    assert lifecycle.go_on("local", asked=False) == 0
    assert "stays stopped; to go on: trainyard resume" in capsys.readouterr().out
    assert len(cluster.patches) == 1, "`trainyard up` starts nothing that was stopped"
    assert lifecycle.resume("local") == 0
    assert "was stopped by `trainyard stop` at 20" in capsys.readouterr().out
    freed = {"metadata": {"annotations": {STOPPED: None, QUEUED: None}}, "spec": {"suspend": False}}
    assert cluster.patches[1] == freed
    assert not commands


def test_one_in_the_queue_is_stopped_or_tries_at_once_when_a_person_says_so(
    commands: Commands, monkeypatch: Patch, capsys: Capture
) -> None:
    """`trainyard up` leaves it there: it tries by itself."""
    since = "2026-11-25T08:00:00+00:00"
    queued = marked_job(QUEUED, f"{since}/2026-11-25T09:00:00+00:00")
    use(monkeypatch, cluster := Leaves(queued, []))
    assert lifecycle.go_on("local", asked=False) == 0
    assert not cluster.patches
    lifecycle.stop("local")
    assert "was queued, and is stopped; to go on: trainyard resume" in capsys.readouterr().out
    assert end_of(queued)["type"] == "Stopped"
    queued["metadata"]["annotations"] = {QUEUED: f"{since}/2026-11-25T09:00:00+00:00"}
    assert lifecycle.resume("local") == 0
    assert f"was queued since {since}: it held nodes" in capsys.readouterr().out
    assert queued["spec"]["suspend"] is False
    assert not queued["metadata"]["annotations"][QUEUED]
    assert not commands


def test_a_training_that_was_done_while_it_was_being_stopped_is_trained(
    commands: Commands, monkeypatch: Patch, capsys: Capture
) -> None:
    """Kubernetes deletes the pod that ended with 0, counts it for nothing, and would make others at `resume`."""
    log = 'record {"state":"done","step":120,"checkpoint":120,"updated":2}'
    use(monkeypatch, cluster := Leaves(job(), [RUNS], log))
    lifecycle.stop("local")
    assert "its last step was done before it could be stopped: it is trained" in capsys.readouterr().out
    assert lifecycle.resume("local") == 0
    assert "nothing to resume: it is trained" in capsys.readouterr().out
    assert [body.get("spec") for body in cluster.patches] == [{"suspend": True}, None]
    assert end_of(cluster.job or {})["type"] == "Complete", "for status, follow and the rest"
    assert not commands


def test_a_last_checkpoint_that_failed_is_an_error(commands: Commands, monkeypatch: Patch) -> None:
    message = "the checkpoint of step 117 could not be written: No space left on device"
    log = f'record {{"state":"terminated","checkpoint":100,"updated":2,"message":"{message}"}}'
    use(monkeypatch, Leaves(job(), [RUNS], log))
    with pytest.raises(CommandError, match=r"could not be written: No space left on device, so the steps since"):
        lifecycle.stop("local")


def test_a_train_job_is_suspended_itself_for_its_controllers_set_the_job_back(
    commands: Commands, monkeypatch: Patch
) -> None:
    changed: list[tuple[Any, ...]] = []
    custom = SimpleNamespace(patch_namespaced_custom_object=lambda *given: changed.append(given))
    monkeypatch.setattr(lifecycle.client, "CustomObjectsApi", lambda _: custom)
    made = job()
    made["metadata"]["ownerReferences"], made["spec"] = [{"kind": "JobSet", "name": "train-small"}], {"suspend": True}
    use(monkeypatch, cluster := Leaves(made, []))
    lifecycle.stop("local")
    assert [list(body) for body in cluster.patches] == [["metadata"]]
    place = ("trainer.kubeflow.org", "v1alpha1", "trainyard", "trainjobs", "train-small")
    assert changed == [(*place, {"spec": {"suspend": True}})]
