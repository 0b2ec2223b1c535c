"""Run a command in a stack's image with its volume.

It runs in a pod that the stack's commands share, which stays for some minutes: the next command finds it. Words behind
`--` are the command's own; its exit code is that of `trainyard run`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any, Literal

import typer

from cli.cluster import TrainingJob
from cli.pods import volume_pod
from cli.target import Kubeconfig, RunningStack, targets_of
from cli.worker_node import move, worker_pod
from trainer.plain import plain


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="A program of the image and its words.")],
    stack: RunningStack = "",
    kubeconfig: Kubeconfig = None,
    on: Annotated[
        Literal["volume", "worker"],
        typer.Option(help="`worker`: on a node of the workers, with the memory and accelerators of one."),
    ] = "volume",
    tty: Annotated[bool, typer.Option("--tty", help="With this terminal, as a shell wants it.")] = False,
) -> int:
    target = targets_of(stack, kubeconfig)[0]

    def change(spec: dict[str, Any]) -> None:
        job, _ = TrainingJob.of(target).read()
        move(spec, worker_pod(job, "--on worker: a command needs a node", "leave --on out"))

    with volume_pod(target, change if on == "worker" else None) as (pod, bar):
        bar.pause()
        with pod.stoppable(*command, tty=tty) as words:
            if tty or not sys.stdout.isatty():
                return subprocess.call(words)
            with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
                assert process.stdout
                for line in process.stdout:
                    print(plain(line.decode("utf-8", "replace")), end="", flush=True)
            return process.returncode
