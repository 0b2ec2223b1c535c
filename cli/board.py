"""Opens a stack's TensorBoard in the browser: `python -m cli.board --stack local` (`make tensorboard`).

Its port is forwarded through the API server while this runs: nothing of it can be reached from outside the cluster.
Each connection of the browser is one of its own, so a pod that was replaced costs a reload of the page.
"""

from __future__ import annotations

import argparse
import socket
import sys
import webbrowser
from typing import Any

import urllib3.exceptions
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from cli.follow import stack_options, target_of
from cli.reach import Pod, relay
from cli.watch import UnreachableError, as_json, connect, why_waiting
from workloads.layout import TENSORBOARD_PORT

SELECTOR = "app.kubernetes.io/component=tensorboard"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cli.board", description="Open TensorBoard in the browser.")
    stack_options(parser, "TensorBoard")
    parser.add_argument(
        "--port", type=int, default=TENSORBOARD_PORT, help=f"here (default: {TENSORBOARD_PORT}, or the next free one)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    options = parser.parse_args(arguments)
    try:
        target = target_of(options.stack)
        api = connect(target.context, options.kubeconfig)
        ready_pod(api, target.namespace)
        with listener(options.port) as listening:
            address = f"http://localhost:{listening.getsockname()[1]}"
            print(f"TensorBoard is at {address}; Ctrl-C ends it", flush=True)
            if not options.no_browser:
                webbrowser.open(address)
            relay(
                listening,
                lambda: _connection(api, target.namespace),
                lambda error: print(f"{error}; reload the page", file=sys.stderr),
            )
    except (LookupError, UnreachableError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _connection(api: client.ApiClient, namespace: str) -> socket.socket:
    try:
        return ready_pod(api, namespace).connect(TENSORBOARD_PORT)
    except (LookupError, UnreachableError) as error:
        raise ConnectionError(str(error)) from None


def ready_pod(api: client.ApiClient, namespace: str) -> Pod:
    """TensorBoard's pod. Raises LookupError when there is none, UnreachableError when it is not ready."""
    try:
        pods = as_json(client.CoreV1Api(api).list_namespaced_pod, namespace, label_selector=SELECTOR)["items"]
    except ApiException as error:
        raise UnreachableError(f"cannot list the pods of {namespace}: {error.reason}") from None
    except urllib3.exceptions.HTTPError as error:
        raise UnreachableError(f"the cluster does not answer: {type(error).__name__}") from None
    if not pods:
        raise LookupError(f"{namespace} has no TensorBoard; set tensorboard.enabled: true and `pulumi up`")
    for pod in pods:
        if _is_ready(pod):
            return Pod(api, namespace, pod["metadata"]["name"])
    raise UnreachableError(f"TensorBoard is not ready yet: {why_waiting(pods)}; try again in a moment")


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or []
    going = "deletionTimestamp" in pod["metadata"]
    return not going and any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def listener(port: int, tries: int = 20) -> socket.socket:
    """On the loopback, at the first free port from `port` on. Raises OSError when there is none."""
    for candidate in range(port, port + tries):
        try:
            return socket.create_server(("127.0.0.1", candidate))
        except OSError:
            continue
    raise OSError(f"--port {port}: taken, and the {tries - 1} after it; give another one")


if __name__ == "__main__":
    sys.exit(main())
