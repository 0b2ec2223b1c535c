"""What the trainer's pods rely on, on the real node: Jobs, names, traffic, images, refusals, logs and exec."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from local import node

pytestmark = pytest.mark.cluster

Kubectl = Callable[..., str]

SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}

# Each pod listens, and connects to every pod by name until it answers.
TALK = """
import os, socket, threading, time
index, count = int(os.environ["JOB_COMPLETION_INDEX"]), 3
server = socket.create_server(("", 7000))
asked = threading.Semaphore(0)
def serve():
    while True:
        connection, _ = server.accept()
        connection.sendall(str(index).encode())
        connection.close()
        asked.release()
threading.Thread(target=serve, daemon=True).start()
for other in range(count):
    deadline = time.monotonic() + 200
    while True:
        try:
            with socket.create_connection((f"talk-{other}.talk", 7000), timeout=2) as connection:
                assert connection.recv(10) == str(other).encode()
            break
        except OSError:
            assert time.monotonic() < deadline, f"no answer of talk-{other}.talk"
            time.sleep(0.2)
for _ in range(count):
    assert asked.acquire(timeout=200)
print("reached", count, "pods by name, was reached by", count)
"""


@pytest.fixture(scope="module")
def kubectl(node_environment: dict[str, str]) -> Iterator[Kubectl]:
    """kubectl in a namespace of its own, with restricted Pod Security as the stack's."""
    namespace = f"test-{uuid.uuid4().hex[:6]}"

    def call(*arguments: str, document: Any = None, check: bool = True) -> str:
        command = ["kubectl", "--context", "trainyard-local", "--namespace", namespace, *arguments]
        text = json.dumps(document) if document else None
        result = subprocess.run(command, input=text, capture_output=True, text=True, env=node_environment, timeout=280)
        assert result.returncode == 0 or not check, result.stderr
        return result.stdout + result.stderr

    call("create", "namespace", namespace)
    call("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    yield call
    call("delete", "namespace", namespace, "--timeout=200s")


def pod_spec(image: str, command: list[str], **more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": command, "securityContext": SECURITY, **more}
    return {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}


def pod(name: str, spec: dict[str, Any], **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def test_the_pods_of_an_indexed_job_reach_each_other_by_name(kubectl: Kubectl, base_image: str) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "talk"},
        "spec": {"clusterIP": "None", "selector": {"app": "talk"}, "publishNotReadyAddresses": True},
    }
    spec = {**pod_spec(base_image, ["python3", "-c", TALK]), "subdomain": "talk"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "talk"},
        "spec": {
            "completionMode": "Indexed",
            "completions": 3,
            "parallelism": 3,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"app": "talk"}}, "spec": spec},
        },
    }
    kubectl("apply", "-f", "-", document={"apiVersion": "v1", "kind": "List", "items": [service, job]})
    kubectl("wait", "--for=condition=Complete", "job/talk", "--timeout=200s")
    lines = kubectl("logs", "--selector=app=talk", "--tail=1").splitlines()
    assert lines == ["reached 3 pods by name, was reached by 3"] * 3


def test_a_restricted_namespace_refuses_a_privileged_pod(kubectl: Kubectl, base_image: str) -> None:
    spec = pod_spec(base_image, ["true"])
    spec["containers"][0]["securityContext"] = {"privileged": True}
    said = kubectl("apply", "-f", "-", document=pod("privileged", spec), check=False)
    assert 'violates PodSecurity "restricted:latest"' in said
    assert "privileged" not in kubectl("get", "pods", "-o", "name")


@pytest.fixture(scope="module")
def server(kubectl: Kubectl, base_image: str) -> str:
    """A ready pod that serves HTTP on 8000, behind the Service `web`."""
    code = "print('serving', flush=True)\nimport http.server as h\nh.test(h.SimpleHTTPRequestHandler, port=8000)"
    spec = pod_spec(base_image, ["python3", "-c", code], readinessProbe={"tcpSocket": {"port": 8000}})
    kubectl("apply", "-f", "-", document=pod("server", spec, app="web"))
    kubectl("expose", "pod", "server", "--name=web", "--port=80", "--target-port=8000")
    kubectl("wait", "--for=condition=Ready", "pod/server", "--timeout=200s")
    return "server"


def test_logs_and_exec(kubectl: Kubectl, server: str) -> None:
    assert "serving" in kubectl("logs", server)
    code = "import os; print('user', os.getuid()); open('/nothing', 'w')"
    said = kubectl("exec", server, "--", "python3", "-c", code, check=False)
    assert "user 1000" in said
    assert "Read-only file system" in said


def test_a_service_has_a_stable_address_and_a_name(kubectl: Kubectl, server: str) -> None:
    code = "import urllib.request as u; print(u.urlopen('http://web', timeout=10).status)"
    deadline = time.monotonic() + 200  # kube-proxy learns of a ready pod a second or two later
    while kubectl("exec", server, "--", "python3", "-c", code, check=False).strip() != "200":
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_port_forward(node_environment: dict[str, str], kubectl: Kubectl, server: str) -> None:
    namespace = kubectl("get", "pod", server, "-o", "jsonpath={.metadata.namespace}")
    command = ["kubectl", "--context", "trainyard-local", "-n", namespace, "port-forward", f"pod/{server}", ":8000"]
    with subprocess.Popen(command, env=node_environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{found[1]}", timeout=10) as response:
                assert response.status == 200
        finally:
            process.terminate()


def test_an_image_is_pulled_from_the_registry_by_digest(kubectl: Kubectl, base_image: str) -> None:
    assert re.fullmatch(r"198\.18\.0\.2:5000/base@sha256:[0-9a-f]{64}", base_image)
    spec = pod_spec(base_image, ["python3", "--version"], imagePullPolicy="Always")
    kubectl("apply", "-f", "-", document=pod("pulled", spec))
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/pulled", "--timeout=200s")
    digest = base_image.partition("@")[2]
    assert digest in kubectl("get", "pod", "pulled", "-o", "jsonpath={.status.containerStatuses[0].imageID}")


def test_an_image_is_there_before_a_pod_asks_for_it(kubectl: Kubectl, base_image: str) -> None:
    node.pull(base_image)
    spec = pod_spec(base_image, ["python3", "--version"], imagePullPolicy="Never")
    kubectl("apply", "-f", "-", document=pod("there", spec))
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/there", "--timeout=200s")
    with pytest.raises(OSError, match="not found"):
        node.pull(f"{base_image.partition('@')[0]}@sha256:{'0' * 64}")


def test_a_digest_that_the_registry_has_not_is_an_error_of_the_pull(kubectl: Kubectl, base_image: str) -> None:
    missing = base_image.partition("@")[0] + "@sha256:" + "0" * 64
    kubectl("apply", "-f", "-", document=pod("missing", pod_spec(missing, ["true"])))
    deadline = time.monotonic() + 200
    path = "jsonpath={.status.containerStatuses[0].state.waiting.reason}"
    while kubectl("get", "pod", "missing", "-o", path) not in ("ErrImagePull", "ImagePullBackOff"):
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_pod_may_not_use_more_memory_than_its_limit(kubectl: Kubectl, base_image: str) -> None:
    """The control groups work: the kernel kills the greedy pod and spares the node."""
    code = "print(len(bytearray(300_000_000)))"
    spec = pod_spec(base_image, ["python3", "-c", code], resources={"limits": {"memory": "64Mi", "cpu": "500m"}})
    kubectl("apply", "-f", "-", document=pod("greedy", spec))
    kubectl("wait", "--for=jsonpath={.status.phase}=Failed", "pod/greedy", "--timeout=200s")
    path = "jsonpath={.status.containerStatuses[0].state.terminated.reason}"
    assert kubectl("get", "pod", "greedy", "-o", path) == "OOMKilled"
