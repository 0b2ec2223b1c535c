"""`trainyard`: the commands for people and workflows, in groups.

A command's module is imported when the command runs: the cloud SDKs and Kubernetes' client take seconds. The docstring
of its function, or of its module, is its help; the list of commands shows the first paragraph.
"""

from __future__ import annotations

import ast
import importlib
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
from cli.target import either
from trainer.plain import plain

ROOT = Path(__file__).resolve().parent.parent
#: Group -> command -> what it runs: a function, or a Typer of further commands.
GROUPS = {
    "Stack": {
        "doctor": "cli.doctor:doctor",
        "cost": "cli.cost:cost",
        "prove": "prove.command:prove",
    },
    "Run": {
        "follow": "cli.follow:follow",
        "status": "cli.status:status",
        "logs": "cli.logs:logs",
        "stop": "cli.lifecycle:stop",
        "resume": "cli.lifecycle:resume",
        "board": "cli.board:board",
        "upload": "cli.upload:upload",
        "fetch": "cli.fetch:fetch",
        "evaluate": "cli.evaluate:evaluate",
    },
    "CI": {
        "expired": "cli.ci:expired",
        "docker-login": "cli.ci:docker_login",
        "image": "cli.ci:image",
    },
    "Review": {
        "snapshot": "review.snapshot:review",
        "policy": "policy.check:check",
        "graph": "review.graph:graph",
        "docs": "review.docs:docs",
        "audit": "cli.ci:audit",
    },
    "Local": {"local": "local.commands:app"},
}
COMMANDS = {name: target for group in GROUPS.values() for name, target in group.items()}


class Lazy(TyperGroup):
    """List commands by their docstrings; import only the one that runs."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.commands = {
            name: TyperCommand(name, rich_help_panel=group) for group, commands in GROUPS.items() for name in commands
        }

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found and found.help is None:
            found.help = _summary(COMMANDS[cmd_name])
        return found

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and load(str(name)), rest


def _summary(target: str) -> str:
    """The first paragraph of a command's docstring, or of its module's, read without the import."""
    module, _, name = target.partition(":")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    found = [text for node in (*functions, tree) if (text := ast.get_docstring(node))]
    return found[0].split("\n\n")[0]


def load(name: str) -> Any:
    """Import a command."""
    module_name, _, attribute = COMMANDS[name].partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise CommandError(f"{name} needs the package {error.name}; make .venv/dev.stamp installs it") from None
    found = getattr(module, attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False, rich_markup_mode="markdown")
        found.command(name, help=function.__doc__ or module.__doc__)(function)
    for command in found.registered_commands:
        command.callback = command.callback and either(command.callback)
    command = typer.main.get_command(found)
    command.name = name
    return command


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
    chosen = [_at_home(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    if not chosen or (len(chosen) == 1 and COMMANDS.get(chosen[0], "").endswith(":app")):
        chosen.append("--help")
    try:
        return typer.main.get_command(app).main(chosen, prog_name="trainyard", standalone_mode=False) or 0
    except typer.TyperException as error:
        return _refuse(error.format_message(), error.exit_code)
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
