"""Reach into the cluster from this machine: a temporary pod on the shared volume, and port forwards to pods.

Everything goes through the API server with the rights of the user's own kubeconfig: nothing listens outside the
cluster.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3.exceptions
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward, stream
from websocket import WebSocketException

from cli import CommandError
from cli.cluster import as_json, asking, connect, why_waiting
from cli.programs import find, find_rsync
from cli.progress import Bar
from cli.target import Target
from cli.transfer import Volume
from trainer.config import addresses
from workloads.layout import VOLUME_ACCESS

PROGRAM = Path(__file__).with_name("volume_program.py")
PARTS = (PROGRAM, Path(addresses.__file__))
"""The program and what it imports; the pod has them side by side."""
THERE = f"/tmp/{PROGRAM.name}"
#: Where commands in the pod leave files to fetch, outside the volume.
SCRATCH = "/tmp/made"
#: Label of our pods, by which the next command removes those that ended.
LABEL = "trainyard/volume-access"
START_SECONDS = 300
"""A node's first pull of the image is several gigabytes."""
COMMAND_SECONDS = 300
_opening = threading.Lock()
"""The Kubernetes client swaps a method of its API client while it opens a stream, so open one at a time."""


def _hook(failed: Any, otherwise: Callable[[Any], object] = threading.excepthook) -> None:
    """Silence the client's port-forward thread: its socket ends too, so the traceback adds nothing."""
    name = failed.thread.name if failed.thread else ""
    if not (isinstance(failed.exc_value, OSError) and name.startswith("Kubernetes port forward proxy")):
        otherwise(failed)


threading.excepthook = _hook


class Pod:
    """A pod and its ports."""

    def __init__(self, api: client.ApiClient, namespace: str, name: str):
        # A client of its own: while it opens a stream, every other request of the same client would become a stream.
        self.core = client.CoreV1Api(client.ApiClient(api.configuration))
        self.namespace, self.name = namespace, name

    def connect(self, port: int) -> socket.socket:
        """Connect to a port on the pod's loopback. Raises OSError when that fails."""
        try:
            with _opening:
                forward = portforward(
                    self.core.connect_get_namespaced_pod_portforward, self.name, self.namespace, ports=str(port)
                )
        except (ApiException, urllib3.exceptions.HTTPError, WebSocketException) as error:
            raise ConnectionError(f"pod {self.name}: {getattr(error, 'reason', None) or error}") from None
        return forward.socket(port)

    def run(self, command: list[str]) -> tuple[int, str]:
        """Run a command in the pod; return exit code and output. Raises CommandError."""
        try:
            with _opening:
                shell = stream(
                    self.core.connect_get_namespaced_pod_exec,
                    self.name,
                    self.namespace,
                    command=command,
                    stdout=True,
                    stderr=True,
                    _preload_content=False,
                )
            shell.run_forever(timeout=COMMAND_SECONDS)
            if shell.is_open():
                shell.close()
                return 1, f"{' '.join(command)}: not done after {COMMAND_SECONDS} s"
            code = shell.returncode  # before the output: reading that drops the channel with the code
            return code, shell.read_all()
        except (ApiException, urllib3.exceptions.HTTPError, WebSocketException) as error:
            raise CommandError(f"pod {self.name}: {getattr(error, 'reason', None) or error}") from None


@contextmanager
def volume_pod(api: client.ApiClient, namespace: str, waiting: Callable[[str], None]) -> Iterator[Pod]:
    """Run cli/volume_program.py in a pod on the shared volume; remove the pod at the end.

    Raises:
        CommandError: the stack has no PodTemplate for it, or the pod does not start.
    """
    core = client.CoreV1Api(api)
    name = f"{namespace}/{VOLUME_ACCESS}"
    with asking(f"PodTemplate {name}", missing=f"the stack has no PodTemplate {name}; `pulumi up` brings it"):
        template = as_json(core.read_namespaced_pod_template, VOLUME_ACCESS, namespace)["template"]
    _remove_ended(core, namespace)
    pod = Pod(api, namespace, f"{VOLUME_ACCESS}-{uuid.uuid4().hex[:8]}")
    try:
        with asking(f"pod {namespace}/{pod.name}", verb="make"):
            core.create_namespaced_pod(namespace, _from(template, pod.name))
        _wait(core, pod, waiting)
        yield pod
    finally:
        with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError):
            core.delete_namespaced_pod(pod.name, namespace, grace_period_seconds=1)


@contextmanager
def transfer(target: Target, kubeconfig: str | None) -> Iterator[tuple[Volume, Pod, Bar]]:
    """The shared volume, the pod on it, and a progress bar; Ctrl-C may end the transfer at any time."""
    find_rsync()
    kubectl = find("kubectl")
    file = kubeconfig or target.kubeconfig
    api = connect(target.context, file)
    cluster = [*([f"--kubeconfig={file}"] if file else []), f"--context={target.context}"]
    try:
        with Bar() as bar, volume_pod(api, target.namespace, bar.waiting) as pod:
            place = [f"--namespace={target.namespace}", "exec", "-i", pod.name, "-c", VOLUME_ACCESS, "--"]
            yield Volume((kubectl, *cluster, *place), ("python3", THERE)), pod, bar
    except KeyboardInterrupt:
        raise CommandError("interrupted; the same command continues where it stopped", code=130) from None


def _from(template: dict[str, Any], name: str) -> Any:
    """A pod from the template that holds our program, and waits for its commands."""
    labels = {**template["metadata"]["labels"], LABEL: "true"}
    spec = template["spec"]
    write = [f'printf %s "${at}" > /tmp/{part.name}' for at, part in enumerate(PARTS, 1)]
    start = " && ".join([*write, f"exec python3 {THERE} wait"])
    spec["containers"][0]["args"] = ["sh", "-c", start, "sh", *(part.read_text("utf-8") for part in PARTS)]
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def _wait(core: client.CoreV1Api, pod: Pod, waiting: Callable[[str], None]) -> None:
    """Wait until the pod runs."""
    end = time.monotonic() + START_SECONDS
    while True:
        with asking(f"pod {pod.namespace}/{pod.name}"):
            found = as_json(core.read_namespaced_pod, pod.name, pod.namespace)
        phase = found["status"].get("phase")
        if phase in ("Succeeded", "Failed"):
            raise CommandError(f"pod {pod.namespace}/{pod.name} ended at once: {last_words(found)}")
        if phase == "Running":
            return
        reason = why_waiting([found])
        if time.monotonic() > end:
            raise CommandError(f"pod {pod.namespace}/{pod.name} does not start: {reason}")
        waiting(reason)
        time.sleep(0.5)


def last_words(pod: dict[str, Any]) -> str:
    for status in pod["status"].get("containerStatuses") or []:
        ended = status.get("state", {}).get("terminated", {})
        if ended:
            said = str(ended.get("message") or "").strip()
            return said or str(ended.get("reason") or f"exit code {ended.get('exitCode')}")
    return str(pod["status"].get("message") or pod["status"].get("reason") or "no reason given")


def _remove_ended(core: client.CoreV1Api, namespace: str) -> None:
    """Remove ended pods of commands that could not, such as killed ones: they end by themselves."""
    for phase in ("Succeeded", "Failed"):
        with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError):
            core.delete_collection_namespaced_pod(
                namespace, label_selector=f"{LABEL}=true", field_selector=f"status.phase={phase}"
            )


def relay(listener: socket.socket, connect: Callable[[], socket.socket], failed: Callable[[OSError], None]) -> None:
    """Join each connection to `listener` to one of its own from `connect`, until the listener is closed."""
    while True:
        try:
            here, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_join, args=(here, connect, failed), daemon=True).start()


def _join(here: socket.socket, connect: Callable[[], socket.socket], failed: Callable[[OSError], None]) -> None:
    try:
        there = connect()
    except OSError as error:
        failed(error)
        here.close()
        return
    back = threading.Thread(target=_pump, args=(there, here), daemon=True)
    back.start()
    _pump(here, there)
    back.join()
    here.close()
    there.close()


def _pump(source: Any, target: Any) -> None:
    """Copy bytes until one side ends, which also ends the pump of the other direction."""
    with contextlib.suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(part)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
