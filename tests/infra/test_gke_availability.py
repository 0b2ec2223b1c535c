"""Whether a zone has the machines: by Google's answer where somebody is logged in, else by the dated table."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pulumi
import pytest

from infra.config import ConfigError, StackConfig
from infra.gke import availability
from infra.gke.doctor.google_client import SERVICES
from infra.parse import parse
from review.recording import record
from tests.infra.recorded import changed

#: Before the fixture replaces it.
ENGINE_RUNS = availability._engine_runs
PATH = "/projects/your-project/zones/us-central1-d/machineTypes/a2-highgpu-8g"


class Google:
    """compute.machineTypes: path -> HTTP status, and the paths that were asked for."""

    def __init__(self) -> None:
        self.statuses: dict[str, int] = {}
        self.asked: list[str] = []


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    made = Google()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            self.send_response(made.statuses.get(self.path, 404))
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setitem(SERVICES, "compute", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(availability, "_engine_runs", lambda: True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv(availability.TOKEN, "token")
    yield made
    server.shutdown()
    server.server_close()


def config(zone: str) -> StackConfig:
    return parse(changed("gcp-a100", gke={"zone": zone}), "gcp-a100")


def problems(zone: str) -> list[str]:
    stack = config(zone)
    assert stack.nodes
    return availability.problems(stack)


def test_a_zone_that_is_newer_than_the_table_is_taken(google: Google) -> None:
    google.statuses[PATH] = 200
    assert problems("us-central1-d") == []
    assert google.asked == [PATH]


def test_a_zone_that_lost_the_machine_since_is_refused(google: Google) -> None:
    (line,) = problems("us-central1-a")
    assert line.startswith("gke.zone: Google offers no a2-highgpu-8g in us-central1-a to project your-project; ")


@pytest.mark.parametrize("status", [401, 403, 503])
def test_where_google_does_not_say_the_table_does(google: Google, status: int) -> None:
    google.statuses[PATH] = status
    (line,) = problems("us-central1-d")
    assert "is not offered in us-central1-d (as of" in line
    google.statuses[PATH.replace("1-d", "1-a")] = status
    assert problems("us-central1-a") == []


def test_where_google_cannot_be_reached_the_table_says(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SERVICES, "compute", "http://127.0.0.1:9")
    assert problems("us-central1-a") == []
    assert problems("us-central1-d") != []


def test_credentials_that_are_no_credentials_are_none(
    google: Google, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(availability.TOKEN)
    (tmp_path / "application_default_credentials.json").write_text("{}")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    assert availability.has_credentials()
    assert problems("us-central1-a") == []
    assert google.asked == []


def test_a_recording_asks_nobody(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "_engine_runs", ENGINE_RUNS)
    assert record("gcp-a100").resources
    assert google.asked == []
    with pytest.raises(pulumi.RunError, match=r"gke\.zone: a2-highgpu-8g is not offered in us-central1-d \(as of"):
        record("gcp-a100", changed("gcp-a100", gke={"zone": "us-central1-d"}))


def test_without_a_login_it_is_a_rule_like_the_others() -> None:
    with pytest.raises(ConfigError, match=r"gke\.zone: a2-highgpu-8g is not offered in us-central1-d \(as of"):
        config("us-central1-d")
