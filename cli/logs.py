"""Print the log of rank 0, or of one pod."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from cli import CommandError
from cli.cluster import INDEX, TrainingJob, asking, started
from cli.state import first_pod
from cli.target import Kubeconfig, RunningStack, target_of


def logs(
    stack: RunningStack = "local",
    kubeconfig: Kubeconfig = None,
    pod: Annotated[int | None, typer.Option(metavar="N", min=0, help="Index of the pod.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new lines until the pod ends.")] = False,
) -> None:
    target = target_of(stack)
    job = TrainingJob.of(target, kubeconfig)
    _, pods = job.read()
    name = choose(started(pods), pod, job.log_end)
    with asking(f"the log of {name}"):
        answer: Any = job.core.read_namespaced_pod_log(name, target.namespace, follow=follow, _preload_content=False)
        for chunk in answer.stream(decode_content=True):
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()


def choose(pods: list[dict[str, Any]], index: int | None, read: Any) -> str:
    """Choose the newest pod of `index`; without one, that of rank 0, else the newest. Raises CommandError."""
    pods = sorted(pods, key=lambda pod: pod["metadata"].get("creationTimestamp") or "")
    if index is not None:
        there = {int(pod["metadata"]["labels"][INDEX]): pod["metadata"]["name"] for pod in pods}
        if index not in there:
            known = ", ".join(map(str, sorted(there))) or "none yet"
            raise CommandError(f"no pod {index} has started; there are: {known}")
        return there[index]
    if not pods:
        raise CommandError("no pod has started yet; `trainyard status` says what they wait for")
    return (
        first_pod(pods, {pod["metadata"]["name"]: read(pod["metadata"]["name"]) for pod in pods})
        or (pods[-1]["metadata"]["name"])
    )
