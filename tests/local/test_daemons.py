"""The table of the node's daemons and the files that they read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from local import certs, credentials, network, paths, teardown
from local.daemons import configure, daemon, table


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "CERTIFICATES", tmp_path)
    for name in ("CA", "SERVICE_ACCOUNT_KEY", "SERVICE_ACCOUNT_PUBLIC", "MANIFEST"):
        monkeypatch.setattr(certs, name, tmp_path / getattr(certs, name).name)
    certs.ensure()
    monkeypatch.setattr(paths, "CONFIGURATION", tmp_path / "etc")
    return tmp_path / "etc"


@pytest.mark.parametrize("name", table())
def test_what_a_daemon_is_started_with_is_there(configuration: Path, name: str) -> None:
    made = daemon(name, health=None if "health" in table()[name] else lambda: None, pause="pause@sha256:1")
    assert all(file.exists() for file in made.files)
    named = re.findall(rf"{configuration.parent}[^ ]*", " ".join(made.command))
    assert all(Path(file).exists() for file in named)
    assert "{" not in " ".join(made.command)


def test_the_files_are_what_their_readers_take(configuration: Path) -> None:
    kubelet = yaml.safe_load(configure("kubelet.yaml").read_text())
    assert kubelet["evictionHard"]["nodefs.inodesFree"] == "1%"
    assert kubelet["clusterDNS"] == ["169.254.20.10"]
    containerd = tomllib.loads(configure("containerd.toml", pause="pause@sha256:1").read_text())
    assert containerd["plugins"]["io.containerd.grpc.v1.cri"]["sandbox_image"] == "pause@sha256:1"
    assert configure("Corefile").read_text().startswith(".:53 {\n")


def test_the_registry_wants_the_account_and_listens_on_the_nodes_own_network(configuration: Path) -> None:
    registry = yaml.safe_load(configure("registry.yml").read_text())
    assert registry["auth"]["htpasswd"]["path"] == str(credentials.htpasswd())
    assert registry["http"]["addr"] == f"{network.NODE_ADDRESS}:5000"


def test_every_daemon_is_stopped_in_order() -> None:
    assert set(teardown.ORDER) == set(table())
