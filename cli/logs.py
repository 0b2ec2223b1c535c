"""Print the log of rank 0, or of one pod."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
import urllib3.exceptions
from kubernetes.client.exceptions import ApiException

from cli import CommandError
from cli.cluster import TrainingJob, asking, index, started
from cli.target import Kubeconfig, RunningStack, TrainingName, target_of
from trainer.plain import plain
from trainer.record import PREFIX, Record


def logs(
    stack: RunningStack = "",
    training: TrainingName = "",
    kubeconfig: Kubeconfig = None,
    pod: Annotated[int | None, typer.Option(metavar="N", min=0, help="Index of the pod.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new lines until the pod ends.")] = False,
) -> None:
    job = TrainingJob.of(target_of(stack, training, None, kubeconfig))
    _, pods = job.read()
    name = choose(started(pods), pod, job.records)
    with asking(f"the log of {name}"):
        for line in lines(job, name, follow=follow):
            if not line.startswith(PREFIX):  # for programs; `trainyard status` shows it
                print(plain(line), end="", flush=True)


def print_after(stamp: str, job: TrainingJob, pod: str) -> str:
    """Print a pod's lines that are newer than a time stamp, until it ends or the stream breaks; return the newest's."""
    with contextlib.suppress(ApiException, urllib3.exceptions.HTTPError):
        for line in lines(job, pod, follow=True, timestamps=True):
            at, _, text = line.partition(" ")
            if at > stamp:  # nanoseconds of one clock: text order is time order
                stamp = at
                print(plain(text), end="", flush=True)
    return stamp


def lines(job: TrainingJob, pod: str, **options: Any) -> Iterator[str]:
    """A pod's log as it comes, in whole lines, so that no escape sequence is seen in halves."""
    answer: Any = job.core.read_namespaced_pod_log(pod, job.namespace, _preload_content=False, **options)
    rest = b""
    for chunk in answer.stream(decode_content=True):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (f"{line.decode('utf-8', 'replace')}\n" for line in whole)
    yield rest.decode("utf-8", "replace")


def choose(
    pods: list[dict[str, Any]], wanted: int | None, records: Callable[[list[dict[str, Any]]], dict[str, Record]]
) -> str:
    """Choose the newest pod of index `wanted`; without one, that of rank 0, which writes the record, else the newest.

    Raises CommandError.
    """
    pods = sorted(pods, key=lambda pod: pod["metadata"].get("creationTimestamp") or "")
    if wanted is not None:
        there = {index(pod): pod["metadata"]["name"] for pod in pods}
        if wanted not in there:
            known = ", ".join(map(str, sorted(there))) or "none yet"
            raise CommandError(f"no pod {wanted} has started; there are: {known}")
        return there[wanted]
    if not pods:
        raise CommandError("no pod has started yet; `trainyard status` says what they wait for")
    found = records(pods)
    return max(found, key=lambda name: found[name].age(), default=pods[-1]["metadata"]["name"])
