"""The user's kubeconfig and the certificates in it."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from kubernetes.config import kube_config

from local import certs, kubeconfig, paths


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CERTIFICATES", "KUBECONFIG", "STORAGE"):
        monkeypatch.setattr(paths, name, tmp_path / name.lower())
    for name in ("CA", "SERVICE_ACCOUNT_KEY", "SERVICE_ACCOUNT_PUBLIC", "MANIFEST"):
        monkeypatch.setattr(certs, name, paths.CERTIFICATES / getattr(certs, name).name)
    assert certs.ensure()
    return tmp_path


def test_the_official_client_reads_it_and_nobody_else_may(state: Path) -> None:
    kubeconfig.write_user("base@sha256:1", "etcd@sha256:2")
    assert stat.S_IMODE(paths.KUBECONFIG.stat().st_mode) == 0o600
    contexts, current = kube_config.list_kube_config_contexts(str(paths.KUBECONFIG))
    assert list(contexts) == [current]
    context = cast("dict[str, Any]", current)
    assert context["name"] == "trainyard-local"
    assert context["context"]["cluster"] == "trainyard-local"


def test_it_says_what_the_node_offers(state: Path) -> None:
    kubeconfig.write_user("base@sha256:1", "etcd@sha256:2")
    cluster = json.loads(paths.KUBECONFIG.read_text())["clusters"][0]["cluster"]
    assert cluster["extensions"] == [
        {
            "name": "trainyard",
            "extension": {
                "registry": "198.18.0.2:5000",
                "registryInsecure": True,
                "registryAuth": str(paths.CERTIFICATES / "registry.json"),
                "builder": "buildah",
                "storagePath": str(state / "storage"),
                "baseImage": "base@sha256:1",
                "etcdImage": "etcd@sha256:2",
            },
        }
    ]


def test_certificates_are_made_once_and_a_missing_one_renews_all_but_the_key_of_the_tokens(state: Path) -> None:
    ca, tokens = certs.CA.read_bytes(), certs.SERVICE_ACCOUNT_KEY.read_bytes()
    assert not certs.ensure()
    assert certs.CA.read_bytes() == ca
    certs.certificate("kubelet").unlink()
    assert certs.ensure()
    assert certs.CA.read_bytes() != ca
    assert certs.SERVICE_ACCOUNT_KEY.read_bytes() == tokens


def test_keys_are_private_and_certificates_have_all_that_newer_verifiers_ask_for(state: Path) -> None:
    """Without it, Python 3.13 refuses the node's API server (ssl.VERIFY_X509_STRICT)."""
    assert {stat.S_IMODE(certs.key(identity.name).stat().st_mode) for identity in certs.IDENTITIES} == {0o600}
    made = [str(certs.certificate(identity.name)) for identity in certs.IDENTITIES]
    subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", str(certs.CA), *made], check=True)


def test_contexts_that_others_put_there_stay(state: Path) -> None:
    """The file is first in $KUBECONFIG, and `aws eks update-kubeconfig` writes to the first."""
    eks = {"name": "trainyard-aws-g4dn", "context": {"cluster": "arn", "user": "arn"}}
    content = {"clusters": [{"name": "arn", "cluster": {}}], "users": [{"name": "arn", "user": {}}], "contexts": [eks]}
    paths.KUBECONFIG.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **content}))
    for _ in range(2):
        kubeconfig.write_user("base@sha256:1", "etcd@sha256:2")
        contexts, current = kube_config.list_kube_config_contexts(str(paths.KUBECONFIG))
        assert [cast("dict[str, Any]", each)["name"] for each in contexts] == ["trainyard-local", "trainyard-aws-g4dn"]
        assert cast("dict[str, Any]", current)["name"] == "trainyard-local"
    kubeconfig.remove_user()
    left = yaml.safe_load(paths.KUBECONFIG.read_text())
    assert left == {"apiVersion": "v1", "kind": "Config", **content}
    assert stat.S_IMODE(paths.KUBECONFIG.stat().st_mode) == 0o600


def test_the_file_goes_with_the_node_where_nothing_else_is_in_it(state: Path) -> None:
    kubeconfig.write_user("base@sha256:1", "etcd@sha256:2")
    kubeconfig.remove_user()
    assert not paths.KUBECONFIG.exists()
    kubeconfig.remove_user()
