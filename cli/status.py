"""Show on one screen how a training is doing.

The Job's state, its pods, the round, step, loss, speed and time to go, and what ended rounds and pods so far.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import urllib3.exceptions
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli.progress import time_to_go
from cli.state import State, state
from cli.target import Kubeconfig, RunningStack, Target, target_of
from cli.watch import UnreachableError, as_json, connect
from trainer.contract import STATUS
from workloads.layout import DATA

LOG_LINES = 2000
"""Of each pod: some minutes at one line in ten steps, and every round of most trainings."""
INCIDENTS = 12
"""The newest ones that are shown."""


def status(stack: RunningStack = "local", kubeconfig: Kubeconfig = None) -> None:
    target = target_of(stack)
    Console().print(screen(read(target, kubeconfig), target, datetime.now(UTC)))


def read(target: Target, kubeconfig: str | None = None) -> State:
    """Ask the cluster. Raises UnreachableError."""
    core, batch = clients(target, kubeconfig)
    job, pods = job_and_pods(core, batch, target)
    return state(job, pods, {name: log(core, target, name) for name in with_logs(pods)}, status_file(target))


def clients(target: Target, kubeconfig: str | None) -> tuple[client.CoreV1Api, client.BatchV1Api]:
    api = connect(target.context, kubeconfig)
    return client.CoreV1Api(api), client.BatchV1Api(api)


def job_and_pods(
    core: client.CoreV1Api, batch: client.BatchV1Api, target: Target
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The Job and all of its pods, as plain JSON. Raises UnreachableError."""
    selector = f"batch.kubernetes.io/job-name={target.job}"
    try:
        job = as_json(batch.read_namespaced_job, target.job, target.namespace)
        pods = as_json(core.list_namespaced_pod, target.namespace, label_selector=selector)["items"]
    except ApiException as error:
        if error.status == 404:
            raise UnreachableError(f"Job {target.namespace}/{target.job} is gone; `pulumi up` makes it again") from None
        raise UnreachableError(f"cannot read Job {target.namespace}/{target.job}: {error.reason}") from None
    except urllib3.exceptions.HTTPError as error:
        raise UnreachableError(f"the cluster does not answer: {type(error).__name__}") from None
    return job, pods


def with_logs(pods: list[dict[str, Any]]) -> list[str]:
    """The pods whose container has started once."""
    return [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") in ("Running", "Succeeded", "Failed")]


def log(core: client.CoreV1Api, target: Target, pod: str, lines: int = LOG_LINES) -> str:
    """The end of a pod's log with time stamps; empty when it cannot be had (its node is gone)."""
    try:
        answer: Any = core.read_namespaced_pod_log(
            pod, target.namespace, tail_lines=lines, timestamps=True, _preload_content=False, _request_timeout=10
        )
        return answer.data.decode(errors="replace")
    except (ApiException, urllib3.exceptions.HTTPError):
        return ""


def status_file(target: Target) -> dict[str, Any] | None:
    """The run's status.json, where this machine sees the shared volume."""
    if not target.data_folder or not target.run_directory or not target.run_directory.startswith(f"{DATA}/"):
        return None
    try:
        text = Path(target.data_folder + target.run_directory.removeprefix(DATA), STATUS).read_text("utf-8")
        return json.loads(text)
    except (OSError, ValueError):
        return None


def screen(found: State, target: Target, now: datetime) -> Group:
    """What is shown."""
    parts: list[Any] = [_head(found, target, now), _training(found)]
    if "step" in found.figures and found.figures.get("steps"):
        # The bar ends without a line of its own.
        parts += [ProgressBar(total=found.figures["steps"], completed=found.figures["step"], width=60), Text("")]
    parts.append(_pods(found, now))
    if found.incidents:
        parts.append(_incidents(found, now))
    return Group(*parts)


def _head(found: State, target: Target, now: datetime) -> Text:
    end = found.ended or now
    lasted = f" for {time_to_go((end - found.started).total_seconds())}" if found.started else ""
    style = {"R": "green", "C": "bold green", "F": "bold red"}.get(found.condition[0], "yellow")
    text = Text.assemble((found.condition, style), f"{lasted}   {target.namespace}/{found.job} on {target.context}")
    text.append(f"\nworkers  {found.active} of {found.wanted} active, {found.failed} ended early")
    return text


def _training(found: State) -> Text:
    figures = found.figures
    if "step" not in figures:
        return Text("training no step yet")
    words = [f"round {found.round}", f"step {figures['step']}/{figures.get('steps', '?')}"]
    if "loss" in figures:
        words.append(f"loss {figures['loss']:.3f}")
    if "validation_loss" in figures:
        words.append(f"validation {figures['validation_loss']:.3f}")
    if "tokens_per_second" in figures:
        words.append(f"{figures['tokens_per_second']:,.0f} tokens/s")
    if figures.get("eta_seconds"):
        words.append(f"{time_to_go(figures['eta_seconds'])} to go")
    if "world_size" in figures:
        words.append(f"{figures['world_size']} processes")
    if found.checkpoint is not None:
        words.append(f"newest checkpoint: step {found.checkpoint}")
    return Text("training " + "  ".join(words))


def _pods(found: State, now: datetime) -> Table:
    table = Table("index", "pod", "node", "state", "for", "round", "rank", box=None, padding=(0, 2, 0, 0))
    for pod in found.pods:
        age = time_to_go((now - pod.since).total_seconds()) if pod.since else ""
        current = pod.round == found.round and pod.state == "Running"
        rank = str(pod.rank) if pod.rank is not None and current else ""
        table.add_row(str(pod.index), Text(pod.name), Text(pod.node), Text(pod.state), age, str(pod.round or ""), rank)
    return table


def _incidents(found: State, now: datetime) -> Table:
    hidden = len(found.incidents) - INCIDENTS
    title = "what happened" + (f" ({hidden} earlier ones not shown)" if hidden > 0 else "")
    table = Table("ago", "pod", title, box=None, padding=(0, 2, 0, 0))
    for incident in found.incidents[-INCIDENTS:]:
        table.add_row(time_to_go((now - incident.time).total_seconds()), Text(incident.pod), Text(incident.cause))
    return table
