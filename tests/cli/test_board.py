"""TensorBoard's port on this machine, and the template of the pods that reach the volume."""

from __future__ import annotations

import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cli import board, reach
from review.recording import Recording, record
from tests.infra.recorded import changed
from workloads.layout import VOLUME_ACCESS


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "200000")
        self.end_headers()
        self.wfile.write(b"x" * 200_000)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_each_connection_of_the_browser_is_forwarded_and_one_that_fails_is_told() -> None:
    behind = ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    working, failures = [True], []

    def there() -> socket.socket:
        if not working[0]:
            raise ConnectionError("pod tensorboard-1: is going")
        return socket.create_connection(("127.0.0.1", behind.server_port))

    with board.listener(16006) as listening:
        threading.Thread(target=reach.relay, args=(listening, there, failures.append), daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        for _ in range(5):
            with urllib.request.urlopen(address, timeout=20) as answer:
                assert len(answer.read()) == 200_000
        working[0] = False
        with pytest.raises(OSError, match=r"closed connection|reset"):
            urllib.request.urlopen(address, timeout=20).read()
    behind.shutdown()
    assert [str(error) for error in failures] == ["pod tensorboard-1: is going"]


def test_a_port_that_is_taken_gives_the_next_one() -> None:
    with board.listener(17006) as first:
        port = first.getsockname()[1]
        with board.listener(port) as second:
            assert second.getsockname()[1] > port
        with pytest.raises(OSError, match=f"--port {port}: taken"):
            board.listener(port, tries=1)


def pod_on_the_volume(stack: Recording) -> dict[str, Any]:
    return stack.one("PodTemplate", VOLUME_ACCESS).inputs["template"]


def test_the_pod_on_the_volume_is_restricted_and_ends_by_itself(local_stack: Recording) -> None:
    template = pod_on_the_volume(local_stack)
    spec = template["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert "@sha256:" in container["image"]
    assert spec["activeDeadlineSeconds"] == 24 * 3600
    assert spec["restartPolicy"] == "Never"
    assert spec["automountServiceAccountToken"] is False
    # The network policy of the dataset Job lets it out to the web.
    policy = local_stack.one("NetworkPolicy", "dataset").inputs["spec"]["podSelector"]["matchLabels"]
    assert policy.items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize(("name", "bucket"), [("gcp-c3", "gs://texts/corpus"), ("aws-g4dn", "s3://texts/corpus")])
def test_on_a_cloud_it_may_read_the_buckets_that_the_stack_may_read(name: str, bucket: str) -> None:
    stack = record(name, changed(name, dataset={"input": [bucket]}))
    account = stack.one("ServiceAccount", "dataset").inputs["metadata"]["name"]
    assert pod_on_the_volume(stack)["spec"]["serviceAccountName"] == account


def test_the_program_of_the_pod_travels_with_the_command(local_stack: Recording) -> None:
    made = reach._from(pod_on_the_volume(local_stack), "volume-access-1")
    shell = made["spec"]["containers"][0]["args"]
    for program in shell[4:]:
        compile(program, "program", "exec")
        # One argument of a process is 128 KiB at most.
        assert len(program.encode()) < 100_000
    assert shell[2].endswith(f" && exec python3 {reach.THERE} wait")
    for at, part in enumerate(reach.PARTS, 1):
        assert f'printf %s "${at}" > /tmp/{part.name} && ' in shell[2]
        assert shell[3 + at] == part.read_text("utf-8")
    assert made["metadata"]["labels"][reach.LABEL] == "true"
