"""Fixtures for tests that need the real local node (marked `cluster`); registered in conftest.py.

The node is brought up once and left up: the next run of the tests, and the person who runs them, go on with it.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from local import environment, images, paths
from local.kubeconfig import CONTEXT


def local(*arguments: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
    """`trainyard local ARGUMENTS`, as a user calls it."""
    return subprocess.run(
        [sys.executable, "-m", "cli", "local", *arguments],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def bring_up(context: str = CONTEXT) -> Path:
    result = local("up", "--context", context)
    assert result.returncode == 0, result.stderr
    return paths.KUBECONFIG


@pytest.fixture(scope="session")
def claim() -> Iterator[TextIO]:
    """On the node, shared with other processes of the tests for as long as this one runs."""
    paths.STATE.mkdir(exist_ok=True)
    with (paths.STATE / "tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield file


@pytest.fixture(scope="session")
def node(claim: TextIO, testrun_uid: str) -> Path:
    """The kubeconfig of the local node, which runs.

    Of several processes the first brings it up: one that did so beside the first build of the image would be asked for
    the disk that the build just takes.
    """
    last = paths.STATE / "tests.run"
    if not last.exists() or last.read_text() != testrun_uid:
        bring_up()
        last.write_text(testrun_uid)
    return paths.KUBECONFIG


@pytest.fixture(scope="module")
def node_alone(claim: TextIO, request: pytest.FixtureRequest) -> Iterator[Path]:
    """For a file that breaks the node: no other process of the tests uses it, from before it comes up."""
    fcntl.flock(claim, fcntl.LOCK_EX)
    yield request.getfixturevalue("node")
    fcntl.flock(claim, fcntl.LOCK_SH)


@pytest.fixture(scope="session")
def node_environment(node: Path) -> dict[str, str]:
    """The environment that `trainyard local run` gives a command."""
    return environment.variables()


@pytest.fixture(scope="session")
def base_image(node: Path) -> str:
    """The node's own Debian image with Python, by digest."""
    found = images.reference("base")
    assert found
    return found
