"""Open a stack's TensorBoard in the browser.

`kubectl port-forward` carries its port through the API server while the command runs; nobody else outside the cluster
can reach it. When the pod is replaced, the next one takes over, and the page wants a reload.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import webbrowser
from typing import Annotated, Any
from urllib.parse import quote

import typer
from kubernetes import client

from cli import CommandError, last_line
from cli.cluster import as_json, asking, connect, why_waiting
from cli.pods import kubectl_of
from cli.target import Kubeconfig, RunningStack, targets_of
from trainer.plain import plain
from workloads.layout import TENSORBOARD_PORT

PINNED = ("loss/loss", "loss/validation_loss", "more/tokens_per_second")
OPENED = "/?pinnedCards=" + quote(json.dumps([{"plugin": "scalars", "tag": tag} for tag in PINNED])) + "#timeseries"
"""The page with the losses and the speed on top, as trainer/train/exporters.py names them."""
PAUSE = 1.0
"""Seconds before a broken forward is made again."""
SELECTOR = "app.kubernetes.io/component=tensorboard"


def board(
    stack: RunningStack = "",
    kubeconfig: Kubeconfig = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Local port; if taken, the next free one.")
    ] = TENSORBOARD_PORT,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, open nothing.")] = False,
) -> None:
    target = targets_of(stack)[0]
    api, kubectl = connect(target.context, kubeconfig or target.kubeconfig), kubectl_of(target, kubeconfig)
    here, pod = free_port(port), ready_pod(api, target.namespace)
    address = f"http://localhost:{here}"
    print(f"TensorBoard is at {address}; Ctrl-C ends it", flush=True)
    if not no_browser:
        webbrowser.open(address + OPENED)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            forward = ["port-forward", "--address=127.0.0.1", f"pod/{pod}", f"{here}:{TENSORBOARD_PORT}"]
            done = subprocess.run([*kubectl, *forward], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            print(f"{plain(last_line(done.stderr))}; reload the page", file=sys.stderr)
            time.sleep(PAUSE)
            pod = ready_pod(api, target.namespace)


def ready_pod(api: client.ApiClient, namespace: str) -> str:
    """Name of TensorBoard's pod. Raises CommandError when there is none, or it is not ready."""
    with asking(f"the pods of {namespace}"):
        pods = as_json(client.CoreV1Api(api).list_namespaced_pod, namespace, label_selector=SELECTOR)["items"]
    if not pods:
        raise CommandError(f"{namespace} has no TensorBoard; set tensorboard.enabled: true and `pulumi up`")
    for pod in pods:
        if _is_ready(pod):
            return pod["metadata"]["name"]
    raise CommandError(f"TensorBoard is not ready yet: {why_waiting(pods)}; try again in a moment")


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or []
    going = "deletionTimestamp" in pod["metadata"]
    return not going and any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def free_port(port: int, tries: int = 20) -> int:
    """The first free port of the loopback from `port` on. Raises OSError when there is none."""
    for candidate in range(port, min(port + tries, 65536)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", candidate)):
            return candidate
    raise OSError(f"--port {port}: taken, and so are those after it; give another one")
