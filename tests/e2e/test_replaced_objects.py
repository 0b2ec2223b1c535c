"""Objects that change hands or are replaced, with Pulumi's own Kubernetes plugin on a real API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import kubernetes
import pytest

from tests.e2e import cloud_stack
from tests.e2e.cloud_stack import CloudStack
from tests.standin.api_server import ApiServer, api_server, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
#: GiB, the least that both kinds of volume can have.
SIZE = 2560
#: Seconds for which a ReplicaSet outlives its Deployment's deletion.
HELD = 6.0
FINALIZER = "trainyard.test/hold"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("api")) as made:
        yield made


@pytest.fixture(scope="module")
def gke(tmp_path_factory: pytest.TempPathFactory, api: ApiServer) -> CloudStack:
    stack = cloud_stack.make("gcp-c3", tmp_path_factory.mktemp("gke"), api=api)
    stack.configure(cluster={"replace": True}, storage={"sizeGib": SIZE})
    stack.up()
    assert stack.preview() == {}
    return stack


@pytest.mark.parametrize("kind", ["filestore", "nfs"])
def test_the_volume_of_a_living_stack_becomes_one_of_another_kind(gke: CloudStack, api: ApiServer, kind: str) -> None:
    """One namespace serves both kinds. What the new one needs is there afterwards, and nothing of the old one.

    The end of TensorBoard's Deployment takes a while, as on a busy cluster: its successor must not meet it.
    """
    with held(api, "tensorboard"):
        gke.configure(storage={"kind": kind})
        gke.up()
    assert gke.preview() == {}
    core: Any = api.core()
    apps: Any = kubernetes.client.AppsV1Api(api.client())
    space = core.read_namespace("trainyard-storage")
    assert space.status.phase == "Active"
    assert space.metadata.labels["pod-security.kubernetes.io/enforce"] == {"filestore": "baseline"}.get(
        kind, "privileged"
    )
    servers = [item.metadata.name for item in apps.list_namespaced_deployment("trainyard-storage").items]
    assert servers == ([] if kind == "filestore" else ["nfs-server"])
    assert apps.read_namespaced_deployment("tensorboard", "trainyard").metadata.deletion_timestamp is None
    until(lambda: core.read_namespaced_persistent_volume_claim("data", "trainyard").status.phase == "Bound", "bound")


class held:
    """Keep the ReplicaSets of a Deployment for HELD seconds after their deletion."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self._apps, self._ended = kubernetes.client.AppsV1Api(api.client()), threading.Event()
        self._thread = threading.Thread(target=self._release)
        self._names = [item.metadata.name for item in self._sets() if item.metadata.name.startswith(name)]
        assert self._names

    def _sets(self) -> list[Any]:
        return self._apps.list_namespaced_replica_set("trainyard").items

    def _hold(self, name: str, remove: bool = False) -> None:
        key = "$deleteFromPrimitiveList/finalizers" if remove else "finalizers"
        self._apps.patch_namespaced_replica_set(name, "trainyard", {"metadata": {key: [FINALIZER]}})

    def _release(self) -> None:
        while not self._ended.wait(0.1):
            for item in self._sets():
                if item.metadata.name in self._names and item.metadata.deletion_timestamp:
                    time.sleep(HELD)
                    self._hold(item.metadata.name, remove=True)
                    self._names.remove(item.metadata.name)

    def __enter__(self) -> None:
        for name in self._names:
            self._hold(name)
        self._thread.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for name in self._names:
            self._hold(name, remove=True)
        assert kind or not self._names, "the test holds nothing: the Deployment was not replaced"
