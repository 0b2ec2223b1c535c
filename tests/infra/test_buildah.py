"""What a build shows and whose image it takes; the builds themselves are in tests/e2e/test_buildah.py."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from infra import buildah
from tests.served import served

# Waits until the test has seen the lines that it wants.
BUILD = """
echo STEP 2/3: RUN install
printf 'caf\\351\\n'
echo "Downloaded torch"
echo "warning: a package of this index does not give this version: the"
until [ -e enough ]; do sleep 0.02; done
"""


def test_a_build_says_regularly_at_which_step_it_is_and_how_far(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if "Downloaded" in line:
            (tmp_path / "enough").touch()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(buildah, "HEARTBEAT", 0.05)
    buildah.run_and_show(["sh", "-c", BUILD], "image: step", tell)
    assert any(re.fullmatch(r"image: step 2 of 3, \d s, Downloaded torch", line) for line in told)
    assert not any("warning" in line for line in told)


@pytest.mark.usefixtures("strict_umask")
def test_what_a_build_writes_can_be_read_in_the_image_whatever_the_users_umask(tmp_path: Path) -> None:
    buildah.run_and_show(["mkdir", str(tmp_path / "layer")], "image: step")
    assert (tmp_path / "layer").stat().st_mode & 0o777 == 0o755


def test_stacks_that_come_up_at_once_build_an_image_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built, pushed, told, begun = list[str](), list[str](), list[str](), threading.Event()

    def build(target: str, *_: object) -> None:
        built.append(target)
        begun.set()
        end = time.monotonic() + 10
        while not told and time.monotonic() < end:
            time.sleep(0.01)

    def push(*_: object) -> str:
        pushed.append("sha256:0")
        return pushed[0]

    monkeypatch.setattr(buildah.shutil, "which", lambda _: "buildah")
    monkeypatch.setattr(buildah, "ROOT", tmp_path)
    monkeypatch.setattr(buildah, "registry_has", lambda *_: bool(pushed))
    monkeypatch.setattr(buildah, "build", build)
    monkeypatch.setattr(buildah, "push", push)
    monkeypatch.setattr(buildah, "_tell", told.append)
    image = {"target": "registry/trainer:1", "insecure": True, "context": str(tmp_path), "dockerfile": "Dockerfile"}
    image |= {"buildArgs": {}, "compression": "zstd"}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(buildah._ensure, image)
        begun.wait(10)
        second = pool.submit(buildah._ensure, image)
        assert first.result(20) == second.result(20) == "registry/trainer@sha256:0"
    assert built == ["registry/trainer:1"]
    assert told == ["image: another pulumi up builds it"]


ACCOUNT = base64.b64encode(b"trainyard:word").decode()


class Registry:
    """Has, for those with the account, what others pushed under every tag, and the digests in `there`."""

    def __init__(self) -> None:
        self.there: tuple[str, ...] = ()
        self.asked: list[str] = []

    def __call__(self, request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        name = request.path.rpartition("/")[2]
        self.asked.append(name)
        has = name in self.there or not name.startswith("sha256:")
        return 401 if request.headers.get("Authorization") != f"Basic {ACCOUNT}" else 200 if has else 404, b""


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def image(registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    monkeypatch.setattr(buildah, "ROOT", tmp_path)
    monkeypatch.setattr(buildah.shutil, "which", lambda _: "buildah")
    with served(registry) as address:
        file = tmp_path / "auth.json"
        file.write_text(json.dumps({"auths": {address: {"auth": ACCOUNT}}}))
        where = {"target": f"{address}/trainyard/trainer:1", "context": str(tmp_path), "dockerfile": "Dockerfile"}
        yield {**where, "buildArgs": {}, "insecure": True, "compression": "zstd", "authfile": str(file)}


class Builder:
    """Stands in for the program buildah."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], what: str) -> None:
        self.commands.append(command)
        if "--digestfile" in command:
            Path(command[command.index("--digestfile") + 1]).write_text("sha256:ours\n")


def test_a_tag_that_somebody_else_pushed_is_never_taken_for_the_image(image: dict[str, Any]) -> None:
    run = Builder()
    assert buildah.publish(image, run) == "sha256:ours"
    assert [command[1] for command in run.commands] == ["build", "push"]
    assert all(command[command.index("--authfile") + 1] == image["authfile"] for command in run.commands)


@pytest.mark.parametrize(
    ("there", "note", "builds"),
    [
        (("sha256:ours",), None, False),
        # The registry was emptied, or has the tag alone: moved by another.
        ((), None, True),
        (("sha256:theirs",), None, True),
        # A note that is torn, or of another target.
        (("sha256:ours",), "{", True),
        (("sha256:ours",), '{"target": "elsewhere/trainer:1", "digest": "sha256:ours"}', True),
    ],
)
def test_an_image_is_that_of_our_own_push_or_it_is_built(
    image: dict[str, Any], registry: Registry, there: tuple[str, ...], note: str | None, builds: bool
) -> None:
    buildah.publish(image, Builder())
    if note:
        buildah._note(image["target"]).write_text(note)
    registry.there, again = there, Builder()
    assert buildah.publish(image, again) == "sha256:ours"
    assert bool(again.commands) is builds
    assert all(name.startswith("sha256:") for name in registry.asked), "no tag is asked for"


def test_a_refresh_asks_for_the_digest_and_with_the_account(image: dict[str, Any], registry: Registry) -> None:
    name = image["target"].rpartition(":")[0]
    state = {**image, "reference": f"{name}@sha256:ours"}
    assert not buildah.BuildahProvider().read("id", state).id
    registry.there = ("sha256:ours",)
    assert buildah.BuildahProvider().read("id", state).id == "id"
    registry.there = ()
    assert buildah.BuildahProvider().read("id", {**state, "authfile": None}).id, "it tells strangers nothing"
    assert not buildah.registry_has("127.0.0.1:9/trainer@sha256:ours", insecure=True), "nobody answers"
