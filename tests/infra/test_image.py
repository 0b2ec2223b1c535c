"""Images: the builders' inputs, and that one content is one image whoever checked it out."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pulumi
import pytest

from cli.__main__ import main
from infra import buildx
from infra.image import TRAINER, Recipe, content_hash, stage
from infra.stackfiles import stack_file_values
from review.recording import Recorded, record
from tests.infra.recorded import changed

RECIPE = Recipe(name="app", kind="AppImage", dockerfile="app/Dockerfile", context=("app", "LICENSE"))


def checked_out(root: Path, umask: int) -> Path:
    """A project as git checks it out under a umask."""
    before = os.umask(umask)
    try:
        (root / "app" / "deep").mkdir(parents=True)
        (root / "app" / "Dockerfile").write_text("FROM scratch\nCOPY app /app\n")
        (root / "app" / "deep" / "module.py").write_text("print(1)\n")
        (root / "app" / "run").touch(0o777)
        (root / "LICENSE").write_text("free")
        (root / "other").write_text("of another image")
    finally:
        os.umask(before)
    return root


def files(folder: Path) -> dict[str, tuple[str, bytes]]:
    return {
        str(path.relative_to(folder)): (
            stat.filemode(path.stat().st_mode),
            path.read_bytes() if path.is_file() else b"",
        )
        for path in folder.rglob("*")
    }


def test_one_content_is_one_tag_and_one_context_whatever_the_umask(tmp_path: Path) -> None:
    """BuildKit's cache, and so the digest, depends on names, modes and contents of the context."""
    found = []
    for umask in (0o022, 0o002, 0o077):
        root = checked_out(tmp_path / f"{umask:o}", umask)
        version = content_hash(RECIPE, {}, root)
        found.append((version, files(root / stage(RECIPE, version, root))))
    assert found[0] == found[1] == found[2]
    _, staged = found[0]
    assert {name: mode for name, (mode, _) in staged.items()} == {
        "LICENSE": "-rw-r--r--",
        "app": "drwxr-xr-x",
        "app/Dockerfile": "-rw-r--r--",
        "app/deep": "drwxr-xr-x",
        "app/deep/module.py": "-rw-r--r--",
        "app/run": "-rwxr-xr-x",
    }


def test_another_text_mode_or_argument_is_another_content_and_a_cache_is_none(tmp_path: Path) -> None:
    root = checked_out(tmp_path, 0o022)
    (root / "app" / "__pycache__").mkdir()
    found, module = [content_hash(RECIPE, {}, root)], root / "app" / "deep" / "module.py"
    (root / "app" / "__pycache__" / "module.pyc").write_text("cache")
    assert content_hash(RECIPE, {}, root) == found[0]
    found.append(content_hash(RECIPE, {"BASE_IMAGE": "x"}, root))
    module.chmod(0o755)
    found.append(content_hash(RECIPE, {}, root))
    module.write_text("another")
    found.append(content_hash(RECIPE, {}, root))
    assert len({*found}) == 4


def test_a_context_is_made_once_and_goes_when_nobody_builds_it_any_more(tmp_path: Path) -> None:
    root = checked_out(tmp_path, 0o022)
    old = root / stage(RECIPE, "111111111111", root)
    made = old.stat()
    assert root / stage(RECIPE, "111111111111", root) == old
    assert old.stat() == made
    os.utime(old, (0, 0))
    new = root / stage(RECIPE, "222222222222", root)
    assert [path.name for path in new.parent.iterdir()] == [new.name]


def image_of(stack: str, **changes: dict[str, Any]) -> dict[str, Any]:
    return record(stack, changed(stack, **changes)).one("Image", "trainer").inputs


def test_an_image_has_cuda_where_that_is_asked_for_and_its_tag_says_so() -> None:
    inputs = image_of("gcp-c3", image={"torch": "cuda"})
    assert inputs["buildArgs"] == {"TORCH": "cuda"}
    assert inputs["tags"][0].endswith(f":{content_hash(TRAINER, {'TORCH': 'cuda'})}")


def on_kind(**image: Any) -> dict[str, Any]:
    values = {**stack_file_values("local"), "image": image}
    values["cluster"] = {**values["cluster"], "context": "kind-kind"}
    recorded: Recorded = record("local", values).one("Image", "trainer")
    return recorded.inputs


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize(
    ("image", "plain"),
    [
        ({"registry": "localhost:5001", "buildx": "mine"}, True),
        ({"registry": "k3d-images.localhost:5000", "buildx": "mine"}, True),
        ({"registry": "10.0.0.7:5000", "insecure": True}, True),
        ({"registry": "ghcr.io/you"}, False),
    ],
)
def test_a_registry_of_plain_http_is_pushed_to_as_such_and_no_build_uses_what_others_left_there(
    image: dict[str, Any], plain: bool
) -> None:
    """Whoever reaches a registry without accounts may write the cache's tag, and so the next trainer's packages."""
    inputs = on_kind(**image)
    assert ("registry.insecure=true" in inputs["exports"][0]["raw"].split(",")) == plain
    assert [key in inputs for key in ("cacheFrom", "cacheTo")] == [not plain] * 2


@pytest.mark.usefixtures("kind")
def test_a_builder_that_cannot_reach_this_machines_registry_is_refused_at_preview() -> None:
    expected = (
        r"image\.registry: 'localhost:5001' is this machine's"
        r".*`trainyard local use kind-kind --registry localhost:5001`"
    )
    with pytest.raises(pulumi.RunError, match=expected):
        on_kind(registry="localhost:5001")
    assert on_kind(registry="localhost:5001", buildx="mine")["builder"] == {"name": "mine"}


@pytest.mark.usefixtures("kind")
def test_docker_hub_has_the_image_under_a_name_of_one_word() -> None:
    """It takes ACCOUNT/NAME, and refuses a push to anything deeper."""
    host = "index.docker.io"
    inputs = on_kind(registry=f"{host}/you")
    assert inputs["tags"][0].startswith(f"{host}/you/trainyard-trainer:")
    assert f"ref={host}/you/trainyard-trainer:cache" in inputs["cacheTo"][0]["raw"]
    for registry in (host, f"{host}/you/deeper"):
        with pytest.raises(pulumi.RunError, match=rf"image\.registry: '{registry}' .*; allowed: docker\.io/ACCOUNT$"):
            on_kind(registry=registry)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put programs on PATH that record their arguments; return the file with the records."""
    notes = tmp_path / "notes"
    notes.touch()
    for name, text in (("docker", 'case "$*" in *inspect*) exit 1;; esac'), ("pulumi", ""), ("gcloud", "")):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {notes}\n{text}\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    # `local use` without bringing the node up.
    monkeypatch.setattr("local.commands.up", lambda context: 0)
    monkeypatch.setattr("local.environment.variables", lambda: dict(os.environ))
    return notes


def test_a_builder_on_the_hosts_network_reaches_this_machines_registry(docker: Path) -> None:
    assert buildx.choose_builder("localhost:5001") == "trainyard"
    assert docker.read_text().splitlines()[1:] == [
        "docker buildx create --name trainyard --driver docker-container --driver-opt network=host --bootstrap"
    ]


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("before", ["kind-kind", "another"])
def test_another_cluster_without_a_registry_keeps_none_of_the_cluster_before(
    before: str, docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a registry: tests/local/test_another_cluster.py."""
    monkeypatch.setattr("infra.stackfiles.stack_file_values", lambda stack: {"cluster": {"context": before}})
    assert main(["local", "use", "kind-kind"]) == 0
    removed = [] if before == "kind-kind" else ["image.registry", "image.buildx"]
    assert docker.read_text().splitlines() == [
        "pulumi stack select --create local",
        "pulumi config set --stack local --path cluster.context kind-kind",
        *(f"pulumi config rm --stack local --path {key}" for key in removed),
    ]


@pytest.mark.usefixtures("kind")
def test_a_builder_whose_image_cannot_be_pulled_is_one_line(docker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = docker.parent / "bin" / "docker"
    program.write_text('#!/bin/sh\necho "ERROR: failed to pull: i/o timeout" >&2\nexit 1\n')
    assert main(["local", "use", "kind-kind", "--registry", "localhost:5001"]) == 1
    assert (
        capsys.readouterr().err == "local: no builder that reaches localhost:5001: ERROR: failed to pull: i/o timeout\n"
    )


def test_going_back_to_this_machines_node_forgets_registry_and_builder(docker: Path) -> None:
    assert main(["local", "use", "trainyard-local"]) == 0
    assert docker.read_text().splitlines()[2:] == [
        "pulumi config rm --stack local --path image.registry",
        "pulumi config rm --stack local --path image.buildx",
    ]


def test_the_image_that_is_pushed_has_the_stacks_own_context_and_tag(docker: Path) -> None:
    assert main(["dev", "image", "ghcr.io/you"]) == 1, "the stand-in's inspect fails"
    version = content_hash(TRAINER, {})
    context, tag = stage(TRAINER, version), f"ghcr.io/you/trainyard/trainer:{version}"
    _, build, inspect = docker.read_text().splitlines()
    assert build.startswith("docker buildx build --platform linux/amd64 --sbom=true --provenance=mode=max --push")
    assert build.endswith(f"--tag {tag} --file {context}/trainer/Dockerfile {context}")
    assert inspect == f"docker buildx imagetools inspect {tag}"


def test_docker_needs_a_login_for_googles_registry_alone(docker: Path) -> None:
    assert [main(["dev", "docker-login", "--stack", stack]) for stack in ("gcp-c3", "aws-g4dn", "local")] == [0, 0, 0]
    assert docker.read_text() == "gcloud auth configure-docker --quiet us-central1-docker.pkg.dev\n"
