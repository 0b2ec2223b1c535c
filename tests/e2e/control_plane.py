"""A real API server over an etcd of its own, on loopback ports: no node, no controllers, nothing runs."""

from __future__ import annotations

import json
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import urllib3
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from faults.lab import etcd_command
from local import toolchain
from tests.ports import free_port

STARTS_SECONDS = 120


class Refused(AssertionError):
    """The API server's own words."""


class ApiServer:
    """Applies objects server-side, as `kubectl apply --server-side` does, and keeps each warning."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = urllib3.PoolManager(cert_reqs="CERT_NONE")
        self._resources: dict[tuple[str, str], dict[str, Any]] = {}
        """API version and kind -> what discovery says of it; `{}`: the server does not know it."""
        self.warnings: list[str] = []

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> dict[str, Any]:
        """Raises Refused for an answer that is no success."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind, "Authorization": "Bearer test"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its certificate is its own
            answer = self._pool.request(method, self._url + path, body=content, headers=headers, retries=False)
        self.warnings += answer.headers.getlist("Warning")
        if answer.status >= 400:
            raise Refused(f"{method} {path}: {answer.status} {answer.data.decode()[:1000]}")
        return json.loads(answer.data)

    def resource(self, version: str, kind: str) -> dict[str, Any]:
        if (version, kind) not in self._resources:
            with suppress(Refused):
                found = self.ask("GET", f"/{'apis' if '/' in version else 'api'}/{version}")["resources"]
                self._resources |= {(version, each["kind"]): each for each in found if "/" not in each["name"]}
        return self._resources.setdefault((version, kind), {})

    def apply(self, thing: dict[str, Any], manager: str) -> dict[str, Any]:
        """Apply with strict validation: a field that this version does not know is refused.

        What belongs to no namespace is not kept: of another stack it may have the same name.
        """
        version, found = thing["apiVersion"], self.resource(thing["apiVersion"], thing["kind"])
        namespace = f"/namespaces/{thing['metadata']['namespace']}" if found["namespaced"] else ""
        path = (
            f"/{'apis' if '/' in version else 'api'}/{version}{namespace}/{found['name']}/{thing['metadata']['name']}"
        )
        query = f"?fieldManager={manager}&force=true&fieldValidation=Strict"
        query += "" if namespace or thing["kind"] == "Namespace" else "&dryRun=All"
        return self.ask("PATCH", path + query, thing, "application/apply-patch+yaml")


@contextmanager
def api_server(folder: Path, tool: str = "kubernetes", emulated: str = "") -> Iterator[ApiServer]:
    """The API server of a tool of gomod/tools.yaml; `emulated` is an older minor version as which it behaves."""
    key = rsa.generate_private_key(65537, 2048)
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    (folder / "accounts.key").write_bytes(key.private_bytes(*pem))
    (folder / "tokens.csv").write_text("test,test,test,system:masters\n")
    etcd, port = f"http://127.0.0.1:{free_port()}", free_port()
    flags = {
        "etcd-servers": etcd,
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "cert-dir": folder / "certificates",
        "token-auth-file": folder / "tokens.csv",
        "service-account-issuer": "https://test",
        "service-account-key-file": folder / "accounts.key",
        "service-account-signing-key-file": folder / "accounts.key",
        "service-cluster-ip-range": "10.96.0.0/16",
        "authorization-mode": "AlwaysAllow",
        "disable-admission-plugins": "ServiceAccount",  # whose controller makes each namespace's account
        "allow-privileged": "true",
        "enable-priority-and-fairness": "false",
        **({"emulated-version": emulated} if emulated else {}),
    }
    program = toolchain.bin_directory(toolchain.BY_NAME[tool]) / "kube-apiserver"
    with (folder / "log").open("w") as log:
        store = subprocess.Popen(etcd_command(folder / "etcd", etcd, f"http://127.0.0.1:{free_port()}"), stderr=log)
        server = subprocess.Popen([program, *(f"--{name}={value}" for name, value in flags.items())], stderr=log)
        try:
            made, end = ApiServer(f"https://127.0.0.1:{port}"), time.monotonic() + STARTS_SECONDS
            while True:
                with suppress(Refused, urllib3.exceptions.HTTPError):
                    made.ask("GET", "/api/v1/namespaces/default")
                    break
                assert server.poll() is None, (folder / "log").read_text()[-2000:]
                assert time.monotonic() < end, (folder / "log").read_text()[-2000:]
                time.sleep(0.2)
            yield made
        finally:
            for process in (server, store):
                process.kill()
                process.wait()
