"""`trainyard`: the commands for people and workflows, in groups.

A command's module is imported when the command runs: the cloud SDKs and Kubernetes' client take seconds. Its help is
the sentence here, then the docstring of its function, or what its module's says beyond the first line.
"""

from __future__ import annotations

import importlib
import inspect
import os
import platform
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from cli import CommandError
from trainer.plain import plain

ROOT = Path(__file__).resolve().parent.parent
#: Group -> command -> what it runs, a function or a Typer of further commands, and what that does.
Groups = dict[str, dict[str, tuple[str, str]]]
#: In the order of a person's day.
GROUPS: Groups = {
    "Begin": {
        "init": ("cli.init:init", "Write the file of a new stack: a model, data, and machines like another stack's."),
        "doctor": (
            "cli.doctor:doctor",
            "Check what a stack needs before `trainyard up`, and say how to fix what is missing.",
        ),
        "cost": ("cli.cost:cost", "Show what a stack costs per hour by list prices."),
        "prove": (
            "prove.command:prove",
            "Bring a stack up, test every claim on the live cluster, destroy it, write a report.",
        ),
        "up": ("cli.up:up", "Bring a stack up: cluster, storage, image and training."),
    },
    "Watch": {
        "follow": ("cli.follow:follow", "Follow a training to its end."),
        "ps": ("cli.ps:ps", "List the stacks of this machine: what runs, since when, at what cost."),
        "status": ("cli.status:status", "Show on one screen how a training is doing."),
        "logs": ("cli.logs:logs", "Print the log of rank 0, or of one pod."),
        "board": ("cli.board:board", "Open a stack's TensorBoard in the browser."),
    },
    "Results": {
        "runs": ("cli.runs:runs", "List all runs on a stack's volume."),
        "compare": ("cli.compare:compare", "Rank a stack's trainings, with the settings in which they differ."),
        "fetch": ("cli.fetch:fetch", "Download a run: model, metrics, report."),
        "sample": ("cli.sample:sample", "Let a run's model continue a text, in the cluster."),
        "chat": ("cli.sample:chat", "Talk with a run's model, in the cluster."),
        "export": ("cli.export:export", "Export a run's model as a folder that transformers loads."),
        "push": ("cli.export:push", "Upload a run's model to the Hugging Face hub."),
        "evaluate": (
            "cli.evaluate:evaluate",
            "Run benchmarks of lm-evaluation-harness on a run's checkpoint, in the cluster.",
        ),
    },
    "Volume": {
        "upload": ("cli.upload:upload", "Upload a file or folder to a stack's shared volume."),
        "ls": ("cli.volume:ls", "List a folder of the shared volume."),
        "du": ("cli.volume:du", "Show what takes the space of the shared volume."),
        "rm": ("cli.volume:rm", "Remove runs, data sets and other files from the shared volume."),
        "run": ("cli.run:run", "Run a command in a stack's image with its volume."),
    },
    "End": {
        "stop": ("cli.lifecycle:stop", "Stop a training: its pods save a checkpoint and leave."),
        "resume": (
            "cli.lifecycle:resume",
            "Resume a training that ended before it was done, from its newest checkpoint in the same folder.",
        ),
        "down": ("cli.up:down", "Take a stack down, with everything that it made and that costs money."),
    },
    "More": {
        "local": (
            "local.commands:app",
            "Run a real one-node Kubernetes on this machine, with the toolchain that Pulumi needs.",
        ),
        "dev": ("cli.__main__:dev", "Review, document and publish this checkout: for developers and workflows."),
    },
}
DEV: Groups = {
    "Review": {
        "snapshot": ("review.snapshot:review", "Compare what each stack declares with its reviewed snapshot."),
        "policy": (
            "review.policy:check",
            "Check stacks against the policy rules, without Pulumi's engine or credentials.",
        ),
        "facts": (
            "review.facts:facts",
            "List every fact of the outside world with its age, the oldest first: what to look at again.",
        ),
        "docs": ("review.docs:docs", "Regenerate the parts of the documentation that come from the code."),
    },
    "Workflows": {
        "expired": (
            "cli.ci:expired",
            "List the stacks whose `cluster.ttlHours` have passed, and the proofs that died.",
        ),
        "docker-login": (
            "cli.ci:docker_login",
            "Let Docker push to the registry of a Google Cloud stack; other stacks need no login.",
        ),
        "kind": (
            "cli.ci:kind",
            "Say of which kind a stack's cluster is, and so which cloud a workflow has to log in to.",
        ),
        "image": ("cli.ci:image", "Push the trainer's image, with SBOM and provenance, for a stack's `image.ref`."),
    },
}


def _targets(groups: Groups, before: str = "") -> dict[str, tuple[str, str]]:
    return {f"{before}{name}": target for group in groups.values() for name, target in group.items()}


#: Command, as it is typed after `trainyard` -> what it runs, and what that does.
COMMANDS = _targets(GROUPS) | _targets(DEV, "dev ")


class Lazy(TyperGroup):
    """List commands by their sentences; import only the one that runs."""

    groups = GROUPS
    before = ""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.commands = {
            name: TyperCommand(name, rich_help_panel=group, help=sentence)
            for group, commands in self.groups.items()
            for name, (_, sentence) in commands.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load(f"{self.before}{name}"), rest


class LazyDev(Lazy):
    groups, before = DEV, "dev "


def load(name: str) -> Any:
    """Import a command."""
    (target, sentence), last = COMMANDS[name], name.rpartition(" ")[2]
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise CommandError(f"{name} needs the package {package}; make .venv/dev.stamp installs it") from None
    found = getattr(module, attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False, rich_markup_mode="markdown")
        more = function.__doc__ or (module.__doc__ or "").partition("\n\n")[2]
        found.command(last, help=f"{sentence}\n\n{inspect.cleandoc(more)}")(function)
    command = typer.main.get_command(found)
    command.name = last
    return command


dev = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@dev.callback(cls=LazyDev, help=COMMANDS["dev"][1])
def _dev() -> None:
    pass


app = typer.Typer(
    cls=Lazy,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train and fine-tune language models on Kubernetes. `trainyard COMMAND --help` explains a command.",
)


def _version(asked: bool) -> None:
    if not asked:
        return
    from importlib.metadata import version

    print(f"trainyard {_checkout()}, Python {platform.python_version()}, Pulumi SDK {version('pulumi')}")
    raise typer.Exit


def _checkout() -> str:
    """The commit; in an archive without git, the project's version."""
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--tags"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code. Every error that a user can cause is one line."""
    given = sys.argv[1:] if arguments is None else arguments
    own = given.index("--") if "--" in given else len(given)  # what follows is for a program elsewhere
    chosen = [*map(_at_home, given[:own]), *given[own:]]
    if not chosen or chosen in (["local"], ["dev"]):
        chosen.append("--help")
    try:
        return typer.main.get_command(app).main(chosen, prog_name="trainyard", standalone_mode=False) or 0
    except typer.TyperException as error:
        return _refuse(error.format_message(), error.exit_code)
    except typer.Abort:  # Ctrl-C, or the end of the input, at a question
        return 130
    except OSError as error:
        if error.filename == "pulumi":  # subprocess puts a missing program there
            return _refuse("pulumi is not on PATH; install it, or `make up` for the local stack", 1)
        return _refuse(str(error) or type(error).__name__, 1)
    except ValueError as error:
        from infra.config import ConfigError  # reads every section

        if not isinstance(error, ConfigError):
            raise
        return _refuse(str(error), 2)


def _at_home(word: str) -> str:
    """Expand ~ also where the shell does not: in --to=~/models, and in quotes."""
    option, equals, path = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{equals}{os.path.expanduser(path)}"


def _refuse(text: str, code: int) -> int:
    print(f"error: {plain(text)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
