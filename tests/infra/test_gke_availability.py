"""Whether a zone has the machines, by Google's answer where somebody is logged in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.gke import availability
from review.recording import record
from tests.fixtures_google import PROJECT, Cloud, config

PATH = f"/compute/projects/{PROJECT}/zones/us-central1-a"


@pytest.fixture
def google(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setattr(availability.settings, "get_monitor", lambda: None)
    return cloud


def problems(**nodes: Any) -> list[str]:
    return availability.problems(config(nodes=nodes))


def test_types_that_a_zone_lacks_are_refused(google: Cloud) -> None:
    assert problems() == []
    del google.answers[f"{PATH}/machineTypes/a2-highgpu-8g"], google.answers[f"{PATH}/diskTypes/pd-balanced"]
    machine, disk = problems()
    assert machine.startswith("gke.zone: Google offers no a2-highgpu-8g in us-central1-a to project my-project; ")
    assert "`gcloud compute disk-types list --filter name=pd-balanced`" in disk
    assert problems(zones=["us-central1-f"])[0].startswith(
        "nodes.zones: Google offers no a2-highgpu-8g in us-central1-f"
    )


@pytest.mark.parametrize("status", [401, 403, 503])
def test_where_google_does_not_say_nothing_is_refused_but_what_it_said_before(google: Cloud, status: int) -> None:
    google.answers[f"{PATH}/diskTypes/pd-balanced"] = (status, {})
    assert problems() == []
    del google.answers[f"{PATH}/machineTypes/a2-highgpu-8g"]
    (machine,) = problems()
    assert "offers no a2-highgpu-8g" in machine


def test_without_credentials_that_are_any_and_in_a_recording_nobody_is_asked(
    google: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    google.answers.clear()
    with monkeypatch.context() as other:
        other.delenv(availability.TOKEN)
        other.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        assert problems() == []
        (tmp_path / "application_default_credentials.json").write_text("{}")
        assert availability.has_credentials()
        assert problems() == [], "the file is no login"
    monkeypatch.undo()
    monkeypatch.setenv(availability.TOKEN, "token")
    assert record("gcp-a100").resources
    assert google.asked == []
