"""Images with the real buildah and the local node's real registry."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from infra.buildah import BuildahProvider, registry_digest
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
    where = {"target": target, "context": ".", "dockerfile": "Dockerfile", "insecure": True, "compression": "zstd"}
    return {**where, "buildArgs": {"GREETING": "hi"}}


def test_an_image_is_built_pushed_and_named_by_its_digest(image: dict[str, Any]) -> None:
    made = BuildahProvider().create(image)
    digest = registry_digest(image["target"], insecure=True)
    assert digest
    assert made.outs
    assert made.outs["reference"] == f"{image['target'].rsplit(':', 1)[0]}@{digest}"


def test_an_image_that_the_registry_has_is_not_built_again(image: dict[str, Any]) -> None:
    first = BuildahProvider().create(image)
    Path("Dockerfile").write_text("FROM scratch\nRUN this-cannot-run\n")
    assert BuildahProvider().create(image).id == first.id


def test_a_refresh_notices_an_image_that_is_gone(image: dict[str, Any]) -> None:
    made = BuildahProvider().create(image)
    assert made.outs is not None
    assert BuildahProvider().read(made.id, made.outs).id == made.id
    gone = {**made.outs, "target": f"{image['target']}x"}
    assert not BuildahProvider().read(made.id, gone).id


def test_a_build_that_fails_shows_its_last_lines(image: dict[str, Any]) -> None:
    Path("Dockerfile").write_text("FROM scratch\nCOPY absent /absent\n")
    with pytest.raises(RuntimeError, match=r"buildah build failed with exit code \d+:(\n|.)*absent"):
        BuildahProvider().create(image)
    assert registry_digest(image["target"], insecure=True) is None
