"""Follow a training to its end.

One progress line shows step, loss, tokens/s and time to go, from the logs of all pods. The end shows the validation
loss, a sample of what the model writes, where the checkpoint is and what to try next.
"""

from __future__ import annotations

from typing import Any

from kubernetes import client
from rich.console import Console

from cli.progress import Board
from cli.target import Kubeconfig, RunningStack, Target, is_local, target_of
from cli.watch import JobWatch, Outcome, connect
from workloads.layout import DATA

#: Output of the stack -> what its command is for.
ADVICE = {
    "sampleCommand": "Let it write",
    "fetchCommand": "Model, metrics and report to this machine",
    "tensorboardCommand": "Curves, at http://localhost:6006",
    "logsCommand": "Logs",
}
#: What a shell needs before it runs the advised commands for the local stack.
ENTER = 'eval "$(.venv/bin/trainyard local env)"'


def follow(stack: RunningStack = "local", kubeconfig: Kubeconfig = None) -> int:
    target = target_of(stack)
    api = connect(target.context, kubeconfig)
    watch = JobWatch(client.CoreV1Api(api), client.BatchV1Api(api), target.namespace, target.job)
    try:
        with Board() as board:
            outcome = watch.follow(board)
    except KeyboardInterrupt:
        print(f"\nThe training goes on; `trainyard follow --stack {stack}` comes back to it.")
        return 130
    report(Console(), target, outcome, ENTER if is_local(stack) else None)
    return 0 if outcome.succeeded else 1


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
