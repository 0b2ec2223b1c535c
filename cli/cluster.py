"""Queries to a stack's cluster, through the API server with the rights of the user's kubeconfig."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import urllib3.exceptions
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from cli import CommandError
from cli.target import Target
from workloads.scheduling import unscheduled, with_remedy

INDEX = "batch.kubernetes.io/job-completion-index"
JOB = "batch.kubernetes.io/job-name="
"""Prefix of the label selector for a Job's pods; the Job's name follows."""
STARTED = ("Running", "Succeeded", "Failed")
STOPPED = "trainyard/stopped"
"""Annotation of a Job that `trainyard stop` has suspended: when. A queue, such as Kueue's, suspends Jobs without it."""
LOG_LINES = 2000
"""Lines read from the end of a log: some minutes at one line in ten steps, and every round of most trainings."""


class SilentError(CommandError):
    """The cluster does not answer."""


class GoneError(CommandError):
    """The cluster has no such object."""


@contextmanager
def asking(what: str, missing: str = "", verb: str = "read") -> Iterator[None]:
    """Turn a failed query into a CommandError of one line; `missing` is the line of the GoneError for a 404."""
    try:
        yield
    except ApiException as error:
        if missing and error.status == 404:
            raise GoneError(missing) from None
        raise CommandError(f"cannot {verb} {what}: {_server_message(error)}") from None
    except urllib3.exceptions.HTTPError as error:
        reason = getattr(error, "reason", None) or error
        raise SilentError(f"the cluster does not answer: {reason}") from None


def _server_message(error: ApiException) -> str:
    """The API server's own sentence, such as which quota or right is missing."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)


def connect(context: str, kubeconfig: str | None = None) -> client.ApiClient:
    """A client for a context. Raises CommandError when no kubeconfig has it."""
    # Hide the warning of each retry: the last failure is shown as the error.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    file = kubeconfig or os.environ.get("KUBECONFIG")
    configuration = client.Configuration()
    # A log stream may be silent for hours, and load balancers drop silent connections.
    configuration.keep_alive = True
    try:
        return config.new_client_from_config(config_file=file, context=context, client_configuration=configuration)
    except config.ConfigException as error:
        raise CommandError(f"no context '{context}' in the kubeconfig: {error}") from error
    except (yaml.YAMLError, TypeError, AttributeError) as error:
        where = file or config.KUBE_CONFIG_DEFAULT_LOCATION
        reason = str(error).splitlines()[0] if isinstance(error, yaml.YAMLError) else "it has no clusters and contexts"
        raise CommandError(f"{where} is not a kubeconfig: {reason}") from error


def as_json(call: Callable[..., Any], *arguments: str, **options: Any) -> dict[str, Any]:
    """A response as plain JSON: the client's models are slow and hide absent fields."""
    return json.loads(call(*arguments, **options, _preload_content=False, _request_timeout=10).data)


@dataclass(frozen=True)
class TrainingJob:
    """The Job of a training, with its pods and their logs."""

    core: client.CoreV1Api
    batch: client.BatchV1Api
    namespace: str
    name: str
    resume: str = "trainyard resume"
    """The command that starts it again."""

    @classmethod
    def of(cls, target: Target, kubeconfig: str | None) -> TrainingJob:
        api = connect(target.context, kubeconfig or target.kubeconfig)
        return cls(client.CoreV1Api(api), client.BatchV1Api(api), target.namespace, target.job, target.resume)

    def read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The Job and all of its pods. Raises CommandError."""
        what = f"Job {self.namespace}/{self.name}"
        with asking(what, missing=f"{what} is gone; `{self.resume}` starts the training again"):
            job = as_json(self.batch.read_namespaced_job, self.name, self.namespace)
            return job, pods_of(self.core, self.namespace, self.name)

    def refusal(self) -> str:
        """Why the cluster refused the Job's newest pod, such as a quota or a security policy; empty: it did not."""
        selector = f"involvedObject.kind=Job,involvedObject.name={self.name},reason=FailedCreate"
        try:
            found = as_json(self.core.list_namespaced_event, self.namespace, field_selector=selector)["items"]
        except (ApiException, urllib3.exceptions.HTTPError):
            return ""  # not everybody may read events
        newest = max(found, key=lambda event: event.get("lastTimestamp") or "", default={})
        return " ".join(newest.get("message", "").split())

    def log_end(self, pod: str) -> str:
        """The end of a pod's log with time stamps; empty when it cannot be read (its node is gone)."""
        try:
            answer: Any = self.core.read_namespaced_pod_log(
                pod, self.namespace, tail_lines=LOG_LINES, timestamps=True, _preload_content=False, _request_timeout=10
            )
            return answer.data.decode(errors="replace")
        except (ApiException, urllib3.exceptions.HTTPError):
            return ""


def pods_of(core: Any, namespace: str, job: str) -> list[dict[str, Any]]:
    return as_json(core.list_namespaced_pod, namespace, label_selector=JOB + job)["items"]


def workers(pods: list[dict[str, Any]], *also: str) -> list[dict[str, Any]]:
    """A Job's pods by index: those that run, or are in a phase of `also`, and are not being deleted."""
    alive = [pod for pod in pods if pod["status"].get("phase") in ("Running", *also)]
    return sorted((pod for pod in alive if not pod["metadata"].get("deletionTimestamp")), key=index)


def index(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"][INDEX])


def started(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pods whose container has started once."""
    return [pod for pod in pods if pod["status"].get("phase") in STARTED]


def why_waiting(pods: list[dict[str, Any]], refusal: str = "") -> str:
    """Why no pod runs yet, in a few words; `refusal` is why the cluster makes no pod."""
    for pod in pods:
        for status in pod["status"].get("containerStatuses") or []:
            waiting = status.get("state", {}).get("waiting", {})
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{waiting['reason']}: {waiting.get('message', '').strip()}".rstrip(": ")
        if message := unscheduled(pod):
            return f"waiting for a node: {with_remedy(message)}"
    if refusal and not pods:
        return f"the cluster refuses the pods: {refusal}"
    return "starting the pods" if pods else "waiting for the Job controller"


def ending(job: dict[str, Any]) -> dict[str, Any]:
    """The condition that says how the Job ended, or that it is suspended; empty while it runs.

    Of a Job that `trainyard stop` has suspended it is `Stopped`, which the API does not know.
    """
    told = (job.get("status") or {}).get("conditions") or []
    ends = [each for each in told if each["status"] == "True" and each["type"] in ("Complete", "Failed", "Suspended")]
    end, stopped = ends[0] if ends else {}, ((job.get("metadata") or {}).get("annotations") or {}).get(STOPPED)
    if not stopped or end.get("type") in ("Complete", "Failed"):
        return end
    message = f"by `trainyard stop` at {stopped}; `trainyard resume` goes on"
    return {"type": "Stopped", "message": message, "lastTransitionTime": stopped}


def ends(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The terminated states of a pod's containers."""
    states = [status.get("state", {}) for status in pod["status"].get("containerStatuses") or []]
    return [state["terminated"] for state in states if "terminated" in state]


def record_of(ended: dict[str, Any]) -> dict[str, Any]:
    """The launcher's or the trainer's JSON record in a termination message; empty: there is none."""
    try:
        record = json.loads(ended.get("message") or "")
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
