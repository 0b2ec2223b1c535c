"""What the doctor finds out about builders and registries. Docker's answers are those of buildx 0.34."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.doctor import images
from infra.finding import Finding
from infra.parse import parse
from infra.sections import ImageConfig
from tests.conftest import write_kubeconfig

NO_ENGINE = {"Current": True, "Driver": "", "Err": "failed to connect to the docker API", "Name": "default"}
ENGINE = {"Current": True, "Driver": "docker", "Name": "default", "Nodes": [{"Status": "running"}]}


def builder(name: str, driver: str, status: str, **more: Any) -> dict[str, Any]:
    return {"Current": False, "Driver": driver, "Name": name, "Nodes": [{"Status": status, **more}]}


class Docker:
    """A program `docker` on PATH that answers as it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()

    def answers(self, builders: list[dict[str, Any]], engine: bool = True, pulled: bool = False) -> None:
        listed = self.folder / "builders"
        listed.write_text("".join(json.dumps({"Nodes": [{"Name": ""}], **one}) + "\n" for one in builders))
        program = self.folder / "bin" / "docker"
        cases = {"buildx version": 0, "version": not engine, "image inspect": not pulled}
        rest = "\n".join(f'"{start} "*|"{start}") exit {int(code)};;' for start, code in cases.items())
        program.write_text(f'#!/bin/sh\ncase "$*" in\n"buildx ls"*) cat {listed};;\n{rest}\n*) exit 1;;\nesac\n')
        program.chmod(0o755)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return Docker(tmp_path)


def only(image: ImageConfig) -> Finding:
    return images.builder(image)


def test_a_remote_buildkit_needs_no_engine(docker: Docker) -> None:
    docker.answers(
        [NO_ENGINE, builder("dead", "remote", "inactive"), builder("far", "remote", "running")], engine=False
    )
    for image in (ImageConfig(), ImageConfig(buildx="far")):
        assert (only(image).level, only(image).text) == (
            "ok",
            "BuildKit" if image.buildx is None else "BuildKit, builder far",
        )


def test_neither_an_engine_nor_a_builder_is_one_line(docker: Docker) -> None:
    docker.answers([NO_ENGINE], engine=False)
    finding = only(ImageConfig())
    assert (finding.level, finding.text) == ("problem", "neither the Docker engine nor a remote BuildKit answers")


def test_a_buildx_that_cannot_list_its_builders_is_no_engine_that_is_off(docker: Docker) -> None:
    docker.answers([ENGINE])
    program = docker.folder / "bin" / "docker"
    program.write_text('#!/bin/sh\n[ "$2" = version ] || { echo "unknown flag: --format" >&2; exit 125; }\n')
    for image in (ImageConfig(), ImageConfig(buildx="mine")):
        assert only(image).level == "unchecked"


def test_a_builder_that_is_not_there_names_those_that_are(docker: Docker) -> None:
    docker.answers([ENGINE, builder("mine", "docker-container", "running")])
    finding = only(ImageConfig(buildx="yours"))
    assert (finding.level, finding.text) == ("problem", "docker has no builder yours; there are: default, mine")


@pytest.fixture
def registry() -> Iterator[tuple[str, dict[str, int]]]:
    """Address of a registry, and the status that it answers with."""
    answer = {"status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers.get("Authorization") == "Basic bWU6c2VjcmV0"
            self.send_response(200 if known else answer["status"])
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", answer
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_registry_that_wants_a_login_names_the_command(
    registry: tuple[str, dict[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, answer = registry
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert images.registry(address, insecure=True).level == "ok"
    answer["status"] = 401
    finding = images.registry(address, insecure=True)
    assert (finding.level, finding.fix) == ("problem", f"docker login {address}")
    account = tmp_path / "account.json"
    for text, level in (("", "problem"), ('{"auths": {}}', "problem"), (f'"{address}"', "ok")):
        account.write_text(text if level == "problem" else f'{{"auths": {{{text}: {{"auth": "bWU6c2VjcmV0"}}}}}}')
        finding = images.registry(address, insecure=True, authfile=str(account))
        assert finding.level == level, "the account that a local cluster offers"
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


def test_a_stack_on_a_cluster_of_ones_own_is_looked_at_with_what_the_cluster_offers(
    docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: tuple[str, dict[str, int]]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kind", "kind-kind", None)))
    docker.answers([ENGINE, builder("mine", "docker-container", "running", DriverOpts={"network": "host"})])
    values = {"cluster": {"context": "kind-kind"}, "image": {"registry": registry[0]}}
    (refused,) = images.of_existing(parse(values, "s"), "s")
    assert (refused.level, refused.key) == ("problem", "image.registry")
    values["image"]["buildx"] = "mine"
    assert [finding.level for finding in images.of_existing(parse(values, "s"), "s")] == ["ok", "ok"]
    registry[1]["status"] = 500
    assert [finding.level for finding in images.of_existing(parse(values, "s"), "s")] == ["ok", "unchecked"]
