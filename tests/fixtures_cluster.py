"""Fixtures for tests that need the real local node (marked `cluster`); registered in conftest.py.

The node is started once and left running, for the next test run and for the user.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from local import environment, images, paths
from local.kubeconfig import CONTEXT

Kubectl = Callable[..., str]


@contextmanager
def namespace(environment: dict[str, str], **labels: str) -> Iterator[Kubectl]:
    """kubectl in a namespace of its own on the local node. It returns what it prints; a failure raises, unless
    `check` is False. `document`: what it reads."""
    name = f"test-{uuid.uuid4().hex[:6]}"

    def call(*arguments: str, document: Any = None, check: bool = True) -> str:
        command = ["kubectl", "--context", CONTEXT, "--namespace", name, *arguments]
        text = json.dumps(document) if document else None
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment, timeout=280)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout + done.stderr

    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    call("apply", "-f", "-", document=made)
    try:
        yield call
    finally:
        call("delete", "namespace", name, "--wait=false")


def local(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `trainyard local ARGUMENTS` as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "cli", "local", *arguments],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=1500,
    )


def bring_up(context: str = CONTEXT) -> Path:
    result = local("up", "--context", context)
    assert result.returncode == 0, result.stderr
    return paths.KUBECONFIG


def _claim(alone: str) -> Iterator[TextIO]:
    """A lock that this process shares with other test processes until it ends; the fixture `alone` has it alone."""
    paths.STATE.mkdir(exist_ok=True)
    with (paths.STATE / f"tests.{alone}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        CLAIMS[alone] = file
        yield file
        del CLAIMS[alone]


CLAIMS: dict[str, TextIO] = {}
"""What this process's tests have needed so far."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Share again before a test that need not be alone.

    Not after each file that had to: the processes that wait keep what they get until they end, and the next file would
    wait for them.
    """
    for alone, file in CLAIMS.items():
        if alone not in getattr(item, "fixturenames", ()):
            fcntl.flock(file, fcntl.LOCK_SH)


@pytest.fixture(scope="session")
def claim() -> Iterator[TextIO]:
    """The node's daemons, which go on running."""
    yield from _claim("node_alone")


@pytest.fixture(scope="session")
def room(claim: TextIO) -> Iterator[TextIO]:
    """The node's memory and processors, of which pods take their share."""
    yield from _claim("room_alone")


@pytest.fixture(scope="session")
def control_plane(claim: TextIO, testrun_uid: str) -> Path:
    """The kubeconfig of the running local node, for tests whose pods run nowhere.

    Only the first of several processes starts the node. A second `up` during the first build of the image would find
    too little free disk, because that build is using it.
    """
    last = paths.STATE / "tests.run"
    if not last.exists() or last.read_text() != testrun_uid:
        bring_up()
        last.write_text(testrun_uid)
    return paths.KUBECONFIG


@pytest.fixture(scope="session")
def node(room: TextIO, control_plane: Path) -> Path:
    """The kubeconfig of the running local node."""
    return control_plane


@pytest.fixture(scope="module")
def node_alone(claim: TextIO, request: pytest.FixtureRequest) -> Path:
    """The node for a file that breaks it: no other test process uses it, from before its start on."""
    fcntl.flock(claim, fcntl.LOCK_EX)
    return request.getfixturevalue("node")


@pytest.fixture(scope="module")
def room_alone(room: TextIO) -> None:
    """All the room that the node has left, for a file that fills it: no other test process's pods run there."""
    fcntl.flock(room, fcntl.LOCK_EX)


@pytest.fixture(scope="session")
def node_environment(node: Path) -> dict[str, str]:
    """The environment in which `trainyard local run` runs a command."""
    return environment.variables()


@pytest.fixture(scope="session")
def base_image(node: Path) -> str:
    """The node's own Debian image with Python, by digest."""
    found = images.reference("base")
    assert found
    return found
