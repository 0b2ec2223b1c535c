"""Pods of the commands: one is shared and stays, others are a command's own; a failure prints one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client

from cli import CommandError, pods, run
from cli.__main__ import main
from cli.target import Target
from tests.cli.volume import Wire
from tests.standin.api_server import until

TARGET = Target("c", "n", "train", None, {})


class Cluster:
    """An API server with a PodTemplate, whose pods run at once; `fails` is the verb that it answers with `status`."""

    def __init__(self) -> None:
        self.pods: dict[str, Any] = {}
        self.made = 0
        self.image, self.fails, self.status, self.phase = "one", "", 0, "Running"

    def answer(self, verb: str, path: str, sent: Any) -> tuple[int, Any]:
        if verb == self.fails and "podtemplates" not in path:
            return self.status, {"kind": "Status", "message": "the server says why"}
        if "podtemplates" in path:
            spec = {"containers": [{"name": "volume", "image": self.image}]}
            return 200, {"template": {"metadata": {"labels": {}}, "spec": spec}}
        name = path.partition("?")[0].rpartition("/")[2]
        if verb == "POST":
            self.made += 1
            sent["metadata"]["resourceVersion"] = str(self.made)
            self.pods[sent["metadata"]["name"]] = {**sent, "status": {"phase": self.phase}}
            return 201, sent
        if verb == "DELETE" and name == "pods":  # those that ended
            gone = [each for each, pod in self.pods.items() if pod["status"]["phase"] != "Running"]
            return 200, {each: self.pods.pop(each) for each in gone}
        found = self.pods.get(name)
        if verb == "DELETE":
            wanted = (sent or {}).get("preconditions", {}).get("resourceVersion")
            if wanted and found and found["metadata"]["resourceVersion"] != wanted:
                return 409, {"message": "the pod has changed"}
            self.pods.pop(name)
        return (200, found) if found else (404, {"message": "not found"})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    played = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            sent = json.loads(text) if text else None
            status, content = played.answer(self.command, self.path, sent)
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(pods, "connect", lambda *_: client.ApiClient(client.Configuration(host=address)))
        monkeypatch.setattr(pods, "find", lambda name: f"/bin/{name}")
        yield played
        server.shutdown()


def warm() -> str:
    return pods.warm_pod(TARGET, lambda reason: None).name


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
        pods.own_pod(TARGET, lambda reason: None, lambda spec: spec.update(nodeSelector={"a": "b"})) as one,
        pods.own_pod(TARGET, lambda reason: None) as two,
    ):
        assert len({shared, one.name, two.name}) == 3
        assert cluster.pods[one.name]["spec"]["nodeSelector"] == {"a": "b"}
    assert list(cluster.pods) == [shared]


@pytest.mark.parametrize(
    ("fails", "status", "told"),
    [
        ("POST", 403, r"cannot make pod n/volume-access-\w+: the server says why"),
        ("GET", 0, "the cluster does not answer: "),
    ],
)
def test_a_cluster_that_refuses_or_goes_while_the_pod_starts_is_told_in_one_line(
    fails: str, status: int, told: str, cluster: Cluster
) -> None:
    cluster.fails, cluster.status = fails, status
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
