"""Pods of the commands: a failure prints one line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client

from cli import CommandError, reach

#: What an API server answers where nothing is wrong, by step.
ANSWERS: dict[str, Any] = {
    "template": {"template": {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "volume"}]}}},
    "make": {"metadata": {"name": "x"}},
    "wait": {"metadata": {"name": "x"}, "status": {"phase": "Pending"}},
    "remove": {},
}


@contextmanager
def api_server(fails: str, status: int) -> Iterator[client.ApiClient]:
    """An API server that fails at one step, `make` or `wait`: with an HTTP status, or by no answer (0)."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            read = "template" if "podtemplates" in self.path else "wait"
            step = {"POST": "make", "DELETE": "remove", "GET": read}[self.command]
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            content = ANSWERS[step]
            if step == fails and not status:
                self.close_connection = True
                return
            if step == fails:
                content = {"kind": "Status", "message": "the server says why"}
            self.send_response(status if step == fails else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{server.server_port}"))
        server.shutdown()


@pytest.mark.parametrize(
    ("fails", "status", "told"),
    [
        ("make", 403, r"cannot make pod n/volume-access-\w+: the server says why"),
        ("make", 0, "the cluster does not answer: "),
        ("wait", 404, r"cannot read pod n/volume-access-\w+: the server says why"),
        ("wait", 0, "the cluster does not answer: "),
    ],
)
def test_a_cluster_that_refuses_or_goes_while_the_pod_starts_is_told_in_one_line(
    fails: str, status: int, told: str
) -> None:
    with (
        api_server(fails, status) as api,
        pytest.raises(CommandError, match=f"^{told}"),
        reach.volume_pod(api, "n", lambda reason: None),
    ):
        pytest.fail("the pod did not start")
