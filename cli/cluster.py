"""Queries to a stack's cluster, through the API server with the rights of the user's kubeconfig."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import urllib3.exceptions
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from cli import CommandError
from cli.target import Target
from infra.api_client import NoCredentials, api_client
from trainer.contract import STOPPED
from trainer.record import Record, of_line
from trainer.requeue import rest
from workloads.scheduling import unscheduled, with_remedy

INDEX = "batch.kubernetes.io/job-completion-index"
JOB = "batch.kubernetes.io/job-name="
"""Prefix of the label selector for a Job's pods; the Job's name follows."""
TRAINED = "trainyard/trained"
"""Annotation of a Job whose last step was done while `trainyard stop` ended its pods: when. The Job itself does not
count the success of a pod that it has told to leave."""
LOG_LINES = 1000
"""Lines read from the end of a log for the newest record: beside it libraries may warn by the hundred."""
AT_ONCE = 16
"""Logs that are read in parallel."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
"""By it the pod garbage collector frees pods of a node that is off (docs: Non-graceful node shutdown, 2026-11-25)."""


class SilentError(CommandError):
    """The cluster does not answer."""


class ContextError(CommandError):
    """No kubeconfig of this machine has the stack's context."""


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
    except NoCredentials as error:
        raise CommandError(f"the program that the kubeconfig names gives no credentials: {error}") from None
    except urllib3.exceptions.HTTPError as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
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
        with asking(f"context {context}"):
            return api_client(context, file, configuration)
    except config.ConfigException as error:
        raise ContextError(f"the kubeconfig does not give context '{context}': {error}") from error
    except (OSError, CommandError):
        raise
    except Exception as error:  # the client reads keys as it needs them
        where = file or config.KUBE_CONFIG_DEFAULT_LOCATION
        untold = isinstance(error, (TypeError, AttributeError, KeyError))
        reason = "its clusters, contexts or users have another form" if untold else " ".join(str(error).split())
        raise CommandError(f"{where} cannot be used: {reason}") from error


def as_json(call: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any]:
    """A response as plain JSON: the client's models are slow and hide absent fields."""
    return json.loads(call(*arguments, **options, _preload_content=False, _request_timeout=10).data)


@dataclass(frozen=True)
class TrainingJob:
    """The Job of a training, with its pods and their logs."""

    core: client.CoreV1Api
    batch: client.BatchV1Api
    target: Target

    @classmethod
    def of(cls, target: Target) -> TrainingJob:
        api = connect(target.context, target.kubeconfig)
        return cls(client.CoreV1Api(api), client.BatchV1Api(api), target)

    @property
    def namespace(self) -> str:
        return self.target.namespace

    @property
    def name(self) -> str:
        return self.target.job

    def read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The Job and all of its pods. Raises CommandError."""
        what = f"Job {self.namespace}/{self.name}"
        with asking(what, missing=f"{what} is gone; `{self.target.resume}` starts the training again"):
            job = as_json(self.batch.read_namespaced_job, self.name, self.namespace)
            return job, pods_of(self.core, self.namespace, self.name)

    def refusal(self) -> str:
        """Why the cluster refused the Job's newest pod, such as a quota or a security policy; empty: it did not."""
        selector = f"involvedObject.kind=Job,involvedObject.name={self.name},reason=FailedCreate"
        with suppress(ApiException, urllib3.exceptions.HTTPError):  # not everybody may read events
            found = as_json(self.core.list_namespaced_event, self.namespace, field_selector=selector)["items"]
            newest = max(found, key=lambda event: event.get("lastTimestamp") or "", default={})
            return " ".join(newest.get("message", "").split())
        return ""

    def silent_nodes(self, pods: list[dict[str, Any]]) -> dict[str, datetime]:
        """The nodes of these pods whose kubelet has stopped to answer -> since when."""
        found = {}
        for node in {pod["spec"]["nodeName"] for pod in pods if _is_doubtful(pod)}:
            # Not everybody may read nodes, and one may be gone.
            with suppress(ApiException, urllib3.exceptions.HTTPError):
                unknown = condition(as_json(self.core.read_node, node), "Ready", "Unknown")
                if since := moment(unknown.get("lastTransitionTime")):
                    found[node] = since
        return found

    def records(self, pods: list[dict[str, Any]], seconds: int | None = None) -> dict[str, Record]:
        """Pod -> the newest record in the end of its log, where it has one and its node still answers.

        The end is what it has written in the last `seconds`; by default LOG_LINES lines.
        """
        read: Any = self.core.read_namespaced_pod_log
        end = {"since_seconds": seconds} if seconds else {"tail_lines": LOG_LINES}

        def look(pod: str) -> Record | None:
            with suppress(ApiException, urllib3.exceptions.HTTPError):
                answer = read(pod, self.namespace, **end, _preload_content=False, _request_timeout=10)
                lines = answer.data.decode(errors="replace").split("\n")
                return next(filter(None, map(of_line, reversed(lines))), None)
            return None

        names = [pod["metadata"]["name"] for pod in started(pods)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return {name: found for name, found in zip(names, pool.map(look, names), strict=True) if found}


def node_kinds(core: client.CoreV1Api) -> dict[str, str]:
    """Node -> its machine type, with `spot` where it is one; empty where nobody may read nodes."""
    try:
        nodes = as_json(core.list_node)["items"]
    except (ApiException, urllib3.exceptions.HTTPError):
        return {}
    found = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes}
    kinds = {name: labels.get("node.kubernetes.io/instance-type", "") for name, labels in found.items()}
    from infra.clouds import CLOUDS  # imported here: reading every section takes half the time of a command

    takeable = {label for cloud in CLOUDS.values() for label in cloud.spot.items()}
    spot = {name for name, labels in found.items() if takeable & labels.items()}
    return {name: f"{kind} spot" if name in spot else kind for name, kind in kinds.items() if kind}


def condition(found: dict[str, Any], kind: str, status: str = "True") -> dict[str, Any]:
    """The condition of that type that an object has with that status; empty: it has none."""
    told = (found.get("status") or {}).get("conditions") or []
    return next((each for each in told if (each["type"], each["status"]) == (kind, status)), {})


def _is_doubtful(pod: dict[str, Any]) -> bool:
    """Whether a pod may lie on a silent node: it has not ended, and is either not ready or being deleted."""
    phase = pod["status"].get("phase")
    unready = phase == "Running" and (condition(pod, "Ready", "False") or condition(pod, "Ready", "Unknown"))
    placed = (pod.get("spec") or {}).get("nodeName") and phase not in ("Succeeded", "Failed")
    return bool(placed and (unready or pod["metadata"].get("deletionTimestamp")))


def moment(told: Any) -> datetime | None:
    """A time of the API or, in seconds since 1970, of the record, which may say anything."""
    try:
        if isinstance(told, int | float):
            return datetime.fromtimestamp(told, UTC)
        return datetime.fromisoformat(told or "").astimezone(UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def silence(node: str, lasted: str) -> str:
    """What to do about a node that does not answer: nobody else deletes the Node where no cloud does."""
    return (
        f"node {node} has not answered for {lasted}, and its pods are not replaced before it is known to be off. If it "
        f"is, and no cloud deletes it: kubectl delete node {node}. To keep the Node, until it is back: "
        f"kubectl taint nodes {node} {OUT_OF_SERVICE}"
    )


def pods_of(core: Any, namespace: str, job: str) -> list[dict[str, Any]]:
    return as_json(core.list_namespaced_pod, namespace, label_selector=JOB + job)["items"]


def workers(pods: list[dict[str, Any]], *also: str) -> list[dict[str, Any]]:
    """A Job's pods by index: those that run, or are in a phase of `also`, and are not being deleted."""
    alive = [pod for pod in pods if pod["status"].get("phase") in ("Running", *also)]
    return sorted((pod for pod in alive if not pod["metadata"].get("deletionTimestamp")), key=index)


def index(pod: dict[str, Any]) -> int:
    """The pod's index in its Job; -1 for one without."""
    return int((pod["metadata"].get("labels") or {}).get(INDEX, -1))


def started(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pods whose container has started once."""
    return [pod for pod in pods if pod["status"].get("phase") in ("Running", "Succeeded", "Failed")]


def why_waiting(pods: list[dict[str, Any]], refusal: str = "") -> str:
    """Why no pod runs yet, in a few words; `refusal` is why the cluster makes no pod."""
    for pod in pods:
        if trouble := held_up([pod]):
            return trouble
        if message := unscheduled(pod):
            return f"waiting for a node: {with_remedy(message)}"
    if refusal and not pods:
        return f"the cluster refuses the pods: {refusal}"
    return "starting the pods" if pods else "waiting for the Job controller"


def held_up(pods: list[dict[str, Any]]) -> str:
    """Why the container of a pod that has a node does not start, such as for its image; empty: it does."""
    for pod in pods:
        for status in pod["status"].get("containerStatuses") or []:
            waiting = status.get("state", {}).get("waiting", {})
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{waiting['reason']}: {waiting.get('message', '').strip()}".rstrip(": ")
    return ""


def end_of(job: dict[str, Any]) -> dict[str, Any]:
    """The condition that says how the Job ended, or that it is suspended; empty while it runs.

    Of a Job that `trainyard stop` has suspended it is `Stopped`, and of one that let go of nodes that it held in vain
    `Queued`: types that the API does not know.
    """
    marks = (job.get("metadata") or {}).get("annotations") or {}
    if end := condition(job, "Complete") or condition(job, "Failed"):
        return end
    if marks.get(TRAINED):
        return {"type": "Complete", "lastTransitionTime": marks[TRAINED]}
    if stopped := marks.get(STOPPED):
        message = f"by `trainyard stop` at {stopped}; `trainyard resume` goes on"
        return {"type": "Stopped", "message": message, "lastTransitionTime": stopped}
    if resting := rest(job):
        start, until = (when.astimezone(UTC).isoformat(timespec="seconds") for when in resting)
        message = (
            f"since {start}: it held nodes and waited in vain for the rest; it tries again when another training ends, "
            f"or from {until} on"
        )
        return {"type": "Queued", "message": message, "lastTransitionTime": start}
    return condition(job, "Suspended")


def ends(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The terminated states of a pod's containers; their reason is empty where it is that of any exit code but 0."""
    states = [status.get("state", {}) for status in pod["status"].get("containerStatuses") or []]
    found = [state["terminated"] for state in states if "terminated" in state]
    return [{**each, "reason": "" if each.get("reason") == "Error" else each.get("reason", "")} for each in found]


def launcher_words(ended: dict[str, Any]) -> dict[str, Any]:
    """The launcher's last words, a JSON object in the termination message; empty: there are none."""
    try:
        found = json.loads(ended.get("message") or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
