"""Open a stack's TensorBoard in the browser.

`kubectl port-forward` carries its port through the API server while the command runs; nobody else outside the cluster
can reach it. When the pod is replaced, the next one takes over, and the page wants a reload.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from cli import CommandError, last_line
from cli.pods import kubectl_of, started
from cli.target import Kubeconfig, RunningStack, targets_of
from trainer.plain import plain
from workloads.layout import TENSORBOARD_PORT

PINNED = ("loss/loss", "loss/validation_loss", "more/tokens_per_second")
OPENED = "/?pinnedCards=" + quote(json.dumps([{"plugin": "scalars", "tag": tag} for tag in PINNED])) + "#timeseries"
"""The page with the losses and the speed on top, as trainer/train/exporters.py names them."""
PAUSE = 1.0
"""Seconds before a broken forward is made again."""


def board(
    stack: RunningStack = "",
    kubeconfig: Kubeconfig = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Local port.")] = TENSORBOARD_PORT,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, open nothing.")] = False,
) -> None:
    kubectl = kubectl_of(targets_of(stack, kubeconfig)[0])
    forward = ["port-forward", "--address=127.0.0.1", "deployment/tensorboard", f"{port}:{TENSORBOARD_PORT}"]
    address, opened = f"http://localhost:{port}", False
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            with started([*kubectl, *forward], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                assert process.stdout
                if process.stdout.readline() and not opened:  # it listens
                    opened = True
                    print(f"TensorBoard is at {address}; Ctrl-C ends it", flush=True)
                    if not no_browser:
                        webbrowser.open(address + OPENED)
                reason = plain(last_line(process.communicate()[1].decode("utf-8", "replace")))
            if not opened:
                raise CommandError(reason.removeprefix("error: "))
            print(f"{reason}; reload the page", file=sys.stderr)
            time.sleep(PAUSE)
