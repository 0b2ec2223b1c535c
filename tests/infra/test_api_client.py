"""Clusters whose authority lacks what Python 3.13 and newer ask for are reached as kubectl reaches them."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes import client, config
from urllib3.exceptions import MaxRetryError

from infra.api_client import api_client
from tests.infra.test_install import certificate
from tests.served import served

#: What an API server answers to the question for its version.
VERSION = dict.fromkeys(("major", "minor", "gitVersion", "gitCommit", "gitTreeState"), "v1.34.4")
VERSION |= dict.fromkeys(("buildDate", "goVersion", "compiler", "platform"), "")


def authority(folder: Path, key: ec.EllipticCurvePrivateKey) -> bytes:
    """As EKS's: with basic constraints and no identifiers (awslabs/mcp issue 3791)."""
    return certificate("authority", folder, key, None).read_bytes()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The entry of a kubeconfig for a server like EKS's."""
    key = ec.generate_private_key(ec.SECP256R1())
    trusted = authority(tmp_path, key)
    serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serves.load_cert_chain(certificate("localhost", tmp_path, key, x509.load_pem_x509_certificate(trusted)))
    data = base64.b64encode(trusted).decode()
    with served(lambda _: (200, json.dumps(VERSION).encode()), serves) as address:
        yield {"server": f"https://localhost:{address.rpartition(':')[2]}", "certificate-authority-data": data}


def write(folder: Path, cluster: dict[str, Any]) -> str:
    content = {
        "clusters": [{"name": "eks", "cluster": cluster}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "eks", "context": {"cluster": "eks", "user": "me"}}],
    }
    (folder / "config").write_text(json.dumps(content))
    return str(folder / "config")


def ask(api: client.ApiClient) -> str:
    api.rest_client.pool_manager.connection_pool_kw["retries"] = 0
    return client.VersionApi(api).get_code().git_version


@pytest.fixture
def python_313(monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib3 sets this Python's default flags by its version."""
    monkeypatch.setattr("urllib3.util.ssl_.sys", SimpleNamespace(version_info=(3, 13, 0)))


@pytest.mark.usefixtures("python_313")
def test_an_authority_of_eks_is_trusted_by_python_3_13_too(cluster: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path, cluster)
    with pytest.raises(MaxRetryError, match=r"Missing Authority Key Identifier|key usage extension"):
        ask(config.new_client_from_config(config_file=file, context="eks"))
    assert ask(api_client("eks", file)) == "v1.34.4"


def test_another_authority_or_name_is_not_trusted(cluster: dict[str, Any], tmp_path: Path) -> None:
    stranger = authority(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    other = {"certificate-authority-data": base64.b64encode(stranger).decode()}
    for wrong in (other, {"server": cluster["server"].replace("localhost", "127.0.0.1")}):
        with pytest.raises(MaxRetryError, match="CERTIFICATE_VERIFY_FAILED"):
            ask(api_client("eks", write(tmp_path, cluster | wrong)))
    with pytest.raises(MaxRetryError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(api_client("eks", write(tmp_path, {"server": cluster["server"]})))


def test_a_kubeconfig_may_ask_for_no_verification(cluster: dict[str, Any], tmp_path: Path) -> None:
    insecure = {"server": cluster["server"], "insecure-skip-tls-verify": True}
    with pytest.warns(match="Unverified"):
        assert ask(api_client("eks", write(tmp_path, insecure))) == "v1.34.4"


def test_no_two_connections_share_a_context(
    cluster: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """urllib3 changes it at each connection; two threads crashed in it."""
    changed: list[ssl.SSLContext] = []
    monkeypatch.setattr(ssl.SSLContext, "set_alpn_protocols", lambda self, _: changed.append(self))
    api = api_client("eks", write(tmp_path, cluster))
    assert [ask(api), ask(api)] == ["v1.34.4"] * 2
    assert len({id(context) for context in changed}) == len(changed) == 2
