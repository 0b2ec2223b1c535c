"""The network policies that the program declares, on the real node: who reaches the rendezvous, and who does not."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local import network
from review.recording import record
from tests.fixtures_cluster import local
from trainer.contract import ETCD_PORT
from workloads.objects import labels
from workloads.rendezvous import METRICS_PORT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

NAMESPACE = "trainyard-policies"
EPHEMERAL = 40123
PORTS = (ETCD_PORT, METRICS_PORT, EPHEMERAL)
LISTEN = f"""
import socket, time
servers = [socket.create_server(("", port)) for port in {PORTS}]
print("listens", flush=True)
time.sleep(1000)
"""
CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def reached(target):
    host, port = target.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        return True
    except OSError:
        return False
with ThreadPoolExecutor(len(sys.argv)) as pool:
    print(json.dumps(list(pool.map(reached, sys.argv[1:]))))
"""
ROLES = ("rendezvous", "trainer", "dataset", "stranger")


class Pods:
    """One pod of each role and a second trainer, all listening on the same ports."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self.addresses: dict[str, str] = {}

    def kubectl(self, *arguments: str, document: Any = None) -> str:
        command = ["kubectl", "--context", "trainyard-local", "--namespace", NAMESPACE, *arguments]
        text = json.dumps(document) if document else None
        done = subprocess.run(
            command, input=text, env=self._environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, image: str) -> None:
        names = {**{role: role for role in ROLES}, "peer": "trainer"}
        pods = [self._pod(name, role, image) for name, role in names.items()]
        self.kubectl("apply", "-f", "-", document={"apiVersion": "v1", "kind": "List", "items": pods})
        self.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=200s")
        for pod in json.loads(self.kubectl("get", "pods", "--output=json"))["items"]:
            self.addresses[pod["metadata"]["name"]] = pod["status"]["podIP"]

    def _pod(self, name: str, role: str, image: str) -> dict[str, Any]:
        container = {"name": "main", "image": image, "command": ["python3", "-c", LISTEN]}
        # The kubelet probes from the node itself, which every policy allows.
        container |= {"readinessProbe": {"tcpSocket": {"port": METRICS_PORT}, "periodSeconds": 1}}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels(role)},
            "spec": spec,
        }

    def reach(self, name: str, targets: dict[str, bool]) -> dict[str, bool]:
        """Which targets (pod:port or address:port) a pod reaches; retries for a while until it is as wanted."""
        hosts = [f"{self.addresses.get(host, host)}:{port}" for host, port in (each.split(":") for each in targets)]
        deadline = time.monotonic() + 200
        while True:
            said = self.kubectl("exec", name, "--", "python3", "-c", CONNECT, *hosts)
            found = dict(zip(targets, json.loads(said), strict=True))
            if found == targets or time.monotonic() > deadline:
                return found
            time.sleep(1)


@pytest.fixture(scope="module")
def pods(node_environment: dict[str, str], node: Path, base_image: str) -> Iterator[Pods]:
    enforced = local("up", "--policies")
    assert enforced.returncode == 0, enforced.stderr
    made = Pods(node_environment)
    subprocess.run(
        ["kubectl", "--context", "trainyard-local", "delete", "namespace", NAMESPACE, "--ignore-not-found"],
        env=node_environment,
        check=True,
        capture_output=True,
    )
    made.kubectl("create", "namespace", NAMESPACE)
    made.start(base_image)
    yield made
    made.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_without_policies_everybody_reaches_the_rendezvous(pods: Pods) -> None:
    """So the refusals in the tests below come from the policies."""
    wanted = {f"rendezvous:{port}": True for port in PORTS}
    # The next trainer comes from the registry, which is for the node and its host alone.
    wanted |= {f"{network.NODE_ADDRESS}:6443": True, network.REGISTRY: False}
    assert pods.reach("stranger", wanted) == wanted


@pytest.fixture(scope="module")
def declared(pods: Pods, node: Path) -> Pods:
    """The pods under the policies of the local stack."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(node))
        recorded = record("local").all("kubernetes:networking.k8s.io/v1:NetworkPolicy")
    policies = [{**each.inputs, "metadata": {"name": each.name}} for each in recorded]
    assert policies
    text = json.loads(json.dumps(policies), parse_float=lambda number: int(float(number)))
    pods.kubectl("apply", "-f", "-", document={"apiVersion": "v1", "kind": "List", "items": text})
    return pods


@pytest.mark.parametrize("who", ["trainer", "peer"])
def test_trainers_reach_the_rendezvous_and_each_other(declared: Pods, who: str) -> None:
    other = {"trainer": "peer", "peer": "trainer"}[who]
    wanted = {
        f"rendezvous:{ETCD_PORT}": True,
        f"rendezvous:{METRICS_PORT}": False,
        f"{other}:{EPHEMERAL}": True,
        "dataset:40123": False,
    }
    assert declared.reach(who, wanted) == wanted


@pytest.mark.parametrize("who", ["stranger", "dataset"])
def test_nobody_else_does(declared: Pods, who: str) -> None:
    """A client that can write there can end the training."""
    wanted = {f"{host}:{port}": False for host in ("rendezvous", "trainer") for port in PORTS}
    assert declared.reach(who, wanted) == wanted


def test_all_reach_the_name_server_and_no_trainer_the_control_plane(declared: Pods) -> None:
    wanted = {f"{network.DNS_ADDRESS}:53": True, f"{network.NODE_ADDRESS}:6443": False}
    for who in ("trainer", "rendezvous", "stranger"):
        assert declared.reach(who, wanted) == wanted
