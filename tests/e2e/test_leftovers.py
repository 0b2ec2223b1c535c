"""Old images leave the real builder and the real registry; needed images stay."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import buildah
from local import credentials, images, leftovers, network, paths, processes
from local.daemons import daemon
from local.phases import Phases
from tests.ports import free_port

pytestmark = pytest.mark.cluster


@pytest.fixture
def registry(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a registry like this checkout's, on loopback; builder and state lie in `tmp_path`.

    The fixture `node` installs the programs.
    """
    for name, folder in (("REGISTRY_DATA", "registry"), ("BUILDAH", "buildah"), ("CONFIGURATION", "etc")):
        monkeypatch.setattr(paths, name, tmp_path / folder)
    monkeypatch.setattr(paths, "CERTIFICATES", tmp_path / "certificates")
    for name, folder in (("PULUMI_STATE", "state"), ("RUN", "run"), ("PROCESSES", "processes")):
        monkeypatch.setattr(paths, name, tmp_path / folder)
    address = f"127.0.0.1:{free_port()}"
    monkeypatch.setattr(network, "REGISTRY", address)
    for name, value in images.buildah_environment().items():
        monkeypatch.setenv(name, value)
    serve = daemon("registry").command
    server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while daemon("registry").health():
        assert server.poll() is None
        time.sleep(0.05)

    def stop(_name: str) -> bool:
        server.terminate()
        server.wait()
        return True

    # The node's process record is not of this registry.
    monkeypatch.setattr(processes, "stop", stop)
    yield address
    stop("registry")
    subprocess.run(["buildah", "rmi", "--all", "--force"], capture_output=True)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def test_images_that_nothing_uses_give_their_disk_back(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\nARG BASE_IMAGE\nCOPY packages /packages\nCOPY code /code\n")
    monkeypatch.chdir(context)
    targets = {}
    for tag, packages in (("used", b"1"), ("old", b"2"), ("newest", b"3")):
        Path("packages").write_bytes(os.urandom(1_000_000) + packages)
        Path("code").write_bytes(packages)
        targets[tag] = f"{registry}/trainyard/trainer:{tag}"
        buildah.build(targets[tag], ".", "Dockerfile", {}, insecure=True)
        buildah.push(targets[tag], "gzip", insecure=True, authfile=str(credentials.file()))
    state = tmp_path / "state/.pulumi/stacks/trainyard/local.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"target": targets["used"]}))
    before = size(tmp_path / "registry"), size(tmp_path / "buildah")
    leftovers.remove_unused(Phases())
    for was, folder in zip(before, ("registry", "buildah"), strict=True):
        assert was > 3_000_000 > size(tmp_path / folder) > 2_000_000, folder
    left = images.buildah("images", "--format", "{{.Tag}}", what="list images").split()
    assert sorted(left) == ["newest", "used"]
    # The layers that a new image reuses from the newest one are still there.
    Path("code").write_text("changed")
    buildah.build(f"{registry}/trainyard/trainer:next", ".", "Dockerfile", {}, insecure=True)
    assert size(tmp_path / "buildah") < before[1]
