"""Reach into the cluster from this machine: a temporary pod on the shared volume, and kubectl's own connections.

Everything goes through the API server with the rights of the user's own kubeconfig: nothing listens outside the
cluster.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3.exceptions
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream
from websocket import WebSocketException

from cli import CommandError, last_line
from cli.cluster import as_json, asking, connect, why_waiting
from cli.programs import find
from cli.progress import Bar
from cli.target import Target
from cli.transfer import Volume
from trainer import contract
from trainer.config import addresses
from workloads.layout import VOLUME_ACCESS

PROGRAM, SURVEY = (Path(__file__).with_name(f"volume_{name}.py") for name in ("program", "survey"))
PARTS = (PROGRAM, SURVEY, Path(addresses.__file__), Path(contract.__file__))
"""The programs and what they import; the pod has them side by side."""
THERE = f"/tmp/{PROGRAM.name}"
#: Where commands in the pod leave files to fetch, outside the volume.
SCRATCH, REPORT = "/tmp/made", "report"
#: Label of our pods, by which the next command removes those that ended.
LABEL = "trainyard/volume-access"
START_SECONDS = 300
"""A node's first pull of the image is several gigabytes."""
COMMAND_SECONDS = 300
Change = Callable[[dict[str, Any]], None]
"""What changes the specification of a pod."""


class Pod:
    """A pod in which commands run."""

    def __init__(self, api: client.ApiClient, namespace: str, name: str):
        # A client of its own: while it opens a stream, every other request of the same client would become a stream.
        self.core = client.CoreV1Api(client.ApiClient(api.configuration))
        self.namespace, self.name = namespace, name

    def run(self, command: list[str]) -> tuple[int, str]:
        """Run a command in the pod; return exit code and output. Raises CommandError."""
        try:
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


def make_report(pod: Pod, *runs: str) -> str | None:
    """Make the report page of these folders in the pod; return the problem in one line, or None."""
    code, text = pod.run(["python3", "-m", "trainer.report", *runs, "--output", f"{SCRATCH}/{REPORT}"])
    return None if code == 0 else last_line(text)


@contextmanager
def volume_pod(
    api: client.ApiClient, namespace: str, waiting: Callable[[str], None], change: Change | None = None
) -> Iterator[Pod]:
    """Run cli/volume_program.py in a pod on the shared volume; remove the pod at the end.

    `change` gives the pod other resources, another place or more environment than the stack's template.

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
            core.create_namespaced_pod(namespace, _from(template, pod.name, change))
        _wait(core, pod, waiting)
        yield pod
    finally:
        with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError):
            core.delete_namespaced_pod(pod.name, namespace, grace_period_seconds=1)


def kubectl_of(target: Target, kubeconfig: str | None) -> list[str]:
    """The beginning of a kubectl command in the namespace of a training. Raises CommandError without kubectl."""
    file = kubeconfig or target.kubeconfig
    place = [f"--context={target.context}", f"--namespace={target.namespace}"]
    return [find("kubectl"), *([f"--kubeconfig={file}"] if file else []), *place]


@contextmanager
def transfer(target: Target, kubeconfig: str | None, change: Change | None = None) -> Iterator[tuple[Volume, Pod, Bar]]:
    """The shared volume, the pod on it, and a progress bar; Ctrl-C may end the transfer at any time."""
    kubectl = kubectl_of(target, kubeconfig)
    api = connect(target.context, kubeconfig or target.kubeconfig)
    try:
        with Bar() as bar, volume_pod(api, target.namespace, bar.waiting, change) as pod:
            place = ["exec", "-i", pod.name, "-c", VOLUME_ACCESS, "--"]
            yield Volume((*kubectl, *place), ("python3", THERE)), pod, bar
    except KeyboardInterrupt:
        raise CommandError("interrupted; the same command continues where it stopped", code=130) from None


def _from(template: dict[str, Any], name: str, change: Change | None) -> Any:
    """A pod from the template that holds our program, and waits for its commands."""
    labels = {**template["metadata"]["labels"], LABEL: "true"}
    spec = template["spec"]
    write = [f'printf %s "${at}" > /tmp/{part.name}' for at, part in enumerate(PARTS, 1)]
    start = " && ".join([*write, f"exec python3 {THERE} wait"])
    spec["containers"][0]["args"] = ["sh", "-c", start, "sh", *(part.read_text("utf-8") for part in PARTS)]
    if change:
        change(spec)
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
