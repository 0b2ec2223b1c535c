"""A token goes through the real engine and a real image build; nothing that they leave on disk contains it."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from infra import buildah
from tests.e2e import cloud_stack

CANARY = "hf_canaryCanaryCANARYcanary"
FORMS = [CANARY.encode(), base64.b64encode(CANARY.encode())]


def leaking(folder: Path, but: tuple[str, ...] = ()) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and path.name not in but]
    assert files
    return [str(path) for path in files if any(form in path.read_bytes() for form in FORMS)]


@pytest.mark.engine
def test_nothing_that_pulumi_writes_has_the_token(tmp_path: Path) -> None:
    """The state with its history and backups, logs at verbosity 6, and the stack's file."""
    stack = cloud_stack.make("gcp-c3", tmp_path)
    stack.pulumi("config", "set", "--secret", "--path", "secrets.huggingFaceToken", CANARY)
    stack.environment["TMPDIR"] = str(tmp_path / "logs")
    (tmp_path / "logs").mkdir()
    shown = stack.pulumi("up", "--yes", "--skip-preview", "--diff", "--verbose", "6") + stack.text
    shown += stack.pulumi("stack", "output", "--json") + stack.pulumi("stack", "history", "--json")
    shown += stack.pulumi("preview", "--diff", "--json")
    assert not any(form.decode() in shown for form in FORMS)
    assert leaking(tmp_path) == []
    secrets = [thing for thing in stack.cloud.of_type(":Secret") if CANARY in str(thing.inputs)]
    assert secrets, "it did reach the cluster"
    stack.configure()
    assert stack.preview()["delete"] == {thing.title for thing in secrets}, "it goes with its key"


@pytest.mark.cluster
@pytest.mark.usefixtures("node")  # installs buildah
def test_an_image_has_nothing_of_the_builders_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search configuration, history and layers of an image that was built with the token in the environment."""
    monkeypatch.setenv("HF_TOKEN", CANARY)
    storage = tmp_path / "storage.conf"
    storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n')
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(storage))
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\nARG BASE_IMAGE\nCOPY hello /hello\nENV BASE=$BASE_IMAGE\n")
    (context / "hello").write_text("hello")
    monkeypatch.chdir(context)
    buildah.build("canary:1", ".", "Dockerfile", {"BASE_IMAGE": "x"}, insecure=True)
    # Uncompressed, so that a search finds what is in a layer.
    saved = tmp_path / "saved"
    push = ["buildah", "push", "--quiet", "--disable-compression", "canary:1", f"dir:{saved}"]
    subprocess.run(push, check=True, capture_output=True)
    assert b"hello" in b"".join(path.read_bytes() for path in saved.iterdir())
    assert leaking(saved) == []
