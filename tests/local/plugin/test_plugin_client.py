"""Requests against a small HTTP server that answers as an API server in trouble would."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from local.plugin import client as client_module
from local.plugin import operations
from local.plugin.client import Client
from local.plugin.engine import Engine
from local.plugin.errors import ApiError, CancelledError, InitFailedError, NoSuchKindError, PluginError
from local.plugin.naming import Urn
from local.plugin.provider import Provider
from local.plugin.settings import Settings

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "demo"}}
NAMES = {"ConfigMap": "configmaps", "Job": "jobs", "Pod": "pods"}
KINDS = {"resources": [{"name": name, "kind": kind, "namespaced": True} for kind, name in NAMES.items()]}


class Scripted:
    """Answers each request with the next (code, body) of its script, then calls `at_end`; discovery always works."""

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, Any]]] = []
        self.seen: list[str] = []
        self.at_end: Callable[[], None] = lambda: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, body = 200, KINDS
                if self.path == "/apis/example.com/v1":
                    code, body = 404, {}
                elif self.path not in ("/api/v1", "/apis/batch/v1"):
                    outer.seen.append(f"{self.command} {self.path} {self.headers['Authorization']}")
                    code, body = outer.script.pop(0)
                    if not outer.script:
                        outer.at_end()
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PATCH = do_DELETE = answer

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def settings(self) -> Settings:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t0ken"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        return Settings(config, "x", "default")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setattr(client_module, "RETRY_PAUSES", (0.01, 0.01))
    scripted = Scripted()
    yield scripted
    scripted.server.shutdown()
    scripted.server.server_close()


def status(reason: str, message: str = "m", causes: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {"kind": "Status", "reason": reason, "message": message, "details": {"causes": causes or []}}


def call(api: Scripted, client: Client) -> operations.Call:
    return operations.Call(client, Engine(None), api.settings(), "urn", "mine")


@pytest.fixture
def client(api: Scripted) -> Client:
    client = Client(api.settings(), threading.Event())
    client.kind("v1", "ConfigMap")
    return client


def test_requests_carry_the_token_and_the_path(api: Scripted, client: Client) -> None:
    api.script = [(200, CONFIG_MAP)]
    assert client.get(CONFIG_MAP) == CONFIG_MAP
    assert api.seen == ["GET /api/v1/namespaces/demo/configmaps/a Bearer t0ken"]


def test_a_busy_server_is_asked_again(api: Scripted, client: Client) -> None:
    api.script = [(429, {}), (503, {}), (200, CONFIG_MAP)]
    assert client.request("PATCH", CONFIG_MAP, CONFIG_MAP) == CONFIG_MAP
    assert len(api.seen) == 3


def test_a_missing_object_is_none_and_a_missing_kind_is_explained(api: Scripted, client: Client) -> None:
    api.script = [(404, status("NotFound"))]
    assert client.get(CONFIG_MAP) is None
    with pytest.raises(NoSuchKindError, match="no kind Goose in example"):
        client.kind("example.com/v1", "Goose")


def test_cancel_ends_the_pauses(api: Scripted, client: Client) -> None:
    api.script = [(503, {})]
    client.cancelled.set()
    with pytest.raises(CancelledError):
        client.get(CONFIG_MAP)


def test_an_existing_object_is_not_taken_over(api: Scripted, client: Client) -> None:
    for metadata, expected in (
        ({}, "already exists in the cluster"),
        ({"deletionTimestamp": "t"}, "still being delet"),
    ):
        api.script = [(200, {**CONFIG_MAP, "metadata": {**CONFIG_MAP["metadata"], **metadata}})]
        with pytest.raises(PluginError, match=f"ConfigMap demo/a.*{expected}"):
            operations.create(call(api, client), CONFIG_MAP)


def test_apply_meets_a_controller_but_not_another_manager(api: Scripted, client: Client) -> None:
    api.script = [(200, CONFIG_MAP), (409, status("Conflict", "the object has been modified")), (200, CONFIG_MAP)]
    assert operations.update(call(api, client), CONFIG_MAP, CONFIG_MAP, []) == CONFIG_MAP
    theirs = status("Conflict", "m", [{"reason": "FieldManagerConflict", "field": ".data", "message": "kubectl"}])
    api.script = [(200, CONFIG_MAP), (409, theirs)]
    with pytest.raises(ApiError, match="patchForce"):
        operations.update(call(api, client), CONFIG_MAP, CONFIG_MAP, [])
    assert "force=false" in api.seen[-1]


def test_deleting_what_is_gone_is_fine(api: Scripted, client: Client) -> None:
    api.script = [(404, status("NotFound"))]
    operations.delete(call(api, client), {}, CONFIG_MAP)
    goose = {"apiVersion": "example.com/v1", "kind": "Goose", "metadata": {"name": "g"}}
    operations.delete(call(api, client), {}, goose)
    api.script = [(200, {}), (200, {**CONFIG_MAP, "metadata": {"name": "a", "uid": "another"}})]
    live = {**CONFIG_MAP, "metadata": {**CONFIG_MAP["metadata"], "uid": "old"}}
    operations.delete(call(api, client), {}, live)  # another object has taken the name


METADATA = {"name": "a", "namespace": "demo", "uid": "u"}
RUNNING = {"apiVersion": "batch/v1", "kind": "Job", "metadata": METADATA, "spec": {}, "status": {"startTime": "now"}}
FAILED = {**RUNNING, "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}}
BUSY = [(503, {})] * 3  # one more than the retries


@pytest.mark.parametrize(
    ("answers", "interrupted", "reason"),
    [
        ([(200, RUNNING), *BUSY, (200, FAILED)], False, "the Job failed: BackoffLimitExceeded"),
        ([(200, RUNNING), (403, status("Forbidden"))], False, "Job demo/a is forbidden"),
        ([(200, RUNNING), (503, {})], True, "interrupted: the Job runs"),
        # Interrupted while it asks for the pods, to say why.
        ([(200, {**FAILED, "spec": {"selector": {"matchLabels": {"a": "b"}}}}), (503, {})], True, "the Job failed"),
    ],
)
def test_a_wait_that_breaks_keeps_the_object_in_the_state(
    answers: list[tuple[int, dict[str, Any]]], interrupted: bool, reason: str, api: Scripted, client: Client
) -> None:
    """Otherwise the next `up` would meet an object that Pulumi does not know."""
    api.script = [(200, {}), (404, status("NotFound")), *answers]  # the version, and no such Job yet
    if interrupted:
        api.at_end = client.cancelled.set
    given = {key: value for key, value in RUNNING.items() if key != "status"}
    urn = Urn("urn:pulumi:dev::project::kubernetes:batch/v1:Job::a")
    with pytest.raises(InitFailedError, match=reason) as caught:
        Provider(api.settings(), client, Engine(None)).create(urn, given, 0, preview=False)
    assert caught.value.object_id == "demo/a"
    assert caught.value.properties["metadata"]["uid"] == "u"
    assert api.script == []


def test_a_deletion_waits_for_a_busy_server(api: Scripted, client: Client) -> None:
    api.script = [(200, {}), *BUSY, (404, status("NotFound"))]
    operations.delete(call(api, client), {}, CONFIG_MAP)
    assert api.script == []


def test_a_deletion_that_is_not_to_be_waited_for_says_how_long_it_was(api: Scripted, client: Client) -> None:
    api.script = [(200, {}), (200, CONFIG_MAP)]
    with pytest.raises(InitFailedError, match="ConfigMap demo/a still exists 0 s after its deletion"):
        operations.delete(replace(call(api, client), timeout=1e-9), {}, CONFIG_MAP)
