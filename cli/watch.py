"""Watches a training Job through the Kubernetes API: its conditions, its pods, and their logs as they are written."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import urllib3
import urllib3.exceptions
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from cli import CommandError

#: Seconds between two looks at the Job and its pods; log lines arrive as they are written.
POLL_SECONDS = 1.0
#: A cluster that does not answer for this long is reported; shorter outages of a control plane are ridden out.
OUTAGE_SECONDS = 60.0


class UnreachableError(CommandError):
    """The cluster, or the Job in it, cannot be found."""


@dataclass(frozen=True)
class Outcome:
    """How the Job ended."""

    succeeded: bool
    message: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    """What the trainer left as its DONE record."""


class Observer(Protocol):
    def waiting(self, message: str) -> None:
        """The pods are not running yet, and why."""

    def line(self, pod: str, line: str) -> None:
        """One line of a pod's log."""


def connect(context: str, kubeconfig: str | None = None) -> client.ApiClient:
    """A client for a context.

    Raises:
        UnreachableError: when no kubeconfig has it.
    """
    try:
        return config.new_client_from_config(config_file=kubeconfig or os.environ.get("KUBECONFIG"), context=context)
    except config.ConfigException as error:
        raise UnreachableError(f"no context '{context}' in the kubeconfig: {error}") from error


class JobWatch:
    """One Job and its pods."""

    def __init__(self, core: client.CoreV1Api, batch: client.BatchV1Api, namespace: str, job: str):
        self.core, self.batch, self.namespace, self.job = core, batch, namespace, job
        self.selector = f"batch.kubernetes.io/job-name={job}"
        self._lines: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._followed: set[str] = set()
        self._finished: set[str] = set()
        self._newest: dict[str, str] = {}
        """Pod -> time stamp of its newest line."""

    def follow(self, observer: Observer) -> Outcome:
        """Report to `observer` until the Job has ended.

        Raises:
            UnreachableError: when the Job is gone or the cluster stays silent for a minute.
        """
        heard = time.monotonic()
        while True:
            try:
                job = as_json(self.batch.read_namespaced_job, self.job, self.namespace)
                pods = as_json(self.core.list_namespaced_pod, self.namespace, label_selector=self.selector)["items"]
                heard = time.monotonic()
            except ApiException as error:
                if error.status == 404:
                    raise UnreachableError(
                        f"Job {self.namespace}/{self.job} is gone; `pulumi up` makes it again"
                    ) from None
                raise UnreachableError(f"cannot read Job {self.namespace}/{self.job}: {error.reason}") from None
            except urllib3.exceptions.HTTPError as error:
                if time.monotonic() - heard > OUTAGE_SECONDS:
                    raise UnreachableError(f"the cluster does not answer: {type(error).__name__}") from None
                time.sleep(POLL_SECONDS)
                continue
            self._follow_logs(pods)
            if not any(pod["status"].get("phase") in ("Running", "Succeeded") for pod in pods):
                observer.waiting(why_waiting(pods))
            ended = outcome(job, pods)
            # The last lines arrive a moment after the Job's end is seen.
            self._drain(observer, POLL_SECONDS)
            if ended:
                return ended

    def _follow_logs(self, pods: list[dict[str, Any]]) -> None:
        for pod in pods:
            name = pod["metadata"]["name"]
            phase = pod["status"].get("phase")
            # The log of a pod that has ended is read once; that of a running one until it ends.
            if name in self._followed or name in self._finished or phase not in ("Running", "Succeeded", "Failed"):
                continue
            if phase != "Running":
                self._finished.add(name)
            self._followed.add(name)
            threading.Thread(target=self._read_log, args=(name,), daemon=True).start()

    def _read_log(self, pod: str) -> None:
        """Hand on the lines of a pod's log that are newer than those handed on before."""
        try:
            log: Any = self.core.read_namespaced_pod_log(
                pod, self.namespace, follow=True, timestamps=True, _preload_content=False
            )
            for raw in log:
                stamp, _, line = raw.decode(errors="replace").rstrip("\n").partition(" ")
                # Nanoseconds and of one clock, so that text order is time order.
                if stamp > self._newest.get(pod, ""):
                    self._newest[pod] = stamp
                    self._lines.put((pod, line))
        except (ApiException, urllib3.exceptions.HTTPError):
            pass
        finally:
            # The stream ends with the container, but also when a kubelet or an API server restarts: the next look at
            # the pods starts over, and lines that were handed on already are left out.
            self._followed.discard(pod)

    def _drain(self, observer: Observer, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                observer.line(*self._lines.get(timeout=left))
            except Empty:
                return


def outcome(job: dict[str, Any], pods: list[dict[str, Any]]) -> Outcome | None:
    """How the Job ended; None while it runs."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition["status"] != "True":
            continue
        if condition["type"] == "Complete":
            return Outcome(succeeded=True, result=_result(pods))
        if condition["type"] == "Failed":
            reason = _result(pods).get("message") or condition.get("message") or "no reason given"
            return Outcome(succeeded=False, message=str(reason))
    return None


def _result(pods: list[dict[str, Any]]) -> dict[str, Any]:
    """The last termination message that is a record of the trainer's; the pod that ended with 0 first."""
    ended = [
        status["state"]["terminated"]
        for pod in pods
        for status in pod["status"].get("containerStatuses") or []
        if "terminated" in status.get("state", {})
    ]
    for state in sorted(ended, key=lambda state: state["exitCode"] != 0):
        try:
            record = json.loads(state.get("message") or "")
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            return record
    return {}


def why_waiting(pods: list[dict[str, Any]]) -> str:
    """Why no pod runs yet, in a few words."""
    for pod in pods:
        for status in pod["status"].get("containerStatuses") or []:
            waiting = status.get("state", {}).get("waiting", {})
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{waiting['reason']}: {waiting.get('message', '').strip()}".rstrip(": ")
        for condition in pod["status"].get("conditions") or []:
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return f"waiting for a node: {condition.get('message', '')}"
    return "starting the pods" if pods else "waiting for the Job controller"


def as_json(call: Callable[..., Any], *arguments: str, **options: Any) -> dict[str, Any]:
    """A response as plain JSON: the client's models cost time and hide absent fields."""
    return json.loads(call(*arguments, **options, _preload_content=False, _request_timeout=10).data)
