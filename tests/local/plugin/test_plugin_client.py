"""Requests against a small HTTP server that answers as an API server in trouble would."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from local.plugin import client as client_module
from local.plugin import operations
from local.plugin.client import Client
from local.plugin.engine import Engine
from local.plugin.errors import ApiError, CancelledError, NoSuchKindError, PluginError
from local.plugin.settings import Settings

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "demo"}}
KINDS = {"resources": [{"name": "configmaps", "kind": "ConfigMap", "namespaced": True}]}


class Scripted:
    """Answers each request with the next (code, body) of its script; discovery always works."""

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, Any]]] = []
        self.seen: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                code, body = 200, KINDS
                if self.path == "/apis/example.com/v1":
                    code, body = 404, {}
                elif self.path != "/api/v1":
                    outer.seen.append(f"{self.command} {self.path} {self.headers['Authorization']}")
                    code, body = outer.script.pop(0)
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
