"""Follows a training to its end: `python -m cli.follow --stack local`.

Reads the stack's outputs for the Job, then the Job's and the pods' status and the log of every pod of the Job (rank 0
may move from one to another), and draws one progress line: step, loss, tokens/s, time to go. At the end it prints the
validation loss, a sample of what the model writes, where the checkpoint is and what to try next.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client
from rich.console import Console

from cli.progress import Board
from cli.watch import JobWatch, Outcome, UnreachableError, connect
from workloads.layout import DATA

#: Output of the stack -> what its command is for.
ADVICE = {
    "sampleCommand": "Let it write",
    "fetchCommand": "Model, metrics and report to this machine",
    "tensorboardCommand": "Curves, at http://localhost:6006",
    "logsCommand": "Logs",
}


@dataclass(frozen=True)
class Target:
    """The training to follow, from the stack's outputs."""

    context: str
    namespace: str
    job: str
    data_folder: str | None
    """Where this machine sees the pods' /data; None: it does not."""
    commands: dict[str, str]
    """Output name -> command line, for the closing advice."""
    run_directory: str | None = None
    """Folder of the run in the pods."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cli.follow", description="Follow a training to its end.")
    parser.add_argument("--stack", required=True, help="stack whose training to follow")
    kubeconfig_option(parser)
    parser.add_argument("--before", metavar="COMMAND", help="what to type before the commands that the end advises")
    options = parser.parse_args(arguments)
    try:
        target = target_of(options.stack)
        api = connect(target.context, options.kubeconfig)
        watch = JobWatch(client.CoreV1Api(api), client.BatchV1Api(api), target.namespace, target.job)
        with Board() as board:
            outcome = watch.follow(board)
    except (LookupError, UnreachableError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nThe training goes on; `make follow STACK={options.stack}` comes back to it.")
        return 130
    report(Console(), target, outcome, options.before)
    return 0 if outcome.succeeded else 1


def stack_options(parser: argparse.ArgumentParser, what: str) -> None:
    """The options --stack and --kubeconfig of a command that looks at a stack."""
    parser.add_argument("--stack", default="local", help=f"stack whose {what} it is (default: local)")
    kubeconfig_option(parser)


def kubeconfig_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubeconfig", help="kubeconfig file (default: $KUBECONFIG, else ~/.kube/config)")


def target_of(stack: str) -> Target:
    """What the stack's outputs say about its training.

    Raises:
        LookupError: when there is no such stack, or it has not been brought up.
    """
    command = ["pulumi", "stack", "output", "--json", "--stack", stack]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    except FileNotFoundError:
        raise LookupError("pulumi is not on PATH; for the local stack run `make follow`") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pulumi stack output failed"]
        raise LookupError(lines[-1].removeprefix("error: "))
    outputs = json.loads(done.stdout)
    if "jobName" not in outputs:
        raise LookupError(f"stack {stack} has no training yet; run `pulumi up --stack {stack}` first")
    return Target(
        context=outputs["context"],
        namespace=outputs["namespace"],
        job=outputs["jobName"],
        data_folder=outputs.get("dataFolder"),
        commands={name: value for name, value in outputs.items() if name.endswith("Command")},
        run_directory=outputs.get("runDirectory"),
    )


def report(console: Console, target: Target, outcome: Outcome, before: str | None = None) -> None:
    """The end of the training, for a person; `before` is a command that the advised ones need."""

    def write(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    write("")
    if not outcome.succeeded:
        write(f"The training failed: {outcome.message}", "bold red")
        write(f"  logs: {target.commands.get('logsCommand', '')}")
        write(f"  again, once that is mended: {target.commands.get('retryCommand', '')}")
        return
    done = outcome.result
    loss, start = done.get("validation_loss"), done.get("initial_validation_loss")
    if loss is not None and start is not None:
        write(f"Trained. Validation loss {start:.2f} -> {loss:.2f} in {done.get('step')} steps", "bold green")
    if sample := str(done.get("sample", "")).strip():
        write("\nIt writes:", "bold")
        write("\n".join(f"  {line}" for line in sample.splitlines() if line.strip()), "italic")
    write(f"\nCheckpoint: {checkpoint_path(done, target)} (model/ in it loads in transformers)")
    write("\nTry next", "bold")
    if before:
        write(f"  In this shell, for the commands below:\n    {before}")
    for name, title in ADVICE.items():
        if name in target.commands:
            write(f"  {title}:\n    {target.commands[name]}")


def checkpoint_path(done: dict[str, Any], target: Target) -> str:
    """Where the checkpoint is, on this machine when it sees the volume."""
    inside = str(done.get("checkpoint"))
    if target.data_folder and inside.startswith(f"{DATA}/"):
        return f"{target.data_folder}{inside.removeprefix(DATA)}"
    return inside


if __name__ == "__main__":
    sys.exit(main())
