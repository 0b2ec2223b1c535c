"""Google Cloud as the doctor sees it: a server that answers like Google's APIs, and programs on PATH."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from infra.config import StackConfig
from infra.features import features
from infra.finding import Finding, Level
from infra.gke.doctor import checks, google_client
from infra.gke.services import apis
from infra.parse import parse
from tests.served import served

TOKEN = "ya29.secret-token"
PROJECT, ZONE, REGION = "my-project", "us-central1-a", "us-central1"
CLUSTER = f"/container/projects/{PROJECT}/locations/{ZONE}/clusters/trainyard-gcp-a100"


VALUES: dict[str, Any] = {
    "cluster": {"kind": "gke"},
    "gke": {"project": PROJECT, "zone": ZONE},
    "nodes": {"machineType": "a2-highgpu-8g", "max": 2},
    "storage": {"kind": "nfs", "sizeGib": 1000},
}


def config(**changes: dict[str, Any]) -> StackConfig:
    merged = {section: {**VALUES.get(section, {}), **change} for section, change in changes.items()}
    return parse({**VALUES, **merged}, "gcp-a100")


def quotas(**limits: tuple[float, float]) -> dict[str, Any]:
    return {"quotas": [{"metric": name, "limit": limit, "usage": usage} for name, (limit, usage) in limits.items()]}


class Cloud:
    """The answers by path: a body, or (status, body). Any other path is 404."""

    def __init__(self) -> None:
        project = f"/cloudresourcemanager/projects/{PROJECT}"
        zone = f"/compute/projects/{PROJECT}/zones/{ZONE}"
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {
            f"{project}:testIamPermissions": {
                "permissions": [right for feature in features("gke").values() for right in feature.permissions]
            },
            f"/cloudbilling/projects/{PROJECT}/billingInfo": {
                "billingEnabled": True,
                "billingAccountName": "accounts/1",
            },
            f"/serviceusage/projects/{PROJECT}/services:batchGet": {
                "services": [{"name": f"projects/1/services/{name}", "state": "ENABLED"} for name in apis(config())]
            },
            f"/compute/projects/{PROJECT}/regions/{REGION}": quotas(
                NVIDIA_A100_GPUS=(16, 0),
                A2_CPUS=(200, 0),
                CPUS=(72, 0),
                SSD_TOTAL_GB=(2000, 0),
            ),
            f"/compute/projects/{PROJECT}": quotas(GPUS_ALL_REGIONS=(16, 0)),
        }
        self.answers[f"/container/projects/{PROJECT}/locations/{ZONE}/serverConfig"] = {
            "channels": [{"channel": "REGULAR", "defaultVersion": "1.35.0-gke.1171000"}]
        }
        for path in (
            "machineTypes/a2-highgpu-8g",
            "machineTypes/e2-standard-4",
            "diskTypes/pd-balanced",
            "acceleratorTypes/nvidia-tesla-a100",
        ):
            self.answers[f"{zone}/{path}"] = {"name": path}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cloud]:
    made = Cloud()
    monkeypatch.setenv("PATH", str(tmp_path))  # none of this machine's programs, which have its own logins

    def answer(request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        path = request.path.split("?")[0]
        made.asked.append(request.path)
        status, body = 404, {"error": {"message": f"{path} was not found"}}
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            status, body = 401, {"error": {"message": "Request had invalid authentication credentials."}}
        elif path in made.answers:
            found = made.answers[path]
            status, body = found if isinstance(found, tuple) else (200, found)
        return status, json.dumps(body).encode()

    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with served(answer) as address:
        for name in google_client.SERVICES:
            monkeypatch.setitem(google_client.SERVICES, name, f"http://{address}/{name}")
        yield made


def found(level: Level, stack_config: StackConfig | None = None) -> list[Finding]:
    """Return the findings of one level, without those about this machine's programs."""
    local = ("gke-gcloud-auth-plugin", "kubectl", "image", "push")
    return [
        finding
        for finding in checks.checks(stack_config or config(), "gcp-a100")
        if finding.level == level and finding.key not in local
    ]


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def program(folder: Path, name: str, output: str, code: int = 0) -> None:
    """Write a program that saves its arguments to NAME.called and prints `output`."""
    text = f"#!/bin/sh\necho \"$@\" > {folder}/{name}.called\nprintf '%s' '{output}' >&{1 if code == 0 else 2}\n"
    (folder / name).write_text(f"{text}exit {code}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with every program that the doctor looks for, and a Google login."""
    for name in ("pulumi", "kubectl"):
        program(tmp_path, name, "v3.250.0")
    builder = {"Name": "far", "Driver": "remote", "Current": True, "Nodes": [{"Status": "running"}]}
    program(tmp_path, "docker", json.dumps(builder))
    program(tmp_path, "gke-gcloud-auth-plugin", json.dumps({"status": {"token": TOKEN}}))
    program(tmp_path, "docker-credential-gcloud", json.dumps({"Secret": TOKEN}))
    (tmp_path / "config.json").write_text('{"credHelpers": {"us-central1-docker.pkg.dev": "gcloud"}}')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://bucket")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    return tmp_path
