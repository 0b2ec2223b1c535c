"""Whether a zone has the machines, by Google's answer where somebody is logged in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.gke import availability
from infra.gke.doctor.google_client import SERVICES
from infra.parse import parse
from review.recording import record
from tests.infra.recorded import changed

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
    monkeypatch.setattr(availability.settings, "get_monitor", lambda: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv(availability.TOKEN, "token")
    yield made
    server.shutdown()
    server.server_close()


def problems(zone: str) -> list[str]:
    return list(availability.problems(parse(changed("gcp-a100", gke={"zone": zone}), "gcp-a100")))


def test_a_zone_without_the_machine_is_refused(google: Google) -> None:
    google.statuses[PATH] = 200
    assert problems("us-central1-d") == []
    assert google.asked == [PATH]
    (line,) = problems("us-central1-a")
    assert line.startswith("gke.zone: Google offers no a2-highgpu-8g in us-central1-a to project your-project; ")


@pytest.mark.parametrize("status", [401, 403, 503])
def test_where_google_does_not_say_nothing_is_refused(google: Google, status: int) -> None:
    google.statuses[PATH] = status
    assert problems("us-central1-d") == []


def test_without_credentials_that_are_any_and_in_a_recording_nobody_is_asked(
    google: Google, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(availability.TOKEN)
    (tmp_path / "application_default_credentials.json").write_text("{}")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    assert availability.has_credentials()
    assert problems("us-central1-a") == []
    monkeypatch.undo()
    monkeypatch.setenv(availability.TOKEN, "token")
    assert record("gcp-a100").resources
    assert google.asked == []
