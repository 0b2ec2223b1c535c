"""The stack that a command is about: its options, and the training that its outputs describe."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import CommandError, last_line
from infra.stackfiles import PROJECT, ROOT, stack_file_values, stacks

if TYPE_CHECKING:
    from infra.config import StackConfig


#: Prefix of the stack that a proof makes from a stack's file.
PROOF = "prove-"


def known(name: str) -> str:
    """Return the name of a stack that has a file. Raises CommandError."""
    if name not in stacks():
        raise CommandError(f"no stack '{name}'; there are: {', '.join(stacks())}; {_made(name)}", code=2)
    return name


def _made(name: str) -> str:
    """How to make a stack that is not there."""
    if name in stacks():
        return f"`pulumi stack init {name}` makes it"
    return f"to make it: cp Pulumi.{stacks()[0]}.yaml Pulumi.{name}.yaml, edit it, and pulumi stack init {name}"


def _names(incomplete: str) -> list[str]:
    return [name for name in stacks() if name.startswith(incomplete)]


@dataclass(frozen=True)
class Named:
    """Marks a parameter that names a stack, or several: as argument and as `--stack`."""

    has_file: bool = True
    several: bool = False


#: The stack of a command that reads its file.
StackName = Annotated[str, Named()]
StackNames = Annotated[list[str] | None, Named(several=True)]
#: The stack of a command that asks its cluster; it may have no file here.
RunningStack = Annotated[str, Named(has_file=False)]


def either(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command that names a stack take it as argument and as `--stack`."""
    signature = inspect.signature(function, eval_str=True)
    marked = {
        name: rule
        for name, parameter in signature.parameters.items()
        for rule in getattr(parameter.annotation, "__metadata__", ())
        if isinstance(rule, Named)
    }
    if not marked:
        return function
    ((name, rule),) = marked.items()
    own = signature.parameters[name]
    needed = own.default is own.empty
    default = "" if needed else "Default: all." if rule.several else f"Default: {own.default}."
    shared: dict[str, Any] = {"metavar": "STACK", "autocompletion": _names}
    about = f"Name of a stack: gcp-c3 for Pulumi.gcp-c3.yaml. {default}".rstrip()
    argument = typer.Argument(help=f"{about} Also as --stack STACK.", show_default=False, **shared)
    option = typer.Option("--stack", hidden=True, **shared)
    kind = (list[str] if rule.several else str) | None

    def run(*, stack_argument: Any = None, stack_option: Any = None, **given: Any) -> Any:
        if stack_argument and stack_option and not rule.several:
            raise CommandError(f"STACK: given twice, {stack_argument} and --stack {stack_option}; give one", code=2)
        chosen = [*(stack_argument or ()), *(stack_option or ())] if rule.several else stack_argument or stack_option
        if needed and not chosen:
            raise CommandError(f"Missing argument 'STACK'; there are: {', '.join(stacks())}", code=2)
        chosen = chosen or (stacks() if rule.several else own.default)
        if rule.has_file:
            for each in [chosen] if isinstance(chosen, str) else chosen:
                known(each)
        return function(**{name: chosen}, **given)

    def parameter(called: str, how: Any) -> inspect.Parameter:
        return inspect.Parameter(called, own.KEYWORD_ONLY, default=None, annotation=Annotated[kind, how])

    # After the command's own arguments: `upload FROM [STACK]`.
    others = [each.replace(kind=own.KEYWORD_ONLY) for each in signature.parameters.values() if each.name != name]
    both = [parameter("stack_argument", argument), parameter("stack_option", option)]
    run.__signature__ = signature.replace(parameters=[*others, *both])  # pyright: ignore[reportFunctionMemberAccess]
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


Kubeconfig = Annotated[str | None, typer.Option(metavar="FILE", help="Default: the stack's, or as for kubectl.")]


def configuration(stack: str) -> StackConfig:
    """A stack's parsed file. Raises CommandError."""
    # Imported here: reading every section takes half the time of a command that asks a cluster.
    from infra.config import ConfigError
    from infra.parse import parse

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
    """Where this machine sees the pods' /data; None: nowhere."""
    commands: dict[str, str]
    """Output name -> command line, for advice."""
    run_directory: str | None = None
    """Folder of the run in the pods."""
    kubeconfig: str | None = None
    """The file with the context; None: wherever kubectl looks."""

    @property
    def resume(self) -> str:
        """The command that starts the training again."""
        return self.commands.get("resumeCommand", "trainyard resume")


def target_of(stack: str) -> Target:
    """Ask Pulumi for the outputs of a stack. Raises CommandError, and FileNotFoundError without Pulumi."""
    if is_local(stack):
        enter_local()
    try:
        done = _pulumi("stack", "output", "--json", "--stack", stack)
    except FileNotFoundError:
        if stack != "local":
            raise
        raise CommandError(DOWN) from None
    if done.returncode:
        raise CommandError(_why(stack, done.stderr))
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
        kubeconfig=outputs.get("kubeconfig"),
    )


DOWN = "stack local is not up; `make up` brings it up, with the datasets and runs that it left in .local/"


def _pulumi(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["pulumi", *arguments, "--non-interactive"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def _why(stack: str, said: str) -> str:
    """Pulumi's error as a line that says what to do."""
    homeless = "PULUMI_ACCESS_TOKEN" in said or "pulumi login" in said
    if stack == "local" and (homeless or "no stack named" in said):
        return DOWN
    if "no stack named" in said:
        listed = _pulumi("stack", "ls", "--json")
        made = [entry["name"] for entry in json.loads(listed.stdout)] if listed.returncode == 0 else []
        return f"no stack '{stack}' here; there are: {', '.join(made) or 'none'}; {_made(stack)}"
    if homeless:
        return f"Pulumi is not logged in, so nothing is known of stack {stack}; run `pulumi login`"
    if "passphrase" in said:
        return (
            f"the secrets of stack {stack} need their passphrase; set PULUMI_CONFIG_PASSPHRASE_FILE or ..._PASSPHRASE"
        )
    return last_line(said).removeprefix("error: ")


def is_local(stack: str) -> bool:
    """Whether the stack's state is in .local/."""
    return (ROOT / ".local" / "state" / ".pulumi" / "stacks" / PROJECT / f"{stack}.json").exists()


def enter_local() -> None:
    """Use the local node's programs, backend and kubeconfig."""
    from local import environment

    environment.prepare()
    os.environ.update(environment.settings())
