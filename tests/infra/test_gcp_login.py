"""Whether the cluster's plug-in and Docker have a login too: the doctor runs the programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.finding import Finding
from infra.gke.doctor import checks
from tests.fixtures_google import TOKEN, Cloud, config, only, program

PLUGIN, PUSH = "gke-gcloud-auth-plugin", "push"


def told(key: str) -> Finding:
    return only([item for item in checks.checks(config(), "gcp-a100") if item.key == key])


def test_the_plugin_and_dockers_helper_are_run_as_the_kubeconfig_and_docker_run_them(
    cloud: Cloud, machine: Path
) -> None:
    assert (told(PLUGIN).level, told(PUSH).level) == ("ok", "ok")
    assert (machine / "gke-gcloud-auth-plugin.called").read_text() == "--use_application_default_credentials\n"
    assert (machine / "docker-credential-gcloud.called").read_text() == "get\n"


@pytest.mark.parametrize(("name", "key"), [(PLUGIN, PLUGIN), ("docker-credential-gcloud", PUSH)])
def test_a_program_that_is_there_and_has_no_login_is_a_problem(
    cloud: Cloud, machine: Path, name: str, key: str
) -> None:
    program(machine, name, "could not find default credentials", 1)
    assert told(key).level == "problem"
    assert "could not find default credentials" in told(key).text
    assert "gcloud auth login --update-adc" in told(key).fix
    assert TOKEN not in str(told(key))


def test_docker_without_a_login_for_the_registry(cloud: Cloud, machine: Path) -> None:
    (machine / "config.json").write_text("{}")
    assert told(PUSH).fix.startswith("gcloud auth configure-docker us-central1-docker.pkg.dev ")
    (machine / "config.json").write_text('{"auths": {"us-central1-docker.pkg.dev": {}}}')
    assert told(PUSH).level == "ok"
    (machine / "config.json").write_text('{"credHelpers": {"us-central1-docker.pkg.dev": "missing"}}')
    assert "docker-credential-missing is not on PATH" in told(PUSH).text
