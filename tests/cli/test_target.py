"""A stack with its state in .local/ gets the local node's environment; any other gets the user's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cli import CommandError, target
from cli.__main__ import main
from cli.cluster import TrainingJob, connect
from local import environment


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the local stack's state; the local node's backend differs from the user's."""
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://elsewhere")
    monkeypatch.setattr(target, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "prepare", lambda: None)
    monkeypatch.setattr(environment, "settings", lambda: {"PULUMI_BACKEND_URL": "file:///here"})
    path = tmp_path / ".local/state/.pulumi/stacks/trainyard/local.json"
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize("kept", [True, False])
def test_a_local_stack_brings_its_environment(
    kept: bool, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulumi = tmp_path / "bin" / "pulumi"
    pulumi.parent.mkdir()
    pulumi.write_text('#!/bin/sh\necho "error: backend $PULUMI_BACKEND_URL" >&2; exit 1\n')
    pulumi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{pulumi.parent}:/usr/bin:/bin")
    if kept:
        state.touch()
    with pytest.raises(CommandError, match="^backend file:///here$" if kept else "^backend s3://elsewhere$"):
        target.target_of("local")


@pytest.mark.parametrize(
    ("stack", "told", "said"),
    [
        ("local", None, "stack local is not up; `make up` brings it up"),
        ("local", "no stack named 'local' found", "stack local is not up; `make up`"),
        ("local", "PULUMI_ACCESS_TOKEN must be set for login", "stack local is not up; `make up`"),
        ("gcp-c3", None, "pulumi is not on PATH; install it"),
        ("gcp-c3", "no stack named 'gcp-c3' found", "no stack 'gcp-c3' here; there are: dev, mine; `trainyard up --"),
        ("nine", "no stack named 'nine' found", "no stack 'nine' here; there are: dev, mine; `trainyard init nine`"),
        ("mine", "PULUMI_ACCESS_TOKEN must be set for login", "Pulumi is not logged in, so nothing is known of"),
        ("mine", "passphrase must be set with PULUMI_CONFIG", "the secrets of stack mine need their passphrase;"),
    ],
)
def test_a_stack_that_is_not_there_is_said_with_the_command_that_makes_it(
    stack: str,
    told: str | None,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target, "is_local", lambda stack: False)
    if told is not None:
        pulumi = tmp_path / "pulumi"
        pulumi.write_text(
            f"""#!/bin/sh\n[ "$2" = ls ] && echo '[{{"name": "dev"}}, {{"name": "mine"}}]' && exit\n"""
            f"""cat >&2 <<'END'\nerror: {told}\nEND\nexit 1\n"""
        )
        pulumi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["status", "--stack", stack]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("given", "said"), [("nine", ""), ("GCP-C3", "did you mean gcp-c3? "), ("gcp_a100", "did you mean gcp-a100? ")]
)
def test_a_stack_without_a_file_is_said_with_those_that_have_one(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", "--stack", given]) == 2
    told = f"no stack '{given}'; there are: aws-.*, local-sweep; {re.escape(said)}`trainyard init {given}` writes"
    assert re.search(told, capsys.readouterr().err)


def test_a_home_folder_is_found_where_the_shell_does_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def volume_pod(*given: Any) -> Any:
        asked.append(given)
        raise CommandError("asked")

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("cli.upload.volume_of", lambda *given: given)
    monkeypatch.setattr("cli.upload.volume_pod", volume_pod)
    (tmp_path / "book.txt").touch()
    assert main(["upload", "~/book.txt", "--kubeconfig=~/kube", "--stack=a~b"]) == 1
    assert asked == [(("a~b", f"{tmp_path}/kube"),)]


@pytest.mark.parametrize(("given", "used"), [("/mine", "/mine"), (None, "/its")])
def test_a_kubeconfig_that_is_given_goes_before_the_stacks(
    given: str | None, used: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {"context": "c", "namespace": "n", "jobName": "j", "kubeconfig": "/its"}
    monkeypatch.setattr(target, "_outputs", lambda stack: outputs)
    assert target.target_of("s", "", "another", given).kubeconfig == used


#: A kubeconfig but for what its cluster and its user have.
KUBECONFIG = """clusters: [{name: c, cluster: {server: "https://localhost:1", %s}}]
contexts: [{name: anywhere, context: {cluster: c, user: u}}]
users: [{name: u, user: {%s}}]
"""


@pytest.mark.parametrize(
    "text",
    [
        "a: [b\n  c: :",
        "just text",
        2000 * "[",
        KUBECONFIG % ("certificate-authority-data: '***a'", ""),
        KUBECONFIG % ("", "auth-provider: {name: gcp}"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(CommandError, match=f"^{tmp_path}/config cannot be used: [^\n]+$"):
        connect("anywhere", str(tmp_path / "config"))


def test_a_cluster_that_does_not_answer_is_one_line_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config").write_text(KUBECONFIG % ("", ""))
    job = TrainingJob.of(target.Target("anywhere", "space", "job", None, {}, kubeconfig=str(tmp_path / "config")))
    with pytest.raises(CommandError, match=r"^the cluster does not answer: [^\n]*Connection refused"):
        job.read()
    assert not caplog.records, "no warning for each retry"


def test_the_doctor_sees_a_local_stack_with_the_local_environment(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state.touch()
    main(["doctor", "--stack", "local"])
    assert "state: kept at file:///here" in capsys.readouterr().out
