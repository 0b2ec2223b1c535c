"""A separate stack on the local node, driven through the command line as a user does."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chaos.nodes import ROOT
from infra.stackfiles import stack_file_values


@dataclass
class Stack:
    """The local stack under another name, in its own namespace. It does not touch the one that `make up` made."""

    name: str
    folder: Path
    """Where its stack file is written."""
    environment: dict[str, str]
    """The environment of `trainyard local run`, with the toolchain on PATH, Pulumi's local backend and KUBECONFIG."""
    values: dict[str, Any] = field(default_factory=lambda: stack_file_values("local"))

    def __post_init__(self) -> None:
        self.write(cluster={"namespace": self.namespace})

    @property
    def namespace(self) -> str:
        return f"trainyard-{self.name}"

    @property
    def config(self) -> Path:
        return self.folder / f"Pulumi.{self.name}.yaml"

    def write(self, **sections: dict[str, Any]) -> None:
        """Change sections of the stack file."""
        for name, change in sections.items():
            self.values[name] = {**self.values.get(name, {}), **change}
        keys = {f"trainyard:{name}": value for name, value in self.values.items()}
        self.config.write_text(
            yaml.safe_dump({"config": {"pulumi:disable-default-providers": ["kubernetes", "aws", "gcp"], **keys}})
        )

    def select(self) -> None:
        """Make the stack. First unlock and destroy one that a killed run left."""
        self.run(["pulumi", "cancel", "--yes", "--stack", self.name])
        self.remove()
        self.run(["pulumi", "stack", "select", "--create", self.name])
        # Pulumi writes the passphrase's salt into a file of the repository, but does not need it.
        (ROOT / f"Pulumi.{self.name}.yaml").unlink(missing_ok=True)

    def remove(self) -> None:
        self.pulumi("destroy", "--yes")
        self.run(["pulumi", "stack", "rm", "--yes", "--force", self.name])

    def up(self, *options: str) -> str:
        """Run `pulumi up`, which must succeed. Returns its output."""
        done = self.pulumi("up", "--yes", "--skip-preview", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pulumi(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["pulumi", *arguments, "--stack", self.name, "--non-interactive"]
        return self.run([*command, "--config-file", str(self.config)] if arguments[0] != "stack" else command)

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = ["--context", self.values["cluster"]["context"], "--namespace", self.namespace]
        return self.run(["kubectl", *where, *arguments], timeout=120)

    def run(self, command: list[str], timeout: float = 1200) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
        )

    def outputs(self) -> dict[str, Any]:
        return json.loads(self.pulumi("stack", "output", "--json").stdout)
