"""A stack of this repository's program under a name of its own, driven by Pulumi's Automation API."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pulumi import automation

from faults.fault import expect
from infra.stackfiles import ROOT, stack_file_values
from infra.state import protection


class Cli(automation.PulumiCommand):
    """The `pulumi` of an environment, which need not be this process's."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        found = shutil.which("pulumi", path=environment["PATH"])
        super().__init__(root=str(Path(found).parents[1]) if found else None)


class Workspace(automation.LocalWorkspace):
    """Leaves the user's selected stack selected, which a LocalWorkspace changes."""

    def create_stack(self, stack_name: str) -> None:
        self.pulumi_command.run(["stack", "init", "--no-select", stack_name], self.work_dir, self.env_vars)

    def select_stack(self, stack_name: str) -> None:
        self.pulumi_command.run(["stack", "--stack", stack_name], self.work_dir, self.env_vars)


def _local() -> dict[str, Any]:
    """The local stack's values; three such stacks have room on a node of two processors."""
    values = stack_file_values("local")
    return {**values, "dataset": {**values.get("dataset", {}), "cpu": 0.1}}


@dataclass
class Stack:
    """A stack file's values under another name, in a namespace of its own. It does not touch the stack NAME."""

    name: str
    folder: Path
    """Where its stack file is written."""
    environment: dict[str, str]
    """The environment of `trainyard local run`, with the toolchain on PATH, Pulumi's local backend and KUBECONFIG."""
    values: dict[str, Any] = field(default_factory=_local)
    _engine: automation.Stack | None = field(default=None, init=False, repr=False)

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

    def engine(self, make: bool = False) -> automation.Stack:
        """Raises StackNotFoundError."""
        if self._engine is None:
            workspace = Workspace(work_dir=str(ROOT), env_vars=self.environment, pulumi_command=Cli(self.environment))
            find = automation.Stack.create_or_select if make else automation.Stack.select
            self._engine = find(self.name, workspace)
        return self._engine

    def init(self) -> None:
        """Make the stack; one that a killed run left is unlocked."""
        self.engine(make=True)
        self.unlock()
        # Pulumi writes the passphrase's salt into a file of the repository, but does not need it.
        (ROOT / f"Pulumi.{self.name}.yaml").unlink(missing_ok=True)

    def unlock(self) -> None:
        """Release the lock of a killed Pulumi. Some backends complain when there is none."""
        with contextlib.suppress(automation.CommandError):
            self.change("cancel", "--yes")

    def select(self) -> None:
        """Make the stack, empty."""
        self.init()
        self.destroy()

    def up(self, expect_no_changes: bool = False) -> str:
        """Run `pulumi up`, which must succeed; return its output. Raises CommandError."""
        return self._update("up", "--yes", "--skip-preview", expect_no_changes=expect_no_changes)

    def preview(self, expect_no_changes: bool = False) -> str:
        return self._update("preview", expect_no_changes=expect_no_changes)

    def refuse_if_protected(self) -> None:
        """Raise AssertionError where anything of the stack is protected: without a preview Pulumi notices too late."""
        expect(not (lines := protection(self._exported(), self.name)), "; ".join(lines))

    def destroy(self) -> None:
        self.refuse_if_protected()
        self._update("destroy", "--yes", "--skip-preview")

    def remove(self) -> None:
        """Destroy what there is of the stack."""
        if self.exists():
            self.destroy()
            self.engine().workspace.remove_stack(self.name)
            self._engine = None

    def outputs(self) -> dict[str, Any]:
        return {name: output.value for name, output in self.engine().outputs().items()}

    def exists(self) -> bool:
        self._engine = None
        with contextlib.suppress(automation.StackNotFoundError):
            return bool(self.engine())
        return False

    def resources(self) -> list[str]:
        """URNs of the resources in the state, without providers; none where there is no stack."""
        if not self.exists():
            return []
        found = (self._exported()["deployment"] or {}).get("resources") or []
        return [each["urn"] for each in found if not each["type"].startswith("pulumi:")]

    def _exported(self) -> dict[str, Any]:
        return {"deployment": self.engine().export_stack().deployment}

    def _update(self, *arguments: str, expect_no_changes: bool = False) -> str:
        expected = ["--expect-no-changes"] if expect_no_changes else []
        return self.change(*arguments, *expected, "--config-file", str(self.config))

    def change(self, *arguments: str) -> str:
        """Run a command as a person does: the Automation API's `up` asks for outputs and history after each."""
        workspace = self.engine().workspace
        command = [*arguments, "--stack", self.name, "--color", "never"]
        return workspace.pulumi_command.run(command, workspace.work_dir, workspace.env_vars).stdout

    def pulumi(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command whose words or failure are looked at, as a person sees them."""
        command = ["pulumi", *arguments, "--stack", self.name, "--non-interactive"]
        return self.run([*command, "--config-file", str(self.config)])

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = ["--context", self.values["cluster"]["context"], "--namespace", self.namespace]
        return self.run(["kubectl", *where, *arguments], timeout=120)

    def run(self, command: list[str], timeout: float = 1200) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
        )
