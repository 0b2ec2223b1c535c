"""What the doctor finds out about builders and registries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.doctor import images
from infra.parse import parse
from infra.sections import ImageConfig
from tests.served import served


@pytest.mark.parametrize(("chosen", "program"), [("buildkit", "docker"), ("buildah", "buildah")])
def test_what_builds_the_image_is_installed(
    chosen: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    image = ImageConfig.model_validate({"builder": chosen})
    assert images.builder(image).text.startswith(f"{program} is not on PATH")
    (tmp_path / program).touch(mode=0o755)
    assert images.builder(image).level == "ok"


@pytest.fixture
def registry() -> Iterator[tuple[str, dict[str, int]]]:
    """Address of a registry, and the status that it answers with."""
    answer = {"status": 200}

    with served(lambda _: (answer["status"], b"")) as address:
        yield address, answer


def test_a_registry_that_wants_a_login_names_the_command(
    registry: tuple[str, dict[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, answer = registry
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert images.registry(address, insecure=True).level == "ok"
    answer["status"] = 401
    finding = images.registry(address, insecure=True)
    assert (finding.level, finding.fix) == ("problem", f"docker login {address}")
    (tmp_path / "config.json").write_text(json.dumps({"auths": {address: {}}}))
    assert images.registry(address, insecure=True).level == "ok"


def test_docker_hubs_login_has_a_name_of_its_own(
    registry: tuple[str, dict[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(images, "DOCKER_HUB_API", registry[0])
    registry[1]["status"] = 401
    finding = images.registry("docker.io/you", insecure=True)
    assert (finding.level, finding.fix) == ("problem", "docker login docker.io")
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"https://index.docker.io/v1/": {}}}))
    assert images.registry("docker.io/you", insecure=True).level == "ok"


def test_a_registry_that_is_down_is_one_line(registry: tuple[str, dict[str, int]]) -> None:
    finding = images.registry("127.0.0.1:1", insecure=True)
    assert finding.level == "problem"
    assert "127.0.0.1:1 does not answer ([Errno 111] Connection refused)" in finding.text
    # The server there speaks no TLS.
    finding = images.registry(registry[0], insecure=False)
    assert "image.insecure true" in finding.fix


@pytest.mark.usefixtures("kind")
def test_a_stack_on_a_cluster_of_ones_own_is_looked_at_with_what_the_cluster_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: tuple[str, dict[str, int]]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "docker").touch(mode=0o755)
    values = {"cluster": {"context": "kind-kind"}, "image": {"registry": registry[0]}}
    (refused,) = images.of_existing(parse(values, "s"), "s")
    assert (refused.level, refused.key) == ("problem", "image.registry")
    values["image"]["buildx"] = "mine"
    assert [finding.level for finding in images.of_existing(parse(values, "s"), "s")] == ["ok", "ok"]
    registry[1]["status"] = 500
    assert [finding.level for finding in images.of_existing(parse(values, "s"), "s")] == ["ok", "unchecked"]
