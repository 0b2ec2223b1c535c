"""Whether one login serves Pulumi, the cluster's plug-in and Docker: the doctor runs the programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.doctor.finding import Finding
from infra.gke.doctor import checks
from tests.fixtures_google import TOKEN, Cloud, config, log_in, only, program


def login_findings(subject: str) -> Finding:
    return only([item for item in checks.checks(config(), "gcp-a100") if item.subject == subject])


def test_the_plugin_and_dockers_helper_are_run_and_speak_for_the_one_who_deploys(cloud: Cloud, machine: Path) -> None:
    for subject in ("gke-gcloud-auth-plugin", "push"):
        assert login_findings(subject).level == "ok"
        assert "me@example.org, as Pulumi does" in login_findings(subject).text
    # As the kubeconfig calls it.
    called = (machine / "gke-gcloud-auth-plugin.called").read_text()
    assert called == "--use_application_default_credentials\n"
    assert (machine / "docker-credential-gcloud.called").read_text() == "get\n"


def test_a_login_that_serves_one_of_two_identities_is_said(cloud: Cloud, machine: Path) -> None:
    log_in(machine, docker="other-token")
    finding = login_findings("push")
    assert finding.level == "warning"
    assert finding.text.endswith("speaks for other@example.org, and Pulumi for me@example.org: both need their rights")
    assert finding.fix == "gcloud auth login --update-adc"
    log_in(machine, docker="unknown-token")
    assert login_findings("push").level == "unchecked"


@pytest.mark.parametrize("name", ["gke-gcloud-auth-plugin", "docker-credential-gcloud"])
@pytest.mark.parametrize(
    ("output", "code", "reason"),
    [
        ("could not find default credentials", 1, "could not find default credentials"),
        ("{}", 0, "in its answer"),
        (TOKEN, 0, "its answer is not JSON"),
    ],
)
def test_a_program_that_is_there_and_has_no_login_is_a_problem(
    cloud: Cloud, machine: Path, name: str, output: str, code: int, reason: str
) -> None:
    program(machine, name, output, code)
    finding = login_findings("push" if name.startswith("docker") else name)
    assert (finding.level, finding.fix) == ("problem", "gcloud auth login --update-adc")
    assert reason in finding.text
    assert TOKEN not in finding.text


def test_docker_without_a_helper_for_the_registry(cloud: Cloud, machine: Path) -> None:
    (machine / "config.json").write_text("{}")
    assert login_findings("push").fix == "gcloud auth configure-docker us-central1-docker.pkg.dev"
    (machine / "config.json").write_text('{"auths": {"us-central1-docker.pkg.dev": {}}}')
    assert login_findings("push").level == "ok"
    (machine / "config.json").write_text('{"credsStore": "missing"}')
    assert "docker-credential-missing gives no credentials" in login_findings("push").text
