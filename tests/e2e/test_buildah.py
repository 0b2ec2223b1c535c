"""Images with the real buildah and the local node's real registry."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from infra import buildah
from infra.buildah import BuildahProvider, registry_has
from local import credentials
from local.network import REGISTRY

pytestmark = pytest.mark.cluster


@pytest.fixture
def image(node_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Properties of an image of one small file, in a project folder of its own."""
    for name, value in node_environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "Dockerfile").write_text("FROM scratch\nARG GREETING\nCOPY hello /hello\nENV GREETING=$GREETING\n")
    (tmp_path / "hello").write_text(uuid.uuid4().hex)
    monkeypatch.chdir(tmp_path)
    target = f"{REGISTRY}/test/hello:{uuid.uuid4().hex[:12]}"
    monkeypatch.setattr(buildah, "ROOT", tmp_path)
    where = {
        "authfile": str(credentials.file()),
        "target": target,
        "context": ".",
        "dockerfile": "Dockerfile",
        "insecure": True,
        "compression": "zstd",
    }
    return {**where, "buildArgs": {"GREETING": "hi"}}


def test_who_has_not_the_account_pushes_and_pulls_nothing(image: dict[str, Any], tmp_path: Path) -> None:
    reference = str(BuildahProvider().create(image).id)
    assert registry_has(reference, True, image["authfile"])
    for name, accounts in (("none", {}), ("wrong", {REGISTRY: {"auth": "dHJhaW55YXJkOng="}})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"auths": accounts}))
    for stranger in (
        f"--authfile={tmp_path}/none.json",
        f"--authfile={tmp_path}/wrong.json",
        "--creds=trainyard:wrong",
    ):
        access = ["--tls-verify=false", stranger]
        pushed = ["buildah", "push", *access, image["target"], f"docker://{image['target']}x"]
        for command in (pushed, ["buildah", "pull", "--policy=always", *access, reference]):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode
            assert "unauthorized" in done.stderr or "authentication" in done.stderr, done.stderr


def test_an_image_that_another_pushed_under_the_tag_is_not_ours(image: dict[str, Any]) -> None:
    target, account = image["target"], image["authfile"]
    hello = Path("hello")
    our_content = hello.read_text()

    def push_theirs(content: str) -> str:
        hello.write_text(content)
        buildah.build(target, ".", "Dockerfile", {}, insecure=True)
        hello.write_text(our_content)
        return buildah.push(target, "zstd", insecure=True, authfile=account)

    theirs = push_theirs("theirs")
    ours = BuildahProvider().create(image).id
    assert theirs not in str(ours)
    # Nor if they push after us.
    assert push_theirs("later") not in str(ours)
    assert BuildahProvider().create(image).id == ours


def test_a_build_that_fails_shows_its_last_lines(image: dict[str, Any]) -> None:
    Path("Dockerfile").write_text("FROM scratch\nCOPY absent /absent\n")
    with pytest.raises(RuntimeError, match=r"buildah build failed with exit code \d+:(\n|.)*absent"):
        BuildahProvider().create(image)
    assert buildah.pushed(image["target"], True, image["authfile"]) is None
