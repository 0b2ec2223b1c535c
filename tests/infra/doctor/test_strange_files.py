"""Other people's files in another shape: each is one line with the real reason, and a remedy that can help."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from cli import CommandError
from cli.cluster import connect as connect_cluster
from infra.config import ConfigError
from infra.eks.doctor import aws_client
from infra.existing import find_context
from infra.gke.doctor import google_client
from tests.conftest import OFFER, write_kubeconfig


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_kubeconfig_is_read_in_every_encoding_in_which_kubectl_reads_it(encoding: str, tmp_path: Path) -> None:
    """PowerShell's `>` writes UTF-16 with its mark; `certificate-authority` is a path beside the file."""
    file = write_kubeconfig(tmp_path / "kubeconfig", "trainyard-local", OFFER)
    content = yaml.safe_load(file.read_text())
    content["clusters"][0]["cluster"].update({"server": "https://localhost:1", "insecure-skip-tls-verify": True})
    file.write_bytes(yaml.safe_dump(content).encode(encoding))
    assert find_context("trainyard-local", str(file), "local")[0] == file
    assert connect_cluster("trainyard-local", str(file)).configuration.host == "https://localhost:1"


KUBECONFIGS = {
    "UTF-16 without a mark": "clusters: []".encode("utf-16-le"),
    "a list": b"- a\n- b\n",
    "contexts without names": b"contexts: [{context: {cluster: a}}]\n",
    "bad YAML": b"clusters: [\n",
    "a context of text": b"clusters: []\ncontexts: [{name: mine, context: there}]\nusers: []\n",
    "a name that is a list": b"contexts: [{name: [mine], context: {}}]\n",
    "a deep file": 1000 * b"[",
    **{
        f"extensions: {given}": (
            f"clusters: [{{name: c, cluster: {{server: 3, extensions: {given}}}}}]\n"
            "contexts: [{name: mine, context: {cluster: c, user: u}}]\nusers: []\n"
        ).encode()
        for given in ("3", "[3]", "[{name: trainyard}]", "[{name: trainyard, extension: {of: another}}]")
    },
}


@pytest.mark.parametrize("content", KUBECONFIGS.values(), ids=KUBECONFIGS.keys())
def test_a_kubeconfig_that_is_none_is_one_line_that_names_it(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        find_context("mine", str(file), "local")
    (line,) = caught.value.lines
    assert line.startswith("cluster.kubeconfig: ")
    assert str(file) in line
    assert "\n" not in line
    with pytest.raises(CommandError):
        connect_cluster("mine", str(file))


V1BETA1 = "client.authentication.k8s.io/v1beta1"
#: What a plug-in prints and how it ends, in a shell's words -> words of the reason.
PLUGINS = {
    "echo 'run aws sso login' >&2; exit 255": "process returned 255. run aws sso login",
    "echo Enter MFA code:": "failed to decode process output",
    f'echo \'{{"apiVersion": "{V1BETA1[:-5]}", "kind": "ExecCredential", "status": {{}}}}\'': "does not match",
    f'echo \'{{"apiVersion": "{V1BETA1}", "kind": "ExecCredential", "status": {{}}}}\'': ": missing token",
    f'echo \'{{"apiVersion": "{V1BETA1}", "kind": "ExecCredential", "status": null}}\'': "it failed",
}


@pytest.mark.parametrize(("command", "reason"), PLUGINS.items())
def test_a_plug_in_that_gives_no_credentials_is_told_and_the_cluster_is_not_asked_without(
    command: str, reason: str, tmp_path: Path
) -> None:
    file = write_kubeconfig(tmp_path / "config", "mine", OFFER)
    content = yaml.safe_load(file.read_text())
    plugin = {"apiVersion": V1BETA1, "command": "sh", "args": ["-c", command]}
    content["users"][0]["user"] = {"exec": plugin}
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(CommandError, match=r"^the program that the kubeconfig names gives no credentials: ") as caught:
        connect_cluster("mine", str(file))
    assert reason in str(caught.value)


#: A file of credentials -> words of the reason; None: there is no file.
SERVICE = {"type": "service_account", "client_email": "a@b", "token_uri": "https://localhost:1"}
GOOGLE: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "was not found"),
    "a list": (b"[]", "has no attribute"),
    "a service account without a key": (json.dumps(SERVICE).encode(), "private_key"),
}


@pytest.mark.parametrize(("content", "reason"), GOOGLE.values(), ids=GOOGLE.keys())
def test_a_file_of_google_credentials_that_cannot_be_used_is_named_with_its_variable(
    content: bytes | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN", raising=False)
    with pytest.raises(google_client.NoAnswer) as caught:
        google_client.connect(patience=(1, 1))
    assert str(caught.value).startswith(f"GOOGLE_APPLICATION_CREDENTIALS names {file}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.fix.startswith("unset GOOGLE_APPLICATION_CREDENTIALS"), "no login helps while it is set"


def printing(text: str) -> str:
    """A credential_process that answers so."""
    return f"[default]\ncredential_process = {shlex.join([sys.executable, '-c', f'print({text!r})'])}\n"


#: ~/.aws/config -> words of the reason.
AWS: dict[str, tuple[bytes, str]] = {
    "UTF-16": ("[default]\nregion = a\n".encode("utf-16"), "Unable to parse config file"),
    "a process that is missing": (b"[default]\ncredential_process = /nowhere/vault get\n", "/nowhere/vault"),
    "a process that prints no JSON": (printing("Enter MFA code:").encode(), "Expecting value"),
}


@pytest.mark.parametrize(("content", "reason"), AWS.values(), ids=AWS.keys())
def test_a_configuration_of_aws_that_cannot_be_used_is_told_with_its_reason(
    content: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_bytes(content)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(aws_client.NoAnswer) as caught:
        aws_client.connect("us-east-2")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
