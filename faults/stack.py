"""A stack of this repository's program under a name of its own, driven by the `pulumi` of its environment."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from faults.fault import Expected, expect, until
from infra.stackfiles import ROOT, stack_file_values
from infra.state import protection

LEAVE_SECONDS = 300
"""Seconds for an interrupted command to stop: Pulumi waits for the resource that it is making."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _local() -> dict[str, Any]:
    """The local stack's values; three such stacks have room on a node of two processors."""
    values = stack_file_values("local")
    return {**values, "dataset": {**values.get("dataset", {}), "cpu": 0.1}}


@dataclass
class Stack:
    """A stack file's values under another name, in a namespace of its own. It touches neither the stack NAME nor the
    user's selected stack."""

    name: str
    folder: Path
    """Where its stack file is written, and log.txt: what the commands that change it printed."""
    environment: dict[str, str]
    """As of `trainyard local run`, with the toolchain on PATH, Pulumi's local backend and KUBECONFIG."""
    values: dict[str, Any] = field(default_factory=_local)
    tick: Callable[[], None] = lambda: None
    """Called twice a second while a command changes the stack; what it raises ends the command."""
    say: Callable[[str], None] = lambda _: None
    """Shows what is waited for."""
    held: tuple[int, ...] = ()
    """Files that such a command keeps open, as a lock: where this process is killed, the command holds it on, so that
    two Pulumis never write one state."""

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

    def init(self) -> None:
        """Make the stack; one that a killed run left is unlocked."""
        if self.exists():
            self.unlock()
        else:
            self._change("stack", "init", "--no-select")
        # Pulumi writes the passphrase's salt into a file of the repository, but does not need it.
        (ROOT / f"Pulumi.{self.name}.yaml").unlink(missing_ok=True)

    def unlock(self) -> None:
        """Release the lock of a killed Pulumi. Some backends complain when there is none."""
        with contextlib.suppress(Expected):
            self._change("cancel", "--yes")

    def select(self) -> None:
        """Make the stack, empty."""
        self.init()
        self.destroy()

    def up(self, expect_no_changes: bool = False) -> str:
        """Run `pulumi up`, which must succeed; return its output."""
        return self._update("up", "--yes", "--skip-preview", expect_no_changes=expect_no_changes)

    def preview(self, expect_no_changes: bool = False) -> str:
        return self._update("preview", expect_no_changes=expect_no_changes)

    def refuse_if_protected(self) -> None:
        """Raise Expected where anything of the stack is protected: without a preview Pulumi notices too late."""
        expect(not (lines := protection(self._exported() or {}, self.name, {})), "; ".join(lines))

    def destroy(self) -> None:
        self.refuse_if_protected()
        self._update("destroy", "--yes", "--skip-preview")

    def remove(self) -> None:
        """Destroy what there is of the stack."""
        if self.exists():
            self.destroy()
            self._change("stack", "rm", "--yes")

    def exists(self) -> bool:
        return self._exported() is not None

    def outputs(self) -> dict[str, Any]:
        return json.loads(self._asked("stack", "output", "--json", "--show-secrets"))

    def resources(self) -> list[str]:
        """URNs of the resources in the state, without providers; none where there is no stack."""
        return [each["urn"] for each in self._state() if not each["type"].startswith("pulumi:")]

    def objects(self) -> list[str]:
        """KIND NAME of the Kubernetes objects in its state that belong to no namespace."""
        kinds = [each for each in self._state() if each["type"].startswith("kubernetes:")]
        named = [(each["type"].rpartition(":")[2], each["inputs"]["metadata"]) for each in kinds]
        return [f"{kind} {metadata['name']}" for kind, metadata in named if "namespace" not in metadata]

    def _state(self) -> list[dict[str, Any]]:
        return ((self._exported() or {}).get("deployment") or {}).get("resources") or []

    def _exported(self) -> dict[str, Any] | None:
        """Its state; None: there is no such stack."""
        try:
            return json.loads(self._asked("stack", "export"))
        except Expected as error:
            if "no stack named" in str(error):
                return None
            raise

    def _update(self, *arguments: str, expect_no_changes: bool = False) -> str:
        expected = ["--expect-no-changes"] if expect_no_changes else []
        return self._change(*arguments, *expected, "--config-file", str(self.config))

    def _pulumi(self, *arguments: str) -> list[str]:
        return ["pulumi", *arguments, "--stack", self.name, "--non-interactive"]

    def _asked(self, *arguments: str) -> str:
        command = self._pulumi(*arguments)
        done = self.run(command)
        _succeeded(command, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def _change(self, *arguments: str) -> str:
        return self.change([*self._pulumi(*arguments), "--color", "never"])

    def change(self, command: list[str]) -> str:
        """Run a command that must succeed, such as one that changes the stack; return its output, which the log keeps.

        `tick`, or this process's end, ends it: once asked to stop, Pulumi finishes what it has begun."""
        with open(self.folder / "log.txt", "a+", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            begin = log.tell()
            # A session of its own: Ctrl-C at a terminal must reach Pulumi once, because a second SIGINT kills it.
            process = subprocess.Popen(
                command,
                env=self.environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self.held,
            )
            try:
                until(lambda: process.poll() is not None, 7200, " ".join(command[:3]), self.tick, pause=0.5)
            finally:
                if process.poll() is None:
                    self._stop(process)
            log.seek(begin)
            said = log.read()
        _succeeded(command, process.returncode, said)
        return said

    def _stop(self, process: subprocess.Popen[Any]) -> None:
        """Ask a command once to stop and wait; kill it if it does not. Ctrl-C does not end the wait."""
        with stop_signals(signal.SIG_IGN):
            with contextlib.suppress(OSError):  # the terminal may be gone
                self.say(f"pulumi ends what it has begun, in {LEAVE_SECONDS} s at most")
            process.send_signal(signal.SIGINT)
            try:
                process.wait(LEAVE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def pulumi(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command whose words or failure are looked at, as a person sees them."""
        return self.run([*self._pulumi(*arguments), "--config-file", str(self.config)])

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = ["--context", self.values["cluster"]["context"], "--namespace", self.namespace]
        return self.run(["kubectl", *where, *arguments], timeout=120)

    def run(self, command: list[str], timeout: float = 1200) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
        )


def _succeeded(command: list[str], code: int, said: str) -> None:
    """Raise Expected, with the last lines of its output, where a command failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = [line for line in lines if "error" in line.lower()] or lines
    expect(code == 0, f"{' '.join(command[:4])} ended with {code}: {' / '.join(told[-3:])}")


@contextlib.contextmanager
def stop_signals(handler: Any) -> Iterator[None]:
    """Handle STOPPING with `handler`; a signal that `nohup` ignores stays ignored."""
    numbers = [number for number in STOPPING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)
