"""Which stack a command is about: its options, and what the stack's outputs say about its training."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import Annotated

import typer

from cli import CommandError
from infra.config import ConfigError, StackConfig
from infra.parse import parse
from infra.stackfiles import PROJECT, ROOT, stack_file_values, stacks


def known(name: str) -> str:
    """A stack that has a file. Raises CommandError."""
    if name not in stacks():
        raise CommandError(f"no stack '{name}'; there are: {', '.join(stacks())}", code=2)
    return name


def _known_all(names: list[str] | None) -> list[str]:
    return [known(name) for name in names or stacks()]


def _names(incomplete: str) -> list[str]:
    return [name for name in stacks() if name.startswith(incomplete)]


#: The stack of a command that reads its file.
StackName = Annotated[
    str,
    typer.Argument(
        metavar="STACK", help="Name of a stack: gcp-c3 for Pulumi.gcp-c3.yaml.", callback=known, autocompletion=_names
    ),
]
StackNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="STACK", help="Default: all.", callback=_known_all, autocompletion=_names),
]
#: The same, of which some may have a file in another commit only.
AnyStackNames = Annotated[
    list[str] | None, typer.Argument(metavar="STACK", help="Default: all.", autocompletion=_names)
]
#: The stack of a command that asks its cluster; it may have no file here.
RunningStack = Annotated[str, typer.Option("--stack", metavar="STACK", autocompletion=_names)]
Kubeconfig = Annotated[str | None, typer.Option(metavar="FILE", help="Default: $KUBECONFIG, else ~/.kube/config.")]


def configuration(stack: str) -> StackConfig:
    """A stack's parsed file. Raises CommandError."""
    try:
        return parse(stack_file_values(stack), stack)
    except ConfigError as error:
        raise CommandError(str(error), code=2) from None


@dataclass(frozen=True)
class Target:
    """A training, from the outputs of its stack."""

    context: str
    namespace: str
    job: str
    data_folder: str | None
    """Where this machine sees the pods' /data; None: it does not."""
    commands: dict[str, str]
    """Output name -> command line, for advice."""
    run_directory: str | None = None
    """Folder of the run in the pods."""


def target_of(stack: str) -> Target:
    """Ask Pulumi for the outputs of a stack. Raises CommandError."""
    if is_local(stack):
        enter_local()
    command = ["pulumi", "stack", "output", "--json", "--stack", stack]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    except FileNotFoundError:
        raise CommandError("pulumi is not on PATH; install it, or `make up` for the local stack") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pulumi stack output failed"]
        raise CommandError(lines[-1].removeprefix("error: "))
    outputs = json.loads(done.stdout)
    if "jobName" not in outputs:
        raise CommandError(f"stack {stack} has no training yet; run `pulumi up --stack {stack}` first")
    return Target(
        context=outputs["context"],
        namespace=outputs["namespace"],
        job=outputs["jobName"],
        data_folder=outputs.get("dataFolder"),
        commands={name: value for name, value in outputs.items() if name.endswith("Command")},
        run_directory=outputs.get("runDirectory"),
    )


def is_local(stack: str) -> bool:
    """Whether the stack's state is in .local/."""
    return (ROOT / ".local" / "state" / ".pulumi" / "stacks" / PROJECT / f"{stack}.json").exists()


def enter_local() -> None:
    """Take over the local node's programs, backend and kubeconfig."""
    from local import environment

    environment.prepare()
    os.environ.update(environment.settings())
