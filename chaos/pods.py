"""The pods of a training on a real cluster: how each ended, which steps they made, and ways to disturb them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from chaos.journal import Journal
from chaos.row import Expected, until
from chaos.stack import Stack
from cli.cluster import JOB, as_json, connect, ends, index, pods_of, workers
from local import cgroups

ETCD = "etcd"
"""Name of the rendezvous' StatefulSet and of its Service."""
AT_REST = 0.15
"""Processors that a resting pod may use: a step of three pods then takes half a second."""


@dataclass(frozen=True)
class End:
    """How a pod ended."""

    index: int
    code: int | None
    """None: the pod was removed before the kubelet reported an exit code."""
    reasons: tuple[str, ...]
    """The reasons of its conditions DisruptionTarget."""
    last_words: str


class Pods:
    """The pods and the run of one Job. Leaving it ends the threads that watch them."""

    def __init__(self, stack: Stack) -> None:
        outputs = stack.outputs()
        self.namespace, self.job = stack.namespace, str(outputs["jobName"])
        self.run = Path(outputs["dataFolder"]) / Path(outputs["runDirectory"]).relative_to("/data")
        api = connect(outputs["context"], stack.environment.get("KUBECONFIG"))
        # Any: the client accepts plain JSON, but its type hints demand its own models.
        self.core: Any = client.CoreV1Api(api)
        self.batch: Any = client.BatchV1Api(api)
        self.apps: Any = client.AppsV1Api(api)
        job = as_json(self.batch.read_namespaced_job, self.job, self.namespace)
        self.uid: str = job["metadata"]["uid"]
        words: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
        self.arguments = words[words.index("--") + 1 :]
        """The trainer's arguments in the Job."""
        self.journal = Journal(self.run)
        self._seen: dict[str, dict[str, Any]] = {}
        """Name -> the last known state of the pod."""
        self._gone: set[str] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def __enter__(self) -> Pods:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self.journal.end()

    # State.

    def running(self) -> dict[int, str]:
        """Map index to name of the running pods that are not being deleted."""
        found = workers(pods_of(self.core, self.namespace, self.job))
        return {index(pod): pod["metadata"]["name"] for pod in found}

    def end(self, name: str, seconds: float = 90) -> End:
        """Wait for a pod's end; return how it ended."""
        self.until(lambda: name in self._gone or ended(self._seen.get(name)) is not None, seconds, f"the end of {name}")
        pod = self._seen[name]
        found = ended(pod) or {}
        conditions = pod["status"].get("conditions") or []
        reasons = tuple(each["reason"] for each in conditions if each["type"] == "DisruptionTarget")
        return End(index(pod), found.get("exitCode"), reasons, found.get("message") or "")

    def job_now(self) -> dict[str, Any]:
        return as_json(self.batch.read_namespaced_job, self.job, self.namespace)

    def etcd_ready(self) -> bool:
        status = as_json(self.apps.read_namespaced_stateful_set, ETCD, self.namespace)["status"]
        return bool(status.get("readyReplicas"))

    def training(self) -> dict[str, Any]:
        """Return the run's status.json."""
        try:
            return json.loads((self.run / "status.json").read_text("utf-8"))
        except (OSError, ValueError):
            return {}

    def done(self) -> dict[str, Any]:
        path = self.run / "DONE"
        if not path.exists():
            raise Expected(f"{path} is missing: the training did not end")
        return json.loads(path.read_text("utf-8"))

    # Waits.

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        until(condition, seconds, what, self.training, pause=0.2)

    def world(self, workers: int, seconds: float = 180) -> None:
        """Wait until a round of this many workers has made a step from now."""
        begin = time.time()

        def trains() -> bool:
            told = self.training()
            return (told.get("world_size"), told.get("state")) == (workers, "training") and told["updated"] > begin

        self.until(trains, seconds, f"a step of {workers} workers")

    def more_steps(self, count: int, seconds: float = 90) -> None:
        begin, step = time.time(), self.journal.step
        self.until(lambda: self.journal.made_since(begin) >= count, seconds, f"{count} steps after step {step}")

    # Faults and load.

    def rest(self) -> None:
        """Slow the pods down to make few steps while time passes, until a pod comes or leaves, or wake()."""
        for pod in list(self._seen.values()):
            cgroups.limit(pod["metadata"]["uid"], AT_REST)

    def wake(self) -> None:
        for pod in list(self._seen.values()):
            cgroups.limit(pod["metadata"]["uid"], None)

    def delete(self, name: str, grace: int | None = None) -> None:
        """Delete a pod as `kubectl delete pod` does; without `grace`, with the pod's own grace period."""
        options = {} if grace is None else {"grace_period_seconds": grace}
        self.core.delete_namespaced_pod(name, self.namespace, **options)

    def evict(self, name: str) -> None:
        """Evict a pod, as draining a node does."""
        self.core.create_namespaced_pod_eviction(name, self.namespace, {"metadata": {"name": name}})

    def scale_etcd(self, replicas: int) -> None:
        """Scale etcd. With 0, also kill its pod without a grace period."""
        self.apps.patch_namespaced_stateful_set_scale(ETCD, self.namespace, {"spec": {"replicas": replicas}})
        if replicas == 0:
            self.delete(f"{ETCD}-0", grace=0)

    def _watch(self) -> None:
        while not self._closed.is_set():
            try:
                stream: Any = watch.Watch().stream(
                    self.core.list_namespaced_pod, self.namespace, label_selector=JOB + self.job, timeout_seconds=60
                )
                for event in stream:
                    pod = event["raw_object"]
                    name = pod["metadata"]["name"]
                    leaves = event["type"] == "DELETED" or "deletionTimestamp" in pod["metadata"]
                    if leaves or name not in self._seen:
                        self.wake()
                    # The last event of a force-deleted pod may lack the exit code that an earlier event had.
                    if ended(pod) is not None or ended(self._seen.get(name)) is None:
                        self._seen[name] = pod
                    if event["type"] == "DELETED":
                        self._gone.add(name)
                    if self._closed.is_set():
                        return
            except (ApiException, HTTPError):
                time.sleep(0.5)


def ended(pod: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return how a pod's container ended, or None."""
    return next(iter(ends(pod)), None) if pod else None
