"""Stop a training with a last checkpoint, and resume one that ended before it was done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
import urllib3.exceptions
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from cli import CommandError
from cli.cluster import LOG_LINES, TRAINED, GoneError, TrainingJob, asking, condition, end_of, pods_of, workers
from cli.logs import lines
from cli.target import Kubeconfig, RunningStack, Target, TrainingName, chosen, run
from cli.training_status import summarize
from infra.stackfiles import object_name
from trainer.contract import QUEUED, STOPPED
from trainer.plain import plain
from trainer.record import newest, of_line
from workloads.custom_resources import KUBEFLOW_VERSION

#: Seconds beyond a pod's grace until one that has not left is reported: its node may be lost.
LATE = 60.0
#: The longest grace that a pod has where its specification names none (Kubernetes' default).
GRACE = 30
POLL_SECONDS = 1.0
#: Phases of a pod that has ended.
ENDED = ("Succeeded", "Failed")
#: Of a stack: the Job, or the TrainJob, of a training.
JOB = "**Job::training"


def stop(stack: RunningStack = "", training: TrainingName = "", kubeconfig: Kubeconfig = None) -> None:
    """The Job stays, suspended, and no `pulumi up` starts it; `trainyard resume` does. Nodes that only it needs go.

    Of several trainings it stops all, the most urgent last: no other takes the nodes that one leaves.
    """
    for target in reversed(chosen(stack, training, kubeconfig)):
        _stop(target)


def _stop(target: Target) -> None:
    job = TrainingJob.of(target)
    found, pods = job.read()
    end = end_of(found)
    if end.get("type") == "Queued":
        _suspend(job, found)
        _say(f"{job.name}: was queued, and is stopped; to go on: {target.resume}")
        return
    if end:
        _say(f"{job.name}: nothing to stop: {_told(end)}")
        return
    running = workers(pods, "Pending")
    with _logs(job, workers(pods)) as logs:
        _suspend(job, found)
        _say(f"{job.name}: {len(running)} {'pod saves and leaves' if len(running) == 1 else 'pods save and leave'}")
        _await_pods(job, running)
    found, _ = job.read()
    if not (found["spec"].get("suspend") or end_of(found)):
        raise CommandError(f"{job.name}: a controller of the cluster, such as its queue, has started it again")
    if (end := end_of(found)).get("type") in ("Complete", "Failed"):
        _say(f"{job.name}: it had ended: {_told(end)}")
        return
    last = newest(map(of_line, logs))
    if last.state == "done":
        with asking(f"Job {job.namespace}/{job.name}", verb="change"):
            job.batch.patch_namespaced_job(job.name, job.namespace, {"metadata": {"annotations": {TRAINED: _now()}}})
        _say(f"{job.name}: its last step was done before it could be stopped: it is trained")
        return
    if last.state in ("terminated", "restarting") and last.message:
        raise CommandError(
            f"{job.name}: stopped, but {last.message}, so the steps since the one before are lost; to go on: "
            f"{target.resume}"
        )
    saved = last.checkpoint is not None
    where = f"at step {last.checkpoint}, which is saved" if saved else "before its first checkpoint"
    _say(f"{job.name}: stopped {where}; to go on: {target.resume}")


def resume(
    stack: RunningStack = "",
    training: TrainingName = "",
    kubeconfig: Kubeconfig = None,
    config_file: Annotated[str | None, typer.Option(metavar="FILE", help="Default: Pulumi.STACK.yaml.")] = None,
) -> int:
    """Its Job was stopped or deleted, its time was up (`job.maxHours`), or it failed for a reason that is mended. Where
    the Job is not merely stopped, `pulumi up` makes it again, and with it whatever else the stack file has changed.
    """
    return go_on(stack, training, kubeconfig, config_file)


def go_on(
    stack: str, training: str = "", kubeconfig: str | None = None, config_file: str | None = None, asked: bool = True
) -> int:
    """asked: a person wants it. Else what `trainyard stop` has stopped stays so: machines would come that cost."""
    made_again = [target for target in chosen(stack, training, kubeconfig) if _is_made_again(target, asked)]
    if not made_again:
        return 0
    command = ["pulumi", "up", "--stack", stack, "--yes", "--skip-preview", "--suppress-outputs", "--suppress-progress"]
    for target in made_again:
        command += ["--replace", f"{JOB}-{object_name(target.training)}" if target.training else JOB]
    command += ["--config-file", config_file] if config_file else []
    return run(*command)


def _is_made_again(target: Target, asked: bool) -> bool:
    """Let a stopped training go on, or say that its Job has to be made again."""
    job = TrainingJob.of(target)
    try:
        found, pods = _await_end(job, *job.read())
        end = end_of(found)
        if end.get("type") == "Stopped" and not asked:
            _say(f"{job.name}: stays stopped; to go on: {target.resume}")
            return False
        if end.get("type") == "Stopped" or (end.get("type") == "Queued" and asked):
            said = f"{end['type'].lower()} {end['message'].partition(';')[0]}"
            _say(f"{job.name}: was {said}; resumes from its newest checkpoint")
            _suspend(job, found, stop=False)
            return False
        if end.get("type") != "Failed":
            if asked:
                _say(f"{job.name}: nothing to resume: {_told(end) if end else 'it has not ended'}")
            return False
        reason = f"had failed: {summarize(found, pods).why}"
    except GoneError:
        # Its pods may still write their last checkpoint.
        with asking(f"pods of {job.name}"):
            pods = pods_of(job.core, job.namespace, job.name)
        reason = "was deleted"
    _say(f"{job.name}: {reason}; starts again from its newest checkpoint")
    _await_pods(job, pods)
    return True


def _await_end(
    job: TrainingJob, found: dict[str, Any], pods: list[dict[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The Job and its pods, once a Job that fails has failed: Kubernetes says so when its pods have left.

    Such as after an `up` with fewer workers, of which Kubernetes had given up too many.
    """
    if condition(found, "FailureTarget") and not end_of(found):
        _await_pods(job, pods)
        deadline = time.monotonic() + LATE
        while not end_of(found) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            found, pods = job.read()
    return found, pods


def _say(text: str) -> None:
    print(plain(text), flush=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _told(end: dict[str, Any]) -> str:
    """How a Job has ended, in words."""
    if end["type"] == "Complete":
        return "it is trained"
    return ": ".join(filter(None, (f"it is {end['type'].lower()}", end.get("message"))))


@contextmanager
def _logs(job: TrainingJob, pods: list[dict[str, Any]]) -> Iterator[list[str]]:
    """The logs of pods, which are complete when the block has ended: the pods go, and their logs with them."""
    found: list[str] = []

    def read(pod: dict[str, Any]) -> None:
        try:
            options = {"follow": True, "tail_lines": LOG_LINES, "_request_timeout": grace_of(pod) + LATE}
            found.extend(lines(job, pod["metadata"]["name"], **options))
        except (ApiException, urllib3.exceptions.HTTPError):
            pass

    with ThreadPoolExecutor(max(1, len(pods))) as pool:
        for pod in pods:
            pool.submit(read, pod)
        yield found


def _suspend(job: TrainingJob, found: dict[str, Any], stop: bool = True) -> None:
    """Suspend the Job, marked with the time, or let it go on. Its pods are deleted, with notice, or made.

    A person's word ends a wait in the queue.
    """
    marked = {"metadata": {"annotations": {STOPPED: _now() if stop else None, QUEUED: None}}}
    wanted = {"spec": {"suspend": stop}}
    owners = found["metadata"].get("ownerReferences") or []
    with asking(f"Job {job.namespace}/{job.name}", verb="change"):
        if jobset := next((owner["name"] for owner in owners if owner["kind"] == "JobSet"), None):
            # Its controllers set the Job's own field back; a TrainJob's JobSet has the TrainJob's name.
            job.batch.patch_namespaced_job(job.name, job.namespace, marked)
            group, version = KUBEFLOW_VERSION.split("/")
            custom = client.CustomObjectsApi(job.batch.api_client)
            custom.patch_namespaced_custom_object(group, version, job.namespace, "trainjobs", jobset, wanted)
        else:
            job.batch.patch_namespaced_job(job.name, job.namespace, marked | wanted)


def grace_of(pod: dict[str, Any]) -> int:
    return (pod.get("spec") or {}).get("terminationGracePeriodSeconds") or GRACE


def _await_pods(job: TrainingJob, leaving: list[dict[str, Any]]) -> None:
    """Wait until all of these pods have ended: no other training may write into their run's folder before."""
    names = {pod["metadata"]["name"]: (pod.get("spec") or {}).get("nodeName") or "no node" for pod in leaving}
    deadline = time.monotonic() + max(map(grace_of, leaving), default=0) + LATE
    while True:
        with asking(f"pods of {job.name}"):
            pods = {pod["metadata"]["name"]: pod for pod in pods_of(job.core, job.namespace, job.name)}
        left = [name for name in names if name in pods and pods[name]["status"].get("phase") not in ENDED]
        if not left:
            return
        if time.monotonic() > deadline:
            raise CommandError(
                f"{left[0]} on {names[left[0]]} has not left in time and may still write; delete that node, or the pod "
                "by force if the node is off, then run the command again"
            )
        time.sleep(POLL_SECONDS)
