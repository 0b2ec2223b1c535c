"""The doctor against a server that answers as Google's APIs do: what it finds, what to do, what it cannot see."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.__main__ import main
from cli.doctor import diagnose
from infra.doctor import prerequisites
from infra.gke.doctor import checks, google_client
from infra.gke.doctor.google_client import NoAnswer, connect
from local import environment, paths
from tests.fixtures_google import (
    PROJECT,
    TOKEN,
    VALUES,
    ZONE,
    Cloud,
    config,
    found,
    only,
)


def test_nothing_stands_in_the_way_of_a_project_that_has_all(cloud: Cloud) -> None:
    assert found("problem") + found("warning") + found("unchecked") == []


def test_who_may_not_change_a_bucket_s_policy_is_told_before_the_cluster_is_paid_for(cloud: Cloud) -> None:
    stack = config(dataset={"input": ["gs://texts/corpus", "gs://gone"]})
    path = "/storage/b/texts/iam/testPermissions"
    cloud.answers[path] = {"permissions": ["storage.buckets.getIamPolicy"]}
    missing, policy = found("problem", stack)
    assert (policy.key, policy.text) == ("bucket texts", "you lack storage.buckets.setIamPolicy")
    assert policy.fix.startswith("gcloud storage buckets add-iam-policy-binding gs://texts ")
    assert (missing.key, missing.text) == ("bucket gone", "does not exist")
    cloud.answers[path] = {"permissions": ["storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy"]}
    assert found("problem", config(dataset={"input": ["gs://texts/corpus"]})) == []


@pytest.mark.parametrize(
    ("kind", "command", "name"),
    [
        ("machineTypes", "machine-types", "a2-highgpu-8g"),
        ("acceleratorTypes", "accelerator-types", "nvidia-tesla-a100"),
    ],
)
def test_a_type_that_the_zone_lacks(cloud: Cloud, kind: str, command: str, name: str) -> None:
    path = f"/compute/projects/{PROJECT}/zones/{ZONE}"
    cloud.answers[f"{path}/acceleratorTypes/nvidia-tesla-a100"] = (503, {})  # a later question without an answer
    del cloud.answers[f"{path}/{kind}/{name}"]
    finding = only(found("problem"))
    assert (finding.key, finding.text) == (name, "is not offered in us-central1-a")
    assert f"gcloud compute {command} list --filter name={name}" in finding.fix


def test_a_new_project_whose_apis_are_off_is_no_problem_and_what_cannot_be_seen_is_said(cloud: Cloud) -> None:
    disabled = {
        "error": {
            "message": "Compute Engine API has not been used\nin project 1 before",
            "details": [{"reason": "SERVICE_DISABLED", "metadata": {"service": "compute.googleapis.com"}}],
        }
    }
    services = cloud.answers[f"/serviceusage/projects/{PROJECT}/services:batchGet"]["services"]
    services[:] = [service for service in services if "compute" not in service["name"]]
    for path in [*cloud.answers]:
        if path.startswith("/compute"):
            cloud.answers[path] = (403, disabled)
    cloud.answers[f"/compute/projects/{PROJECT}/zones/{ZONE}/machineTypes/a2-highgpu-8g"] = (403, disabled)
    assert found("problem") == []
    assert only(found("warning")).fix == f"gcloud services enable compute.googleapis.com --project {PROJECT}"
    blind = {finding.key: finding for finding in found("unchecked")}
    assert set(blind) == {"machines", "quota"}
    assert blind["quota"].text == "Compute Engine API has not been used"


def test_missing_rights_name_the_role(cloud: Cloud) -> None:
    answer = cloud.answers[f"/cloudresourcemanager/projects/{PROJECT}:testIamPermissions"]
    answer["permissions"] = [name for name in checks.permissions(config()) if not name.startswith("container.")]
    finding = only(found("problem"))
    assert finding.text == "you lack container.clusters.create, container.clusters.connect"
    assert finding.fix.endswith("--member user:YOU --role roles/container.admin")


def test_a_version_that_a_feature_is_too_new_for(cloud: Cloud) -> None:
    channels = cloud.answers[f"/container/projects/{PROJECT}/locations/{ZONE}/serverConfig"]["channels"]
    channels[0]["defaultVersion"] = "1.32.2-gke.1500000"
    assert found("problem") == []
    # Flex-start came with 1.32.2-gke.1652000.
    stack = config(nodes={"consumption": "flex_start"})
    finding = next(item for item in found("problem", stack) if item.key == "GKE's version")
    assert finding.text == "REGULAR gives 1.32.2-gke.1500000; flex_start needs 1.32.2-gke.1652000 or newer"
    assert "flex_start" in finding.fix
    channels[0]["defaultVersion"] = "1.32.2-gke.1652000"
    assert found("problem", stack) == []
    # The kubelet's shutdown times, which Spot pools set, came with 1.35.0-gke.1171000.
    stack = config(nodes={"consumption": "spot"})
    assert [item.key for item in found("problem", stack)] == ["GKE's version"]
    channels[0]["defaultVersion"] = "1.35.0-gke.1171000"
    assert found("problem", stack) == []


@pytest.mark.parametrize("status", [403, 404])
def test_a_project_that_is_not_there_or_not_to_be_seen(cloud: Cloud, status: int) -> None:
    cloud.answers[f"/cloudbilling/projects/{PROJECT}/billingInfo"] = (status, {"error": {"message": "no"}})
    finding = found("problem")[0]
    assert finding.key == f"project {PROJECT}"
    assert "gcloud projects list" in finding.fix


def test_what_may_not_be_seen_is_no_problem(cloud: Cloud) -> None:
    cloud.answers["/storage/b/texts/iam/testPermissions"] = (403, {"error": {"message": "no"}})
    off = {"error": {"message": "Cloud Billing API is disabled", "details": [{"reason": "SERVICE_DISABLED"}]}}
    cloud.answers[f"/cloudbilling/projects/{PROJECT}/billingInfo"] = (403, off)
    stack = config(dataset={"input": ["gs://texts/corpus"]})
    assert found("problem", stack) == []
    assert [(item.key, item.text) for item in found("unchecked", stack)] == [
        (f"project {PROJECT}", "Cloud Billing API is disabled"),
        ("buckets", "no"),
    ]


def test_a_project_without_billing(cloud: Cloud) -> None:
    cloud.answers[f"/cloudbilling/projects/{PROJECT}/billingInfo"] = {"billingEnabled": False}
    assert only(found("problem")).fix.startswith(f"gcloud billing projects link {PROJECT}")


def test_without_credentials_it_says_what_it_could_not_see(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    finding = only(found("problem"))
    assert (finding.key, finding.fix) == ("credentials", "gcloud auth login --update-adc")
    assert "quota" in only(found("unchecked")).text


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", TOKEN)
    monkeypatch.setitem(google_client.SERVICES, "compute", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(NoAnswer, match=r"compute\.googleapis\.com does not answer"):
        connect().get("compute", "projects/x")


def test_the_command_ends_with_1_and_never_shows_the_token(
    cloud: Cloud, machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine / "gke-gcloud-auth-plugin").unlink()
    assert main(["doctor", "--stack", "gcp-a100"]) == 1
    shown = capsys.readouterr().out
    assert "✗ gke-gcloud-auth-plugin: is not on PATH" in shown
    assert "\n   gcloud components install gke-gcloud-auth-plugin\n" in shown
    assert "is still the placeholder your-project" in shown
    assert TOKEN not in shown


def test_the_command_ends_with_0_when_nothing_stands_in_the_way(
    cloud: Cloud, machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.doctor.stack_file_values", lambda _: VALUES)
    assert main(["doctor", "--stack", "gcp-a100"]) == 0
    assert capsys.readouterr().out.endswith("\nnothing stands in the way\n")


def test_a_command_that_changes_the_configuration_names_the_stack(cloud: Cloud) -> None:
    """Without it Pulumi would change the stack that happens to be selected."""
    del cloud.answers[f"/cloudbilling/projects/{PROJECT}/billingInfo"]
    finding = next(item for item in diagnose("mine", VALUES) if item.key == f"project {PROJECT}")
    assert finding.fix == "gcloud projects list   # then: pulumi config set --stack mine --path gke.project ID"
    without = {**VALUES, "gke": {"zone": ZONE}}
    finding = next(item for item in diagnose("mine", without) if item.key == "gke.project")
    assert finding.text == "missing; set it with `pulumi config set --stack mine --path gke.project VALUE`"


def test_problems_of_the_configuration_come_first(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cli.doctor.stack_file_values", lambda _: {"cluster": {"kind": "moon"}})
    assert main(["doctor", "--stack", "gcp-a100"]) == 1
    assert "✗ cluster.kind: 'moon' is not known" in capsys.readouterr().out.splitlines()[1]


def test_without_a_login_to_pulumi_there_is_no_place_for_the_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path))
    assert (prerequisites.state().level, prerequisites.state().fix[:12]) == ("problem", "pulumi login")


def test_a_cloud_s_state_does_not_belong_where_the_local_stack_has_its_own(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shell after `eval "$(trainyard local env)"`."""
    monkeypatch.setenv("PULUMI_BACKEND_URL", environment.state_url(paths.PULUMI_STATE))
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    assert prerequisites.state().level == "ok"
    finding = next(item for item in diagnose("gcp-a100") if item.key == "state")
    assert finding.level == "problem"
    assert "an empty passphrase" in finding.text
