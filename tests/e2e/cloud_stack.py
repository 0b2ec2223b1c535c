"""A stack of the repository, run by the real Pulumi engine in a cloud that is a file (tests/standin)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from local import environment as node_environment
from local import paths
from tests.standin.attached import attached
from tests.standin.aws.account import Account
from tests.standin.cloud import SERVICE, Cloud

#: What a project of its own has of the repository, so that no test writes into a stack file of it.
SHARED = ("__main__.py", "infra", "workloads", "trainer", "requirements", "pyproject.toml", ".venv", "policy")
#: The training, and the patch that owns its number of pods.
JOB = {"kubernetes:batch/v1:Job training", "kubernetes:batch/v1:JobPatch training-size"}
#: A default provider, which is no step of its own: a dynamic provider's, and the engine's own.
DEFAULT = re.compile(r"^pulumi:providers:\S+ default")


def replaced(plan: dict[str, set[str]]) -> set[str]:
    return set().union(*(things for operation, things in plan.items() if "replac" in operation))


def of_cloud(things: set[str]) -> set[str]:
    """Those that are billed or hold data, without Kubernetes objects."""
    return {thing for thing in things if thing.startswith(("aws:", "gcp:", "docker-build:"))}


def assert_lines(lines: list[str], starts: tuple[str, ...]) -> None:
    """As many lines as there are starts, in their order."""
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=False)] == list(starts)
    assert len(lines) == len(starts)


@dataclass
class CloudStack:
    """One stack with a cloud, a state and a configuration of its own."""

    name: str
    folder: Path
    environment: dict[str, str]
    account: Account | None = None
    values: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    planned: dict[str, set[str]] = field(default_factory=dict)
    """What the preview said before anything existed."""

    @property
    def cloud(self) -> Cloud:
        return Cloud(self.folder / "cloud.json")

    def configure(self, **changes: dict[str, Any]) -> None:
        """Write the stack's file: the repository's, with keys of sections changed for good."""
        for section, change in changes.items():
            key = f"trainyard:{section}"
            self.values[key] = {**self.values.get(key, {}), **change}
        (self.folder / f"Pulumi.{self.name}.yaml").write_text(
            yaml.safe_dump({"config": self.values, "encryptionsalt": self._salt()})
        )

    def _salt(self) -> str:
        path = self.folder / f"Pulumi.{self.name}.yaml"
        return (yaml.safe_load(path.read_text()) or {}).get("encryptionsalt", "") if path.exists() else ""

    @contextmanager
    def served(self) -> Iterator[dict[str, str]]:
        """The environment of a process in which Pulumi finds the clouds, as long as the context lasts."""
        with attached(self.cloud, self.account) as providers:
            yield {**self.environment, "PULUMI_DEBUG_PROVIDERS": providers}

    def pulumi(self, *arguments: str, fails: bool = False) -> str:
        """What the CLI prints."""
        with self.served() as environment:
            done = subprocess.run(
                ["pulumi", *arguments, "--non-interactive", "--color", "never"],
                cwd=self.folder,
                env=environment,
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

    def preview(self) -> dict[str, set[str]]:
        """What `pulumi up` would do: operation -> "TYPE NAME"; what stays as it is is left out."""
        steps = json.loads(self.pulumi("preview", "--json"))["steps"]
        planned: dict[str, set[str]] = {}
        for step in steps:
            parts = step["urn"].split("::")
            if step["op"] not in ("same", "read"):
                planned.setdefault(step["op"], set()).add(f"{parts[2].split('$')[-1]} {parts[3]}")
        return planned

    def refused(self, **changes: dict[str, Any]) -> list[str]:
        """What preview and up say to changes that a living stack cannot have; they touch nothing."""
        values, journal = dict(self.values), self.cloud.journal()
        self.configure(**changes)
        self.pulumi("preview", fails=True)
        lines = self._refusals()
        self.up(fails=True)
        assert self._refusals() == lines
        assert self.cloud.journal() == journal
        self.values = values
        self.configure()
        return lines

    def _refusals(self) -> list[str]:
        return [line.strip() for line in self.text.splitlines() if "on a stack that lives with" in line]

    def existing(self) -> set[str]:
        """What exists and is not an enabled API, which stays for good."""
        return {thing.title for thing in self.cloud.things().values() if thing.type != SERVICE}

    def restored(self) -> Iterator[CloudStack]:
        """For a fixture: the configuration is as before after the test."""
        before = dict(self.values)
        yield self
        self.values = before
        self.configure()

    def state(self) -> str:
        """The state as it is stored."""
        return self.pulumi("stack", "export")


def make(name: str, folder: Path, account: Account | None = None, program: Path = paths.ROOT) -> CloudStack:
    """A stack of the repository that nothing was created of yet; on AWS, in an emulated account.

    `program`: another checkout, for what the stand-in says of it.
    """
    for entry in SHARED:
        if (program / entry).exists():
            (folder / entry).symlink_to(program / entry)
    (folder / "Pulumi.yaml").write_text((paths.ROOT / "Pulumi.yaml").read_text())
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
        # The state is written at the end alone, of an `up` that fails too: after each of 75 steps it costs two seconds.
        "PULUMI_SKIP_CHECKPOINTS": "true",
    }
    stack = CloudStack(name, folder, variables, account)
    stack.pulumi("stack", "init", name)
    stack.values = yaml.safe_load((program / f"Pulumi.{name}.yaml").read_text())["config"]
    stack.configure()
    if account:
        # The shipped file has nobody's address, which `pulumi up` refuses.
        stack.configure(eks={"apiAllowedCidrs": ["1.2.3.4/32"]})
    return stack
