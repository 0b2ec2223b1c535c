"""The stack's Job on a real control plane with simulated nodes.

KWOK stands in for the kubelets: its pods only report that they run. Scheduler, Job controller and API server are real.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from cli.cluster import as_json, connect, pods_of, workers
from faults.fault import Expected, until
from local import toolchain

STAGES = Path(__file__).with_name("simulated.yaml")
NAMESPACE = "trainyard-scale"
CONTEXT = "trainyard-local"
NODES = 5


def declared_job(workers: int) -> dict[str, Any]:
    """Return the local stack's Job with this many workers, as the program declares it, adapted to KWOK's nodes."""
    from infra.stackfiles import stack_file_values
    from review.recording import record

    values = stack_file_values("local")
    values["workers"] = {**values["workers"], "count": workers, "min": 1}
    training = values["training"]
    training["tokensPerStep"] = training["sequenceLength"] * training["microBatch"] * workers
    inputs = record("local", values).one("Job", "training").inputs
    # Pulumi's numbers are all floats, but Kubernetes accepts 1000 and not 1000.0.
    spec = json.loads(json.dumps(inputs["spec"]), parse_float=lambda text: int(float(text)))
    pod = spec["template"]["spec"]
    pod["volumes"] = [{"name": volume["name"], "emptyDir": {}} for volume in pod["volumes"]]
    del pod["priorityClassName"]
    pod["nodeSelector"] = {"type": "kwok"}
    pod["tolerations"].append({"key": "kwok.x-k8s.io/node", "operator": "Exists"})
    pod["containers"][0]["resources"] = {}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"scale-{workers}"}, "spec": spec}


@contextlib.contextmanager
def nodes() -> Iterator[None]:
    """Make KWOK's nodes and an empty namespace for Jobs on them; leaving removes both. One at a time per cluster."""
    core = _clients()[0]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainyard-kwok-")))
        # KUBECONFIG may list several files, but KWOK accepts only one.
        view = ["kubectl", "--context", CONTEXT, "config", "view", "--minify", "--flatten", "--raw"]
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_bytes(subprocess.run(view, capture_output=True, check=True).stdout)
        log = stack.enter_context(open(folder / "log", "wb"))
        process = subprocess.Popen(
            [
                toolchain.program("kwok"),
                f"--kubeconfig={kubeconfig}",
                "--manage-nodes-with-label-selector=type=kwok",
                "--node-lease-duration-seconds=40",
                f"--config={STAGES}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        stack.callback(lambda: (process.terminate(), process.wait(30)))
        for number in range(NODES):
            metadata = {"name": f"kwok-{number}", "labels": {"type": "kwok"}}
            taint = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
            with _but_for(409):
                core.create_node({"metadata": metadata, "spec": {"taints": [taint]}})
            stack.callback(_delete_node, f"kwok-{number}")
        # Remove what a killed run left. Its pods can end only while their nodes and KWOK exist.
        _empty()
        stack.callback(_empty)
        core.create_namespace({"metadata": {"name": NAMESPACE}})
        yield


def _clients() -> tuple[Any, Any]:
    """Return the core and batch APIs. Any: the client accepts plain JSON, but its type hints demand its own models."""
    api = connect(CONTEXT)
    return client.CoreV1Api(api), client.BatchV1Api(api)


@contextlib.contextmanager
def _but_for(status: int) -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        if error.status != status:
            raise


def _delete_node(name: str) -> None:
    with _but_for(404):
        _clients()[0].delete_node(name)


def _empty() -> None:
    """Delete the namespace and wait until it is gone. Its Jobs go first: their pods would hold it."""
    core, batch = _clients()
    with _but_for(404):
        core.read_namespace(NAMESPACE)
        batch.delete_collection_namespaced_job(NAMESPACE, propagation_policy="Background")
        with _but_for(409):  # already being deleted
            core.delete_namespace(NAMESPACE)
        # read_namespace raises once it is gone.
        until(lambda: not core.read_namespace(NAMESPACE), 240, f"the end of namespace {NAMESPACE}", pause=0.5)


class Scale:
    """A Job on KWOK's nodes."""

    def __init__(self, workers: int, job: dict[str, Any]) -> None:
        self.workers, self.manifest = workers, job
        self.name = self.manifest["metadata"]["name"]
        self.core, self.batch = _clients()

    def create(self) -> None:
        """Create the Job; wait until all pods run."""
        self.batch.create_namespaced_job(NAMESPACE, self.manifest)
        self.until_running(self.workers)

    def evict(self, names: list[str]) -> float:
        """Evict pods, as a drain does, which sets DisruptionTarget. Returns the seconds until all run again."""
        began = time.monotonic()

        def evict(name: str) -> None:
            self.core.create_namespaced_pod_eviction(name, NAMESPACE, {"metadata": {"name": name}})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(evict, names))
        self.until(lambda: not set(names) & set(self.running()), 120, "the evicted pods leave")
        self.until_running(self.workers)
        return time.monotonic() - began

    def resize(self, workers: int) -> None:
        """Resize the Job as the JobPatch does; wait until exactly this many pods run."""
        size = {"parallelism": workers, "completions": workers, "maxFailedIndexes": workers - 1}
        self.batch.patch_namespaced_job(self.name, NAMESPACE, {"spec": size})
        self.workers = workers
        self.until_running(workers)

    def end_pod(self, name: str, code: int) -> None:
        """End a pod's container with this exit code."""
        now = datetime.now(UTC).isoformat()
        state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": now}}
        container = self.manifest["spec"]["template"]["spec"]["containers"][0]
        status = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
        ended = {**status, "ready": False, "state": state}
        body = {"status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]}}
        self.core.patch_namespaced_pod_status(name, NAMESPACE, body)

    def until_condition(self, kind: str, seconds: float = 300) -> dict[str, Any]:
        def there() -> list[dict[str, Any]]:
            told = self.status().get("conditions") or []
            return [each for each in told if (each["type"], each["status"]) == (kind, "True")]

        return self.until(there, seconds, f"condition {kind}")[0]

    def status(self) -> dict[str, Any]:
        return as_json(self.batch.read_namespaced_job, self.name, NAMESPACE)["status"]

    def running(self) -> list[str]:
        """List the names of the running pods that are not being deleted, by index."""
        return [pod["metadata"]["name"] for pod in workers(pods_of(self.core, NAMESPACE, self.name))]

    def until_running(self, count: int, seconds: float = 420) -> None:
        self.until(lambda: len(self.running()) == count, seconds, f"{count} running pods")

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        try:
            return until(condition, seconds, what, pause=1)
        except Expected as error:
            raise Expected(f"{error}; {self.status()}") from None
