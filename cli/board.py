"""Open a stack's TensorBoard in the browser.

The command forwards its port through the API server while it runs; nobody else outside the cluster can reach it.
Each connection of the browser has its own forward, so a replaced pod costs a reload of the page.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import webbrowser
from typing import Annotated, Any

import typer
from kubernetes import client

from cli import CommandError
from cli.cluster import as_json, asking, connect, why_waiting
from cli.reach import Pod, relay
from cli.target import Kubeconfig, RunningStack, target_of
from trainer.plain import plain
from workloads.layout import TENSORBOARD_PORT

SELECTOR = "app.kubernetes.io/component=tensorboard"


def board(
    stack: RunningStack = "local",
    kubeconfig: Kubeconfig = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Local port; if taken, the next free one.")
    ] = TENSORBOARD_PORT,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, open nothing.")] = False,
) -> None:
    target = target_of(stack)
    api = connect(target.context, kubeconfig or target.kubeconfig)
    ready_pod(api, target.namespace)
    with contextlib.suppress(KeyboardInterrupt), listener(port) as listening:
        address = f"http://localhost:{listening.getsockname()[1]}"
        print(f"TensorBoard is at {address}; Ctrl-C ends it", flush=True)
        if not no_browser:
            webbrowser.open(address)
        relay(
            listening,
            lambda: _connection(api, target.namespace),
            lambda error: print(f"{plain(error)}; reload the page", file=sys.stderr),
        )


def _connection(api: client.ApiClient, namespace: str) -> socket.socket:
    try:
        return ready_pod(api, namespace).connect(TENSORBOARD_PORT)
    except CommandError as error:
        raise ConnectionError(str(error)) from None


def ready_pod(api: client.ApiClient, namespace: str) -> Pod:
    """TensorBoard's pod. Raises CommandError when there is none, or it is not ready."""
    with asking(f"the pods of {namespace}"):
        pods = as_json(client.CoreV1Api(api).list_namespaced_pod, namespace, label_selector=SELECTOR)["items"]
    if not pods:
        raise CommandError(f"{namespace} has no TensorBoard; set tensorboard.enabled: true and `pulumi up`")
    for pod in pods:
        if _is_ready(pod):
            return Pod(api, namespace, pod["metadata"]["name"])
    raise CommandError(f"TensorBoard is not ready yet: {why_waiting(pods)}; try again in a moment")


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or []
    going = "deletionTimestamp" in pod["metadata"]
    return not going and any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def listener(port: int, tries: int = 20) -> socket.socket:
    """Listen on the loopback, on the first free port from `port` on. Raises OSError when there is none."""
    for candidate in range(port, min(port + tries, 65536)):
        try:
            return socket.create_server(("127.0.0.1", candidate))
        except OSError:
            continue
    raise OSError(f"--port {port}: taken, and so are those after it; give another one")
