"""How long a job may take, which runner reaches a cluster, and from where a stack is destroyed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cli import CommandError, deploy
from cli.__main__ import main
from infra.eks.doctor import aws_client
from infra.eks.section import KEEP_RELEASES
from infra.parse import parse
from infra.stackfiles import stack_file_values
from tests.infra.recorded import CLOUD_STACKS, recorded


@pytest.mark.parametrize("stack", CLOUD_STACKS)
def test_a_limit_follows_the_stacks_keys(stack: str) -> None:
    values = stack_file_values(stack)
    config = parse(values, stack)
    limit = deploy.minutes("up", config)
    for section, more in (("dataset", {}), ("check", {"enabled": True})):
        minutes = getattr(config, section).timeout_minutes + 7
        longer = {**values, section: {**values.get(section, {}), **more, "timeoutMinutes": minutes}}
        assert deploy.minutes("up", parse(longer, stack)) >= limit + 7
    assert deploy.minutes("destroy", config) == deploy.MINUTES["destroy"]


@pytest.mark.parametrize(
    ("stack", "runner", "backend", "why"),
    [
        ("aws-g4dn", "self-hosted", "", "AWS credentials"),
        ("gcp-c3", "self-hosted", "s3://bucket", "AWS credentials"),
        ("gcp-c3", "github-hosted", "gs://bucket", "GitHub's machines"),
        ("gcp-c3", "self-hosted", "gs://bucket", ""),
        ("aws-g4dn", "", "s3://bucket", ""),
    ],
)
def test_a_job_ends_before_its_machine_or_its_credentials(
    stack: str, runner: str, backend: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_ENVIRONMENT", runner)
    monkeypatch.setenv("PULUMI_BACKEND_URL", backend)
    reason = deploy.shortened(deploy.configuration(stack))
    assert (why in reason) if why else not reason


def test_a_runner_that_does_not_reach_the_cluster_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Aws:
        def ask(self, service: str, operation: str, **given: Any) -> dict[str, Any]:
            return {"cluster": {"endpoint": f"https://{'0' * 32}.invalid"}}

    monkeypatch.setattr(aws_client, "own_address", lambda: "198.51.100.9")
    monkeypatch.setattr(aws_client, "connect", lambda region: Aws())
    assert main(["deploy", "reach", "aws-g4dn"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: eks.apiAllowedCidrs: ")
    assert (
        "excludes 198.51.100.9 of this machine, which cannot reach the cluster; set the variable RUNNER to a runner"
        in error
    )
    # A runner inside the network reaches the private endpoint, whatever the list says.
    monkeypatch.setattr(deploy, "_answers", lambda host: True)
    assert main(["deploy", "reach", "aws-g4dn"]) == 0
    monkeypatch.setattr(deploy, "_answers", lambda host: False)
    allowed = stack_file_values("aws-g4dn")["eks"]["apiAllowedCidrs"][0].partition("/")[0]
    monkeypatch.setattr(aws_client, "own_address", lambda: allowed)
    assert main(["deploy", "reach", "aws-g4dn"]) == 0
    # GKE's DNS endpoint is reachable from everywhere; IAM guards it.
    assert main(["deploy", "reach", "gcp-c3"]) == 0


def test_a_stack_is_destroyed_from_where_its_cluster_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a forgotten stack costs money until somebody with an allowed address destroys it."""
    monkeypatch.setattr(deploy, "unreachable", lambda config: "not from here")
    monkeypatch.setattr(deploy, "change", lambda *_: 0)
    assert main(["deploy", "destroy", "aws-g4dn"]) == 0
    assert main(["deploy", "up", "aws-g4dn"]) == 2
    objects = [item for item in recorded("aws-g4dn").resources if item.type.startswith("kubernetes:")]
    assert len(objects) > 20
    assert all(item.deleted_with for item in objects if not item.type.endswith("Patch"))


def test_a_pulumi_that_has_no_backend_ends_the_command_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pulumi").write_text("#!/bin/sh\necho 'error: PULUMI_ACCESS_TOKEN must be set' >&2; exit 255\n")
    (tmp_path / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert main(["deploy", "up", "gcp-c3"]) == 1
    told = "error: pulumi stack select --create gcp-c3: ended with 255; mend what Pulumi says above"
    assert capfd.readouterr().err.splitlines() == ["error: PULUMI_ACCESS_TOKEN must be set", told]
    with pytest.raises(CommandError, match="pulumi stack export --stack gcp-c3: ended with 255"):
        deploy.pending("gcp-c3")


@pytest.mark.parametrize(("command", "keeps"), [("drift", True), ("up", False)])
def test_drift_alone_lets_nodes_keep_their_release(
    command: str, keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pulumi").write_text(f'#!/bin/sh\necho "kept=${KEEP_RELEASES}"\n')
    (tmp_path / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path))
    run = deploy.Run()
    assert run.start(command, "aws-g4dn").wait() == 0
    assert ("kept=true" in run.text()) is keeps
