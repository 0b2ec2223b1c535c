"""The stack that a command is about: its options, and the training that its outputs describe."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import CommandError, last_line
from infra.stackfiles import NODE_CONTEXT, PROJECT, ROOT, stack_file_values, stacks
from workloads.layout import run_folder

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
        return f"`trainyard up --stack {name}` makes it"
    close = difflib.get_close_matches(name.lower(), stacks(), 1)
    return f"{f'did you mean {close[0]}? ' if close else ''}`trainyard init {name}` writes its file"


def _names(incomplete: str) -> list[str]:
    return [name for name in stacks() if name.startswith(incomplete)]


def selected() -> str:
    """The stack that `pulumi stack select` chose, else the local one if it is up. Raises CommandError."""
    with suppress(FileNotFoundError):
        done = ask_pulumi("stack", "--show-name")
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip().rpartition("/")[2]  # Pulumi Cloud puts the organisation before it
    if is_local("local"):
        return "local"
    raise CommandError(f"no stack is selected; give --stack NAME; there are: {', '.join(stacks())}", code=2)


def _option(choose: Callable[[Any], Any], default: str) -> Any:
    """`--stack NAME`, the one way to name a stack to a command."""
    about = f"A stack: gcp-c3 for Pulumi.gcp-c3.yaml. Default: {default}."
    return typer.Option(
        "--stack", metavar="NAME", callback=choose, autocompletion=_names, help=about, show_default=False
    )


_SELECTED = "the one that `pulumi stack select` chose, else `local` if it is up"
#: The stack of a command that reads its file.
StackName = Annotated[str, _option(lambda given: known(given or selected()), _SELECTED)]
#: The stack of a command that asks its cluster; it may have no file here.
RunningStack = Annotated[str, _option(lambda given: given or selected(), _SELECTED)]
StackNames = Annotated[
    list[str] | None, _option(lambda given: [known(each) for each in given or stacks()], "all, it may be repeated")
]
#: One of a stack's trainings.
TrainingName = Annotated[
    str, typer.Option("--training", metavar="NAME", help="Of several, this one.", show_default=False)
]
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


def node_price(stack: str) -> float | None:
    """USD per hour of a node that trains, by list prices; None: the stack has no file here, or makes no nodes."""
    if stack not in stacks():
        return None
    from infra.cost import estimate

    try:
        config = configuration(stack)
    except CommandError:
        return None  # it is being edited; the cluster can be asked all the same
    bill = estimate(config) if config.nodes is not None else None
    if bill is None or bill.at_full is None or bill.at_rest is None or config.nodes is None:
        return None
    return (bill.at_full - bill.at_rest) / config.nodes.max


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
    """The file with the context: that of --kubeconfig, or the stack's; None: wherever kubectl looks."""
    training: str = ""
    """Its name, of several of the stack; empty: the stack has one."""

    @property
    def run(self) -> str:
        """The name of its run on the volume."""
        return PurePosixPath(self.run_directory or "").name

    @property
    def resume(self) -> str:
        """The command that starts the training again."""
        command = self.commands.get("resumeCommand", "trainyard resume")
        return f"{command}{self.option}"

    @property
    def option(self) -> str:
        """What a command needs beside the stack to be about this training."""
        return f" --training {self.training}" if self.training else ""


def target_of(stack: str, training: str = "", run: str | None = None, kubeconfig: str | None = None) -> Target:
    """A training of a stack: the one of that name, or the only one; any with the folder of a `run` that is named.

    Raises CommandError.
    """
    found = targets_of(stack, kubeconfig)
    if run:
        return replace(found[0], run_directory=run_folder(run))
    names = ", ".join(target.training for target in found if target.training)
    if training and not names:
        raise CommandError(
            f"--training {training}: stack {stack} has one training, without a name; leave it out", code=2
        )
    if len(found) > 1 and not training:
        raise CommandError(f"stack {stack} has several trainings; give --training NAME, one of: {names}", code=2)
    chosen = [target for target in found if training in ("", target.training)]
    if not chosen:
        raise CommandError(f"--training {training}: stack {stack} has no such training; there are: {names}", code=2)
    return chosen[0]


def chosen(stack: str, training: str = "", kubeconfig: str | None = None) -> list[Target]:
    """The training of that name; without one, all trainings of the stack. Raises CommandError."""
    return [target_of(stack, training, None, kubeconfig)] if training else targets_of(stack, kubeconfig)


def _outputs(stack: str) -> dict[str, Any]:
    """The outputs of a stack whose cluster is there. Raises CommandError, and FileNotFoundError without Pulumi."""
    if is_local(stack):
        enter_local()
    try:
        outputs = _answer("stack", "output", "--json", "--stack", stack)
    except FileNotFoundError:
        if stack != "local":
            raise
        raise CommandError(DOWN) from None
    if outputs.get("context") == NODE_CONTEXT and is_local(stack) and not node_runs():
        raise CommandError(STOPPED)
    return outputs


def volume_of(stack: str, kubeconfig: str | None = None) -> Target | None:
    """A stack's volume, whatever trains there; None: it has none yet. Raises as targets_of."""
    outputs = _outputs(stack)
    return target_from(outputs, kubeconfig) if "namespace" in outputs else None


def targets_of(stack: str, kubeconfig: str | None = None) -> list[Target]:
    """All trainings of a stack, the most urgent first. Raises CommandError, and FileNotFoundError without Pulumi."""
    outputs = _outputs(stack)
    runs = outputs.get("trainings") or ({"": outputs} if "jobName" in outputs else {})
    if not runs:
        raise CommandError(f"stack {stack} has no training yet; run `trainyard up --stack {stack}` first")
    ordered = sorted(runs.items(), key=lambda item: item[1].get("rank", 0))
    return [target_from(outputs, kubeconfig, name, run["jobName"], run.get("runDirectory")) for name, run in ordered]


def target_from(
    outputs: dict[str, Any], kubeconfig: str | None, training: str = "", job: str = "", run_directory: str | None = None
) -> Target:
    """A training, from the outputs of its stack."""
    commands = {name: value for name, value in outputs.items() if name.endswith("Command")}
    file = kubeconfig or outputs.get("kubeconfig")
    place = (outputs["context"], outputs["namespace"], job, outputs.get("dataFolder"))
    return Target(*place, commands, run_directory, file, training)


def exported(stack: str) -> dict[str, Any]:
    """A stack's state as `pulumi stack export` prints it, secrets encrypted. Raises CommandError."""
    return _answer("stack", "export", "--stack", stack)


#: A stack on this machine while the node is stopped.
STOPPED = "the node is stopped; `trainyard local up` starts it, with all that its stacks have"
DOWN = "stack local is not up; `make up` brings it up, with the datasets and runs that it left in .local/"


def ask_pulumi(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["pulumi", *arguments, "--non-interactive"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def _answer(*arguments: str) -> dict[str, Any]:
    """What Pulumi says of a stack, the last argument, as JSON. Raises CommandError."""
    done = ask_pulumi(*arguments)
    if done.returncode:
        raise CommandError(_why(arguments[-1], done.stderr))
    return json.loads(done.stdout)


def run(*command: str) -> int:
    """Run a program on this terminal; return its exit code. Ctrl-C reaches it too, and it ends what it has begun."""
    with subprocess.Popen(list(command), cwd=ROOT) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def _why(stack: str, said: str) -> str:
    """Pulumi's error as a line that says what to do.

    By its words: of a stack that is not there they stayed, and the exit code went from 255 (3.200.0) to 6 (3.274.1).
    """
    homeless = "PULUMI_ACCESS_TOKEN" in said or "pulumi login" in said
    if stack == "local" and (homeless or "no stack named" in said):
        return DOWN
    if "no stack named" in said:
        listed = ask_pulumi("stack", "ls", "--json")
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


def node_runs() -> bool:
    """Whether this machine's node is up: its context is in .local/kubeconfig from its start to its stop."""
    file = ROOT / ".local" / "kubeconfig"
    return file.exists() and NODE_CONTEXT in file.read_text("utf-8")


def enter_local() -> None:
    """Use the local node's programs, backend and kubeconfig."""
    from local import environment

    environment.prepare()
    os.environ.update(environment.settings())
