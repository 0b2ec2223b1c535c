"""Follows a training to its end: `python -m workloads.follow --stack local`.

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

from kubernetes import client
from rich.console import Console

from workloads.progress import Board
from workloads.watch import JobWatch, Outcome, UnreachableError, connect


@dataclass(frozen=True)
class Target:
    """The training to follow, from the stack's outputs."""

    context: str
    namespace: str
    job: str
    run_directory: str
    commands: dict[str, str]
    """Output name -> command line, for the closing advice."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workloads.follow", description="Follow a training to its end.")
    parser.add_argument("--stack", required=True, help="stack whose training to follow")
    parser.add_argument("--kubeconfig", help="kubeconfig file (default: $KUBECONFIG, else ~/.kube/config)")
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
    report(Console(), target, outcome)
    return 0 if outcome.succeeded else 1


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
        run_directory=outputs["runDirectory"],
        commands={name: value for name, value in outputs.items() if name.endswith("Command")},
    )


def report(console: Console, target: Target, outcome: Outcome) -> None:
    """The end of the training, for a person."""
    console.print()
    if not outcome.succeeded:
        console.print(f"[bold red]The training failed:[/] {outcome.message}", highlight=False)
        console.print(f"  logs: {target.commands.get('logsCommand', '')}", highlight=False, soft_wrap=True)
        return
    done = outcome.result
    loss, start = done.get("validation_loss"), done.get("initial_validation_loss")
    if loss is not None and start is not None:
        console.print(
            f"[bold green]Trained.[/] Validation loss {start:.2f} -> [bold]{loss:.2f}[/] in {done.get('step')} steps",
            highlight=False,
        )
    if sample := done.get("sample"):
        console.print("\n[bold]It writes:[/]")
        console.print(str(sample).strip(), style="italic", markup=False, highlight=False)
    console.print(
        f"\nCheckpoint: {done.get('checkpoint')} (model/ in it loads in transformers)", highlight=False, soft_wrap=True
    )
    advice = {
        "sampleCommand": "Let it write",
        "tensorboardCommand": "Curves (then open http://localhost:6006)",
        "logsCommand": "Logs",
    }
    console.print("\n[bold]Try next[/]")
    for name, title in advice.items():
        if name in target.commands:
            console.print(f"  {title}:\n    {target.commands[name]}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
