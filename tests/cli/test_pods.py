"""Pods of the commands: one is shared and stays, others are a command's own; a failure prints one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3.exceptions
from kubernetes.client.exceptions import ApiException

from cli import CommandError, pods, run
from cli.__main__ import main
from tests.cli.cluster import TARGET, answer
from tests.cli.volume import Wire
from tests.standin.api_server import until


class Cluster:
    """The API of a cluster with a PodTemplate, whose pods run at once; `fails` is the call that fails with `error`."""

    def __init__(self) -> None:
        self.pods: dict[str, Any] = {}
        self.made = 0
        self.image, self.fails, self.phase = "one", "", "Running"
        self.error: Exception = ApiException(status=403, reason="the server says why")

    def _answer(self, call: str, content: Any) -> Any:
        if call == self.fails:
            raise self.error
        return answer(content)

    def read_namespaced_pod_template(self, *_: Any, **__: Any) -> Any:
        spec = {"containers": [{"name": "volume", "image": self.image}]}
        return self._answer("template", {"template": {"metadata": {"labels": {}}, "spec": spec}})

    def read_namespaced_pod(self, name: str, *_: Any, **__: Any) -> Any:
        return self._answer("read", self.pods.get(name))

    def create_namespaced_pod(self, _: str, sent: Any) -> Any:
        answer, self.made = self._answer("create", sent), self.made + 1
        metadata = {**sent["metadata"], "resourceVersion": str(self.made)}
        self.pods[metadata["name"]] = {**sent, "metadata": metadata, "status": {"phase": self.phase}}
        return answer

    def delete_namespaced_pod(self, name: str, _: str, body: Any = None, **__: Any) -> Any:
        wanted = body and body["preconditions"]["resourceVersion"]
        if wanted and self.pods[name]["metadata"]["resourceVersion"] != wanted:
            raise ApiException(status=409)
        return self.pods.pop(name)

    def delete_collection_namespaced_pod(self, _: str, label_selector: str, field_selector: str) -> None:
        assert label_selector == f"{pods.LABEL}=true"
        assert field_selector == "status.phase!=Pending,status.phase!=Running"
        self.pods = {name: pod for name, pod in self.pods.items() if pod["status"]["phase"] in ("Pending", "Running")}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    played = Cluster()
    monkeypatch.setattr(pods.TrainingJob, "of", lambda _: SimpleNamespace(core=played))
    monkeypatch.setattr(pods, "find", lambda name: f"/bin/{name}")
    return played


def warm() -> str:
    with pods.command_pod(TARGET, lambda reason: None) as pod:
        return pod.name


def test_the_next_command_finds_the_pod_and_a_new_image_gets_a_new_one(cluster: Cluster) -> None:
    first = warm()
    assert (warm(), cluster.made) == (first, 1)
    cluster.image = "two"
    assert warm() != first
    cluster.pods[first]["status"]["phase"] = "Succeeded"  # idle for some minutes
    cluster.image = "one"
    assert (warm(), cluster.made) == (first, 3)


def test_a_pod_of_a_commands_own_is_another_each_time_and_goes_with_it(cluster: Cluster) -> None:
    shared = warm()
    with (
        pods.command_pod(TARGET, lambda reason: None, lambda spec: spec.update(nodeSelector={"a": "b"})) as one,
        pods.command_pod(TARGET, lambda reason: None, pods.UNCHANGED) as two,
    ):
        assert len({shared, one.name, two.name}) == 3
        assert cluster.pods[one.name]["spec"]["nodeSelector"] == {"a": "b"}
    assert list(cluster.pods) == [shared]


@pytest.mark.parametrize(
    ("fails", "error", "told"),
    [
        ("create", None, r"cannot make pod trainyard/volume-access-\w+: the server says why"),
        ("read", urllib3.exceptions.ProtocolError("Connection refused"), "the cluster does not answer: Connection"),
    ],
)
def test_a_cluster_that_refuses_or_goes_while_the_pod_starts_is_told_in_one_line(
    fails: str, error: Exception | None, told: str, cluster: Cluster
) -> None:
    cluster.fails, cluster.error = fails, error or cluster.error
    with pytest.raises(CommandError, match=f"^{told}"):
        warm()


@pytest.mark.parametrize("ends", ["its time", "Ctrl-C", "Ctrl-C, as it starts"])
def test_a_pod_that_does_not_start_does_not_wait_for_ever(
    ends: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.phase = "Pending"

    def interrupt(_: float) -> None:
        if ends == "Ctrl-C, as it starts":
            (pod,) = cluster.pods.values()
            pod["status"]["phase"], pod["metadata"]["resourceVersion"] = "Running", "changed"
        raise KeyboardInterrupt

    if ends == "its time":
        monkeypatch.setattr(pods, "START_SECONDS", 0)
        with pytest.raises(CommandError, match=r"does not start: starting the pods; it was removed$"):
            warm()
    else:
        monkeypatch.setattr(pods.time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            warm()
    assert len(cluster.pods) == (ends == "Ctrl-C, as it starts"), "another command may run in one that has started"


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """`trainyard run` with its pod here; what pods of its own it asks for."""
    changes: list[Any] = []
    wire = Wire(tmp_path / "wire")

    def volume_pod(target: Any, change: Any = None) -> Any:
        changes.append(change)
        return wire.volume_pod()

    monkeypatch.setattr(run, "targets_of", lambda *_: [TARGET])
    monkeypatch.setattr(run, "volume_pod", volume_pod)
    return changes


def test_a_command_runs_as_it_is_with_its_exit_code(command: list[Any], capfd: pytest.CaptureFixture[str]) -> None:
    words = ["python", "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "~/x", "--stack", "a b", "--", "$HOME"]
    assert main(["run", "--", *words]) == 7
    assert capfd.readouterr().out == "['~/x', '--stack', 'a b', '--', '$HOME']\n"
    assert command == [None], "in the pod that stays"


def test_on_a_terminal_its_lines_are_plain(
    command: list[Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["run", "printf", "a\\033]52;c;x\\007b\\n"]) == 0
    assert capfd.readouterr().out == "ab\n"


def test_ctrl_c_ends_the_command_in_the_pod_which_would_go_on_without_its_connection(
    command: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    rest = "for i in $(seq 400); do sleep 0.05; done"
    script = f"trap 'echo >{ended}; exit' INT; echo >{begun}; {rest}"

    def call(words: list[str]) -> int:
        with subprocess.Popen(words) as process:
            until(begun.exists, "the command runs")
            process.kill()  # as Ctrl-C does to kubectl
        raise KeyboardInterrupt

    monkeypatch.setattr(run.subprocess, "call", call)
    assert main(["run", "--", "sh", "-c", script]) == 130
    until(ended.exists, "the command has ended")


def test_ctrl_c_on_the_terminal_leaves_the_connection_of_a_chat_to_its_command(tmp_path: Path) -> None:
    with Wire(tmp_path / "wire").pod.process("python", "-c", "input()") as process:
        assert os.getpgid(process.pid) != os.getpgrp()
        process.stdin.write(b"an answer\n")
        process.stdin.close()


def test_on_a_worker_it_has_a_workers_place_memory_and_accelerators(
    command: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = {"limits": {"memory": "8192Mi", "nvidia.com/gpu": "1"}}
    worker = {"nodeSelector": {"pool": "gpu"}, "containers": [{"resources": resources}]}
    job = {"spec": {"template": {"metadata": {}, "spec": worker}}}
    monkeypatch.setattr(run.TrainingJob, "of", lambda *_: SimpleNamespace(read=lambda: (job, [])))
    assert main(["run", "--on", "worker", "true"]) == 0
    spec: dict[str, Any] = {"containers": [{"name": "volume", "resources": {}}]}
    command[0](spec)
    assert spec == {"nodeSelector": {"pool": "gpu"}, "containers": [{"name": "volume", "resources": resources}]}
