"""Waiting through the real engine: until pods are ready, until a Job is done, and what is said when they are not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2

from local.plugin.values import to_struct
from tests.local.plugin.conftest import Cluster, Entry, Stack, resource
from tests.local.plugin.test_plugin_engine import SKIP, sleeper
from tests.local.plugin.test_plugin_protocol import start_plugin

pytestmark = pytest.mark.cluster
READY_FILE = {"exec": {"command": ["sh", "-c", "test -e /tmp/ready"]}, "periodSeconds": 1}


def deployment(namespace: str, pod: dict[str, Any], seconds: int = 250, replicas: int = 2, **metadata: Any) -> Entry:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {**pod, "restartPolicy": "Always"}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    properties = {"metadata": {"namespace": namespace, "name": "web", **metadata}, "spec": spec}
    timeouts = {"create": f"{seconds}s", "update": f"{seconds}s"}
    return resource("web", "apps/v1:Deployment", properties, timeouts=timeouts)


def test_up_returns_when_the_pods_of_a_deployment_are_ready(stack: Stack, cluster: Cluster, namespace: str) -> None:
    pod = sleeper(cluster.image, "sleep 2; touch /tmp/ready; sleep 3600", readinessProbe=READY_FILE)
    stack.up(deployment(namespace, pod))
    assert cluster.apps.read_namespaced_deployment("web", namespace).status.available_replicas == 2
    assert "0 of 2 pods ready" in stack.text or "1 of 2 pods ready" in stack.text
    assert stack.resources()["web"]["outputs"]["status"]["readyReplicas"] == 2
    pod = sleeper(cluster.image, "sleep 1; touch /tmp/ready; sleep 3600", readinessProbe=READY_FILE)
    stack.up(deployment(namespace, pod))
    status = cluster.apps.read_namespaced_deployment("web", namespace).status
    assert (status.updated_replicas, status.replicas, status.available_replicas) == (2, 2, 2)


def test_a_deployment_that_does_not_get_ready_says_why(stack: Stack, cluster: Cluster, namespace: str) -> None:
    """An unschedulable pod, then one that crashes; the state keeps the Deployment, and the next `up` mends it."""
    greedy = sleeper(cluster.image, resources={"requests": {"cpu": "1000"}})
    stack.up(deployment(namespace, greedy, replicas=1, annotations=SKIP))
    await_pod(cluster, namespace, is_refused)
    text = stack.fails(stack.up, deployment(namespace, greedy, 2, replicas=1))
    assert "not ready after 2 s: 0 of 1 pods ready" in text
    assert "cannot be scheduled: 0/1 nodes are available: 1 Insufficient cpu" in text
    assert stack.resources()["web"]["initErrors"]
    # Without a probe the pod would count as ready for the moment that it lives.
    late = {"exec": {"command": ["true"]}, "initialDelaySeconds": 60}
    crashing = sleeper(cluster.image, "echo no such dataset >&2; exit 3", readinessProbe=late)
    stack.up(deployment(namespace, crashing, replicas=1, annotations=SKIP))
    await_pod(cluster, namespace, was_restarted)
    text = stack.fails(stack.up, deployment(namespace, crashing, 2, replicas=1))
    assert "container main ended with Error (exit code 3" in text
    assert "no such dataset" in text
    mended = deployment(namespace, sleeper(cluster.image), replicas=1)
    assert stack.up(mended) == {"unchange": 2, "update": 1}
    assert not stack.resources()["web"].get("initErrors")


def await_pod(cluster: Cluster, namespace: str, holds: Callable[[Any], bool]) -> None:
    """Wait until something holds for a pod of the namespace."""
    until = time.monotonic() + 200
    while not any(map(holds, cluster.core.list_namespaced_pod(namespace).items)):
        assert time.monotonic() < until, holds.__name__
        time.sleep(0.5)


def is_refused(pod: Any) -> bool:
    """Whether the scheduler found no node for the pod."""
    return any(each.type == "PodScheduled" and each.status == "False" for each in pod.status.conditions or ())


def was_restarted(pod: Any) -> bool:
    return any(status.restart_count for status in pod.status.container_statuses or ())


def test_skip_await_returns_at_once(stack: Stack, cluster: Cluster, namespace: str) -> None:
    greedy = sleeper(cluster.image, resources={"requests": {"cpu": "1000"}})
    assert stack.up(deployment(namespace, greedy, annotations=SKIP)) == {"create": 3}
    assert stack.resources()["web"]["outputs"].get("status", {}).get("readyReplicas") is None
    assert stack.refresh() == {"unchange": 3}


def job(namespace: str, image: str, command: str) -> Entry:
    spec = {"backoffLimit": 0, "template": {"spec": sleeper(image, command)}}
    metadata = {"namespace": namespace, "name": "prepare"}
    return resource("prepare", "batch/v1:Job", {"metadata": metadata, "spec": spec})


def test_up_returns_when_a_job_is_complete(stack: Stack, cluster: Cluster, namespace: str) -> None:
    stack.up(job(namespace, cluster.image, "sleep 2"))
    assert cluster.batch.read_namespaced_job("prepare", namespace).status.succeeded == 1


def test_a_failed_job_says_why(stack: Stack, cluster: Cluster, namespace: str) -> None:
    text = stack.fails(stack.up, job(namespace, cluster.image, "echo the disk is full > /dev/termination-log; exit 42"))
    assert "the Job failed: BackoffLimitExceeded" in text
    assert "container main ended with Error (exit code 42): the disk is full" in text
    assert stack.resources()["prepare"]["initErrors"]


def test_cancel_ends_a_wait_and_keeps_the_object(cluster: Cluster, namespace: str) -> None:
    """At Ctrl-C the engine calls Cancel. The answer carries the state of the object, which exists."""
    cancelled = list[float]()
    with start_plugin(cluster.kubeconfig.read_text()) as stub:

        def cancel() -> None:
            until = time.monotonic() + 50
            while not cluster.batch.list_namespaced_job(namespace).items and time.monotonic() < until:
                time.sleep(0.1)
            cancelled.append(time.monotonic())
            stub.Cancel(empty_pb2.Empty())

        urn = "urn:pulumi:dev::project::kubernetes:batch/v1:Job::endless"
        spec = {"template": {"spec": sleeper(cluster.image)}}
        news = to_struct({"metadata": {"name": "endless", "namespace": namespace}, "spec": spec})
        inputs = stub.Check(provider_pb2.CheckRequest(urn=urn, news=news)).inputs
        threading.Thread(target=cancel).start()
        with pytest.raises(grpc.RpcError) as caught:
            stub.Create(provider_pb2.CreateRequest(urn=urn, properties=inputs), timeout=60)
        assert time.monotonic() - cancelled[0] < 30
    assert isinstance(caught.value, grpc.Call)
    assert "interrupted" in (caught.value.details() or "")
    details = str(caught.value.trailing_metadata())
    assert "ErrorResourceInitFailed" in details
    assert f"{namespace}/endless" in details
