"""A stack of the repository, run by the real Pulumi engine with a provider that echoes (tests/standin)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from local import environment as node_environment
from local import toolchain
from local.paths import ROOT
from tests.standin.api_server import ApiServer
from tests.standin.provider import PACKAGES, Cloud

#: What a test's own project links to; the stack files are copies, so no test writes into the repository's.
SHARED = ("__main__.py", "infra", "workloads", "trainer", "requirements", "pyproject.toml", ".venv")
#: The training, and the patch that owns its number of pods.
JOB = {
    "kubernetes:batch/v1:Job training",
    "kubernetes:batch/v1:JobPatch training-size",
    "kubernetes:core/v1:ConfigMapPatch training-config",
}
#: Default providers, of dynamic resources and of the engine: a preview has no step for them.
DEFAULT = re.compile(r"^pulumi:providers:\S+ default")


def by_change(given: object) -> str:
    """The name of a case: its change, as a set has another order in each process that collects the tests."""
    return "" if isinstance(given, set) else str(given)


def replaced(plan: dict[str, set[str]]) -> set[str]:
    return set().union(*(things for operation, things in plan.items() if "replac" in operation))


def of_cloud(things: set[str]) -> set[str]:
    """Resources that are billed or hold data; no Kubernetes objects."""
    return {thing for thing in things if thing.startswith(("aws:", "gcp:", "docker-build:"))}


def assert_lines(lines: list[str], starts: tuple[str, ...]) -> None:
    """Each line begins with its start, in order, and there are no more lines."""
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=False)] == list(starts)
    assert len(lines) == len(starts)


@dataclass
class CloudStack:
    """One stack with its own cloud, state and configuration."""

    name: str
    folder: Path
    environment: dict[str, str]
    cloud: Cloud = field(default_factory=Cloud)
    values: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    planned: dict[str, set[str]] = field(default_factory=dict)
    """What the preview said before anything existed."""

    def configure(self, **changes: dict[str, Any]) -> None:
        """Change keys of sections for good, and write the stack file."""
        for section, change in changes.items():
            key = f"trainyard:{section}"
            self.values[key] = {**self.values.get(key, {}), **change}
        (self.folder / f"Pulumi.{self.name}.yaml").write_text(
            yaml.safe_dump({"config": self.values, "encryptionsalt": self._salt()})
        )

    def _salt(self) -> str:
        path = self.folder / f"Pulumi.{self.name}.yaml"
        return (yaml.safe_load(path.read_text()) or {}).get("encryptionsalt", "") if path.exists() else ""

    def pulumi(self, *arguments: str, fails: bool = False) -> str:
        """Run the CLI and return its stdout."""
        # With a real API server, Pulumi's own plugin makes the Kubernetes objects there.
        packages = tuple(each for each in PACKAGES if not (self.cloud.api and each == "kubernetes"))
        with self.cloud.attached(packages) as providers:
            done = subprocess.run(
                ["pulumi", *arguments, "--non-interactive", "--color", "never"],
                cwd=self.folder,
                env={**self.environment, "PULUMI_DEBUG_PROVIDERS": providers},
                capture_output=True,
                text=True,
                timeout=280,
            )
        self.text = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, self.text
        assert "Traceback" not in self.text
        return done.stdout

    def up(self, *options: str, fails: bool = False) -> str:
        self.pulumi("up", "--yes", "--skip-preview", *options, fails=fails)
        return self.text

    def destroy(self, fails: bool = False) -> str:
        self.pulumi("destroy", "--yes", "--skip-preview", fails=fails)
        return self.text

    def down_refused(self) -> str:
        """`trainyard down --yes`, which must refuse and leave the state as it is; return what it says."""
        before = self.state()
        command = [sys.executable, "-m", "cli", "down", "--stack", self.name, "--yes"]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 2, done.stdout + done.stderr
        assert self.state() == before
        return done.stderr

    def preview(self) -> dict[str, set[str]]:
        """What `pulumi up` would do: operation -> "TYPE NAME", without unchanged resources."""
        planned: dict[str, set[str]] = {}
        for step in self._steps():
            parts = step["urn"].split("::")
            if step["op"] not in ("same", "read"):
                planned.setdefault(step["op"], set()).add(f"{parts[2].split('$')[-1]} {parts[3]}")
        return planned

    def _steps(self) -> list[dict[str, Any]]:
        return json.loads(self.pulumi("preview", "--json"))["steps"]

    def inputs_previewed(self, type_: str, name: str) -> dict[str, Any]:
        """The inputs that a resource has, or would get."""
        steps = [step for step in self._steps() if step["urn"].endswith(f"{type_}::{name}") and "newState" in step]
        return steps[0]["newState"]["inputs"]

    def refused(self, **changes: dict[str, Any]) -> list[str]:
        """Refusals of changes that a living stack cannot take, in a preview."""
        values = dict(self.values)
        self.configure(**changes)
        self.pulumi("preview", fails=True)
        self.values = values
        self.configure()
        return self.refusals()

    def refusals(self) -> list[str]:
        """Those that the last command told."""
        return [line.strip() for line in self.text.splitlines() if "on a stack that lives with" in line]

    def restored(self) -> Iterator[CloudStack]:
        """For a fixture: restore the configuration after the test."""
        before = dict(self.values)
        yield self
        self.values = before
        self.configure()

    def made(self) -> set[str]:
        """ "TYPE NAME" of every resource in the state; those that are only read, as a check's result, were not made."""
        resources = json.loads(self.state())["deployment"].get("resources", [])
        found = {f"{each['type']} {each['urn'].rsplit('::', 1)[-1]}" for each in resources if not each.get("external")}
        return {name for name in found if not DEFAULT.search(name)}

    def state(self) -> str:
        """The state as it is stored."""
        return self.pulumi("stack", "export")


def kubernetes_plugin() -> Path:
    """Pulumi's own, as `trainyard local toolchain` built or downloaded it."""
    built = Path(toolchain.program("pulumi-resource-kubernetes"))
    found = built if built.exists() else node_environment.find_plugin("kubernetes")
    return found or pytest.fail("Pulumi's Kubernetes plugin is missing; run `.venv/bin/trainyard local toolchain`")


def make(name: str, folder: Path, api: ApiServer | None = None) -> CloudStack:
    """Make a project for a stack of the repository, with nothing created yet.

    With `api`, Pulumi's own Kubernetes plugin makes the objects there.
    """
    for entry in SHARED:
        if (ROOT / entry).exists():
            (folder / entry).symlink_to(ROOT / entry)
    (folder / "Pulumi.yaml").write_text((ROOT / "Pulumi.yaml").read_text())
    home, state = folder / "home", folder / "state"
    for made in (home, state):
        made.mkdir()
    variables = {
        **os.environ,
        **node_environment.settings(),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), node_environment.path()]),
        "PULUMI_HOME": str(home),
        "PULUMI_BACKEND_URL": node_environment.state_url(state),
        "PULUMI_CONFIG_PASSPHRASE": "",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        # Write the state only at the end, also of a failed `up`: writing it after each of 75 steps costs two seconds.
        "PULUMI_SKIP_CHECKPOINTS": "true",
    }
    if api:
        variables |= api.environment(variables["PATH"])
        plugin = (
            home
            / "plugins"
            / node_environment.plugin_in("kubernetes").relative_to(node_environment.paths.PULUMI_HOME / "plugins")
        )
        plugin.parent.mkdir(parents=True)
        plugin.symlink_to(kubernetes_plugin())
    stack = CloudStack(name, folder, variables, Cloud(api=api.address if api else ""))
    stack.pulumi("stack", "init", name)
    stack.values = yaml.safe_load((ROOT / f"Pulumi.{name}.yaml").read_text())["config"]
    stack.configure()
    if "trainyard:eks" in stack.values:
        # The shipped file has a documentation address, which `pulumi up` refuses.
        stack.configure(eks={"apiAllowedCidrs": ["1.2.3.4/32"]})
    return stack
