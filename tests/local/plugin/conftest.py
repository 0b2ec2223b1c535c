"""Stacks of a few objects, run by the real Pulumi engine with the stand-in plugin against the real local node."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from local import environment

ROOT = Path(__file__).parents[3]
CONTEXT = "trainyard-local"
# `    + 9 to create`, `    ~ 1 updated`, `    +-1 replaced`, `    9 unchanged`
_COUNT = re.compile(r"^ +\S*?\s*(\d+) (?:to )?(create|update|replace|delete|import|unchange)(?:d|ed)?$", re.MULTILINE)

Entry = dict[str, Any]


def resource(name: str, kind: str, properties: dict[str, Any], **options: Any) -> Entry:
    """An entry of a program (see program/__main__.py); `kind` is `v1:ConfigMap` or `batch/v1:Job`."""
    return {"name": name, "type": kind if "/" in kind else f"core/{kind}", "properties": properties, **options}


@dataclass(frozen=True)
class Cluster:
    """The node's API, and an image that it can run (Debian with Python)."""

    kubeconfig: Path
    image: str
    core: Any
    batch: Any
    apps: Any


@pytest.fixture(scope="session")
def cluster(node: Path, base_image: str) -> Cluster:
    """The local node."""
    client = kubernetes.config.new_client_from_config(str(node), CONTEXT)
    return Cluster(
        node,
        base_image,
        kubernetes.client.CoreV1Api(client),
        kubernetes.client.BatchV1Api(client),
        kubernetes.client.AppsV1Api(client),
    )


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """The test's own namespace, deleted afterwards with everything in it, without waiting."""
    name = f"plugin-{secrets.token_hex(3)}"
    cluster.core.create_namespace({"metadata": {"name": name}})
    yield name
    cluster.core.delete_namespace(name)


@pytest.fixture(scope="session")
def engine_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Pulumi on PATH with our launcher before it, and its own PULUMI_HOME."""
    folder = tmp_path_factory.mktemp("launcher")
    launcher = folder / "pulumi-resource-kubernetes"
    command = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m local.plugin"
    launcher.write_text(f'#!/bin/sh\n{command} "$@"\n')
    launcher.chmod(0o755)
    return {
        **os.environ,
        **environment.settings(),
        "PATH": os.pathsep.join([str(folder), str(Path(sys.executable).parent), environment.path()]),
        "PULUMI_HOME": str(tmp_path_factory.mktemp("home")),
        "PULUMI_BACKEND_URL": environment.state_url(tmp_path_factory.mktemp("state")),
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }


@dataclass
class Stack:
    """One stack whose program may change from one run to the next. Runs raise CalledProcessError when they fail."""

    folder: Path
    environment: dict[str, str]
    provider: dict[str, Any]
    text: str = ""

    def up(self, *resources: Entry) -> dict[str, int]:
        """`pulumi up`: how many resources had which operation, e.g. {"create": 3, "unchange": 2}."""
        return self._run("up", resources, "--yes", "--skip-preview")

    def preview(self, *resources: Entry) -> dict[str, int]:
        """`pulumi preview`."""
        return self._run("preview", resources)

    def refresh(self) -> dict[str, int]:
        """`pulumi refresh`."""
        return self._run("refresh", None, "--yes", "--skip-preview")

    def destroy(self) -> dict[str, int]:
        """`pulumi destroy`."""
        return self._run("destroy", None, "--yes", "--skip-preview")

    def fails(self, run: Callable[..., Any], *resources: Entry) -> str:
        """The output of a run that must fail; it has no traceback and no JSON of the API server."""
        with pytest.raises(subprocess.CalledProcessError):
            run(*resources)
        assert "Traceback" not in self.text
        assert '"kind":"Status"' not in self.text
        return self.text

    def _run(self, command: str, resources: tuple[Entry, ...] | None, *flags: str) -> dict[str, int]:
        if resources is not None:
            program = {"provider": self.provider, "resources": resources}
            (self.folder / "program.json").write_text(json.dumps(program))
        self.pulumi(command, *flags)
        return {operation: int(count) for count, operation in _COUNT.findall(self.text.split("\nResources:")[-1])}

    def pulumi(self, *arguments: str) -> str:
        """Run the CLI and return its output."""
        done = subprocess.run(
            ["pulumi", *arguments, "--non-interactive", "--color", "never"],
            cwd=self.folder,
            env={**self.environment, "PROGRAM": str(self.folder / "program.json")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.text = done.stdout
        print(self.text)
        done.check_returncode()
        return self.text

    def state(self) -> str:
        """The state as it is stored."""
        return self.pulumi("stack", "export")

    def resources(self) -> dict[str, dict[str, Any]]:
        """The resources in the state by their logical names."""
        deployment = json.loads(self.state())["deployment"]
        return {entry["urn"].rsplit("::", 1)[-1]: entry for entry in deployment.get("resources", [])}


StackMaker = Callable[[str], Stack]


@pytest.fixture
def make_stack(tmp_path: Path, engine_environment: dict[str, str]) -> StackMaker:
    """Makes a stack for a kubeconfig. Its objects go with the test's namespace."""

    def make(kubeconfig: str) -> Stack:
        folder = tmp_path / "stack"
        shutil.copytree(Path(__file__).parent / "program", folder)
        provider = {"kubeconfig": kubeconfig, "context": CONTEXT, "clusterIdentifier": "test"}
        stack = Stack(folder, dict(engine_environment), provider)
        stack.pulumi("stack", "init", f"s{secrets.token_hex(3)}")
        return stack

    return make


@pytest.fixture
def stack(make_stack: StackMaker, cluster: Cluster) -> Stack:
    """A stack on the local node."""
    return make_stack(str(cluster.kubeconfig))
