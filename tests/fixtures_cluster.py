"""Fixtures for tests that need the real local node (marked `cluster`); registered in conftest.py.

The node is brought up once and left up: the next run of the tests, and the person who runs them, go on with it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
def node() -> Path:
    """The kubeconfig of the local node, which runs."""
    return bring_up()


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
