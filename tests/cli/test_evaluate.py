"""Evaluation in the cluster: the Job that is derived from the training Job, and what a person sees of it."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cli import evaluate
from cli.__main__ import main
from cli.cluster import TrainingJob
from review.recording import Recording
from tests.cli.cluster import TARGET, Cluster, answer, pod
from tests.infra.recorded import recorded
from workloads.layout import VOLUME_ACCESS

OPTIONS = ["--run", "/data/runs/small", "--step", "20", "--tasks", "hellaswag"]


def training(recording: Recording) -> dict[str, Any]:
    """The training Job that the program declares, as the API server would return it."""
    (found,) = [each for each in recording.resources if each.kind == "Job" and each.name == "training"]
    return copy.deepcopy({**found.inputs, "status": {"active": 1}})


def template(recording: Recording) -> dict[str, Any]:
    """The stack's PodTemplate, likewise."""
    return copy.deepcopy(recording.one("PodTemplate", VOLUME_ACCESS).inputs["template"])


def pod_of(made: dict[str, Any]) -> dict[str, Any]:
    return made["spec"]["template"]["spec"]


def test_the_job_has_a_workers_place_and_nothing_elastic() -> None:
    stack = recorded("gcp-a100")
    theirs = pod_of(training(stack))
    made = evaluate.manifest(template(stack), theirs, OPTIONS, [])
    spec = pod_of(made)
    (container,), (worker,) = spec["containers"], theirs["containers"]
    for name in ("nodeSelector", "tolerations", "securityContext"):
        assert spec[name] == theirs[name]
    for name in ("image", "resources", "securityContext"):
        assert container[name] == worker[name]
    assert int(container["resources"]["limits"]["nvidia.com/gpu"]) >= 1
    assert container["args"][-len(OPTIONS) - 1 :] == ["trainer.evaluate", *OPTIONS]
    values = {item["name"]: item["value"] for item in container["env"]}
    assert values["TRAINYARD_DEVICE"] == "cuda"
    assert values["HF_HUB_OFFLINE"] == "0"
    assert not {"RDZV_ID", "POD_IP"} & values.keys()
    assert not {"subdomain", "priorityClassName", "topologySpreadConstraints"} & spec.keys()
    # It ends by itself, is not retried, and may reach the hub, as the dataset Job's pods may.
    assert made["spec"]["backoffLimit"] == 0
    assert "activeDeadlineSeconds" not in made["spec"], "it would count while the Job waits for a node"
    assert spec["activeDeadlineSeconds"] == 24 * 3600
    assert made["spec"]["ttlSecondsAfterFinished"] <= 600
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == "dataset"
    assert labels["app.kubernetes.io/managed-by"] != "pulumi", "it is not the dataset Job, whose token it has"


def test_only_the_hubs_token_goes_with_it(local_stack: Recording) -> None:
    """It is the dataset Job's: a trainer has none."""
    job = training(local_stack)
    worker, reference = pod_of(job)["containers"][0], {"secretKeyRef": {"name": "tokens-1a2b3c", "key": "HF_TOKEN"}}
    worker["env"].append({"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"key": "WANDB_API_KEY"}}})
    token = {"name": "HF_TOKEN", "valueFrom": reference}
    dataset = {"spec": {"template": {"spec": {"containers": [{"env": [{"name": "HOME", "value": "/tmp"}, token]}]}}}}
    for jobs, wanted in (([], []), ([dataset, dataset], [token])):
        api: Any = SimpleNamespace(list_namespaced_job=lambda *_, jobs=jobs, **__: answer({"items": jobs}))
        found = evaluate.hub_token(TrainingJob(api, api, TARGET))
        (container,) = pod_of(evaluate.manifest(template(local_stack), pod_of(job), OPTIONS, found))["containers"]
        assert [each for each in container["env"] if "valueFrom" in each] == wanted


def test_the_processes_of_a_worker_share_the_examples() -> None:
    assert evaluate.interpreter(["python", "--nproc-per-node", "1", "--"]) == ["python", "-m"]
    started = evaluate.interpreter(["python", "--nproc-per-node", "8", "--"])
    assert started[:3] == ["python", "-m", "torch.distributed.run"]
    assert started[-4:] == ["--nproc-per-node", "8", "-m", "--"]


class Evaluates(Cluster):
    """The training Job and at most one evaluation, whose pod waits, and logs `log` to its end."""

    def __init__(self, stack: Recording, log: str) -> None:
        super().__init__(training(stack), log=log)
        self.template = template(stack)
        self.made: dict[str, Any] | None = None
        self.calls: list[str] = []
        self.looks = 0

    def create_namespaced_job(self, namespace: str, body: dict[str, Any], **_: Any) -> Any:
        self.calls.append(body["metadata"]["generateName"])
        self.looks, self.made = 0, {**body, "status": {}}
        self.made["metadata"]["name"] = f"{self.calls[-1]}x"
        return answer(self.made)

    def read_namespaced_job(self, name: str, *_: Any, **__: Any) -> Any:
        if self.made is None or not name.startswith("evaluate-"):
            return super().read_namespaced_job(name)
        self.looks += 1
        if self.looks > 2:
            self.made["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        waits = {"type": "PodScheduled", "status": "False", "message": "Insufficient nvidia.com/gpu"}
        after = pod(0, "Succeeded", {"exitCode": 0})
        self.pods = [after if self.looks > 1 else pod(0, "Pending", conditions=[waits], containerStatuses=None)]
        return answer(self.made)

    def list_namespaced_job(self, *_: Any, label_selector: str, **__: Any) -> Any:
        return answer({"items": [self.made] if self.made and label_selector.startswith(evaluate.EVALUATION) else []})

    def read_namespaced_pod_template(self, *_: Any, **__: Any) -> Any:
        return answer({"template": self.template})

    def logged(self, pod: str) -> str:
        lines = enumerate(self.log.splitlines())
        return "".join(f"2026-11-22T12:00:{number:02}.000000000Z {line}\n" for number, line in lines)


@pytest.fixture
def cluster(local_stack: Recording, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stack whose evaluation logs this."""

    def build(log: str = "") -> Evaluates:
        api: Any = Evaluates(local_stack, log)
        target = replace(TARGET, run_directory="/data/runs/small")
        monkeypatch.setattr(evaluate, "target_of", lambda *_: target)
        monkeypatch.setattr(evaluate, "volume_pod", lambda *_: nullcontext((None, None)))
        monkeypatch.setattr(evaluate, "trained", lambda *_: SimpleNamespace(checkpoints=(10, 20)))
        monkeypatch.setattr(TrainingJob, "of", lambda target: TrainingJob(api, api, target))
        monkeypatch.setattr(evaluate, "POLL_SECONDS", 0.05)
        return api

    return build


def test_progress_and_table_are_shown(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    api = cluster(log="Running loglikelihood requests: 50%\n\ntask  value\nhellaswag  0.3\n")
    assert main(["evaluate", "--tasks", "hellaswag, own", "--include", "tasks", "--limit", "5"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        "The training runs: the evaluation waits until a node has room for it, or the training has ended.",
        "waiting for a node: Insufficient nvidia.com/gpu; lower workers.gpus or workers.count, or take other nodes",
        "Running loglikelihood requests: 50%",
        "",
        "task  value",
        "hellaswag  0.3",
        "In /data/runs/small/evaluations; `trainyard fetch --stack local` downloads it with the report.",
    ]
    (container,) = pod_of(api.made)["containers"]
    asked = ["--run=/data/runs/small", "--step=20", "--tasks=hellaswag,own", "--limit=5"]
    assert container["args"] == ["python", "-m", "trainer.evaluate", *asked, "--include=/data/tasks"]


def test_the_same_command_returns_to_what_runs_and_makes_anew_what_has_ended(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = cluster()
    command = ["evaluate", "--tasks", "hellaswag"]

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluate.time, "sleep", interrupt)
        assert main(command) == 130
    assert "The evaluation continues; the same command returns to it" in capsys.readouterr().out
    assert main(command) == 0
    assert len(api.calls) == 1
    assert main([*command, "--step", "10"]) == 0
    assert len({*api.calls}) == len(api.calls) == 2
