"""A real Kubernetes API server, with its controllers or alone, on loopback and without root or nodes.

In place of kubelets, a thread reports that pods run, and that those of Jobs have ended.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from urllib3.exceptions import HTTPError

from local import toolchain
from tests.ports import free_port

TOKEN = "token-of-a-test"
#: What `gke-gcloud-auth-plugin` and the like print.
CREDENTIAL = {
    "apiVersion": "client.authentication.k8s.io/v1beta1",
    "kind": "ExecCredential",
    "status": {"token": TOKEN},
}
SECONDS = 120


@dataclass
class ApiServer:
    address: str  # 127.0.0.1:PORT
    folder: Path
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def certificate(self) -> Path:
        return self.folder / "certificates/apiserver.crt"

    def environment(self, path: str) -> dict[str, str]:
        """The variables with which a client trusts it, and GKE's helper on PATH, which logs in to it."""
        helper = self.folder / "bin/gke-gcloud-auth-plugin"
        helper.parent.mkdir(exist_ok=True)
        helper.write_text(f"#!/bin/sh\necho '{json.dumps(CREDENTIAL)}'\n")
        helper.chmod(0o755)
        return {"SSL_CERT_FILE": str(self.certificate), "PATH": f"{helper.parent}:{path}"}

    def is_ready(self) -> bool:
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        with urllib.request.urlopen(f"https://{self.address}/readyz", timeout=5, context=trusted) as answer:
            return answer.status == 200

    def client(self) -> Any:
        settings = kubernetes.client.Configuration(host=f"https://{self.address}")
        settings.ssl_ca_cert = str(self.certificate)
        settings.api_key = {"authorization": f"Bearer {TOKEN}"}
        return kubernetes.client.ApiClient(settings)

    def core(self) -> Any:
        return kubernetes.client.CoreV1Api(self.client())

    def run_pods(self) -> None:
        """Do a kubelet's reports, until the end."""
        core = self.core()
        while not self.ended.wait(0.2):
            with contextlib.suppress(kubernetes.client.ApiException, HTTPError, OSError):
                for pod in core.list_pod_for_all_namespaces().items:
                    if pod.status.phase == "Pending" and not pod.metadata.deletion_timestamp:
                        owners = {owner.kind for owner in pod.metadata.owner_references or []}
                        core.patch_namespaced_pod_status(
                            pod.metadata.name, pod.metadata.namespace, {"status": _status("Job" in owners)}
                        )


def _status(has_ended: bool) -> dict[str, Any]:
    ready = {"type": "Ready", "status": str(not has_ended)}
    return {"phase": "Succeeded" if has_ended else "Running", "conditions": [ready]}


@contextmanager
def api_server(
    folder: Path, tool: str = "kubernetes", emulated: str = "", controllers: bool = True, scheduler: bool = False
) -> Iterator[ApiServer]:
    """Start etcd, the API server of a tool of gomod/tools.yaml and its controllers; stop them at the end.

    emulated: an older minor version as which the API server behaves; scheduler: place pods on nodes that a test makes,
    and leave it to the test what becomes of them. Without controllers no Job completes, and what is deleted in the
    foreground, Pulumi's default, keeps its finalizer: an `up` waits for both of a Job that it replaces until its
    timeout, and for neither with pulumi.com/skipAwait (pulumi-kubernetes 4.34.2, provider/pkg/metadata/overrides.go).
    """
    for name in ("etcd", tool):
        if not toolchain.is_built(toolchain.BY_NAME[name]):
            pytest.fail(f"{name} is not built; run `.venv/bin/trainyard local toolchain {name}`")
    etcd, peers, port, health = (free_port() for _ in range(4))
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
    kubeconfig = folder / "kubeconfig"
    server = f"https://127.0.0.1:{port}"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
                "users": [{"name": "u", "user": {"token": TOKEN}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    with contextlib.ExitStack() as stack:

        def start(name: str, *flags: str) -> None:
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            programs = toolchain.bin_directory(toolchain.BY_NAME[name if name == "etcd" else tool])
            process = subprocess.Popen([programs / name, *flags], stdout=log, stderr=log)
            stack.callback(lambda: (process.kill(), process.wait()))

        start(
            "etcd",
            f"--data-dir={folder}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}",
            f"--initial-cluster=default=http://127.0.0.1:{peers}",
            "--unsafe-no-fsync",
        )
        start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={folder}/certificates",
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--service-cluster-ip-range=10.100.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            *([f"--emulated-version={emulated}"] if emulated else []),
        )
        made = ApiServer(f"127.0.0.1:{port}", folder)
        until(made.certificate.exists, "the API server's certificate")
        # The controllers give up after ten seconds without an API server.
        until(made.is_ready, "the API server is ready")
        if not controllers:
            until(lambda: made.core().read_namespace("default"), "the API server's own namespaces")
            yield made
            return
        start(
            "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={health}",
            f"--cert-dir={folder}/controllers",
            f"--service-account-private-key-file={key}",
            "--leader-elect=false",
        )
        until(lambda: made.core().read_namespaced_service_account("default", "default"), "the controllers work")
        if scheduler:
            start(
                "kube-scheduler",
                f"--kubeconfig={kubeconfig}",
                "--bind-address=127.0.0.1",
                f"--secure-port={free_port()}",
                f"--cert-dir={folder}/scheduler",
                "--leader-elect=false",
            )
            yield made
            return
        kubelet = threading.Thread(target=made.run_pods, daemon=True)
        kubelet.start()
        stack.callback(lambda: (made.ended.set(), kubelet.join()))
        yield made


def until(holds: Callable[[], Any], what: str) -> None:
    """Wait until it holds. An error of the API server counts as False."""
    deadline = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(kubernetes.client.ApiException, HTTPError, OSError):
            if holds():
                return
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        time.sleep(0.1)
